package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
)

// tokenHint is what to do when the API refuses the token, or there was none.
const tokenHint = "Give a token of scope operator with --token or $" + tokenVar + ", or take that of `lapse dev` with --data " + app.DefaultData + "."

// tokenVar is the environment variable with the operator's token.
const tokenVar = "LAPSE_TOKEN"

type sweepFlags struct {
	now     bool
	server  string
	token   string
	caFile  string
	timeout time.Duration
	asJSON  bool
}

func sweepCommand(src *app.Source) *cobra.Command {
	var f sweepFlags
	cmd := &cobra.Command{
		Use:   "sweep --now",
		Short: "Close everything that is due, at once",
		Long: `Asks a running producer (or lapse dev) to look through all shards and close every order that is due, without
waiting for the compensator's next round. Harmless at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.now {
				return app.UsageError("lapse sweep", "say --now: rounds come by themselves, this command asks for one at once")
			}
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			f.fillIn(c)
			return f.sweep(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&f.now, "now", false, "sweep at once")
	cmd.Flags().StringVar(&f.server, "server", "", "where the API is, `host:port` or https://host:port (default: server.addr of the settings)")
	cmd.Flags().StringVar(&f.token, "token", "", "bearer `token` of scope operator (default: $"+tokenVar+", else one of the settings)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "PEM `file` of the authority that signed the server's certificate (default: the system's)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait for its end")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the record of the run as JSON")
	return cmd
}

// fillIn takes from the environment and the settings what no flag says.
func (f *sweepFlags) fillIn(c *app.Config) {
	if f.token == "" {
		f.token = os.Getenv(tokenVar)
	}
	if f.token == "" {
		f.token, _ = c.TokenFor("operator")
	}
	if f.server == "" {
		f.server = c.Server.Addr
		if c.Server.TLS.CertFile != "" {
			f.server = "https://" + f.server
		}
	}
}

func (f *sweepFlags) sweep(ctx context.Context, out io.Writer) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.token)
	run, err := lapsev1.NewOperatorServiceClient(conn).Sweep(ctx, &lapsev1.SweepRequest{})
	if err != nil {
		return explained(err)
	}
	if err := f.print(out, run); err != nil {
		return err
	}
	if run.GetError() != "" {
		return fmt.Errorf("the sweep ended early: %s", run.GetError())
	}
	return nil
}

func (f *sweepFlags) dial() (*grpc.ClientConn, error) {
	addr, secure := strings.CutPrefix(f.server, "https://")
	host, port, err := net.SplitHostPort(strings.TrimPrefix(addr, "http://"))
	if err != nil {
		return nil, app.UsageError("lapse sweep", "--server: write host:port or https://host:port")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // where a server that listens everywhere listens, too
	}
	creds := insecure.NewCredentials()
	if secure {
		conf, err := f.tls()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(conf)
	}
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(host, port), grpc.WithTransportCredentials(creds))
}

func (f *sweepFlags) tls() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caFile == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return nil, app.UsageError("lapse sweep", "--ca-file: %v", err)
	}
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, app.UsageError("lapse sweep", "--ca-file: no certificate in %s", f.caFile)
	}
	return conf, nil
}

func (f *sweepFlags) print(out io.Writer, run *lapsev1.SweepRun) error {
	if f.asJSON {
		raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(run)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", raw)
		return err
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"run", "by", "took", "shards", "looked at", "closed", "failed"})
	t.AppendRow(table.Row{
		run.GetId(), run.GetOwner(), time.Duration(run.GetDurationMs()) * time.Millisecond, run.GetShards(), run.GetLooked(), run.GetClosed(), run.GetFailed(),
	})
	_, err := fmt.Fprintln(out, t.Render())
	return err
}

// explained turns an answer of the API into an error with its kind and hint.
func explained(err error) error {
	st := status.Convert(err)
	hint := ""
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			hint = info.GetMetadata()["hint"]
		}
	}
	switch st.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		hint = tokenHint // the API's own speaks of headers
	case codes.Unavailable:
		hint = cmp.Or(hint, "Is the producer running there? Say --server host:port.")
	}
	return app.RemoteError(st.Code(), st.Message(), hint)
}
