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

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"lapse/pkg/app"
	"lapse/pkg/order"
)

// tokenHint is what to do when the API refuses the token, or there was none.
const tokenHint = "Give a token of scope operator with --token or $" + tokenVar + ", or take that of `lapse dev` with --data " + app.DefaultData + "."

// tokenVar is the environment variable with the operator's token.
const tokenVar = "LAPSE_TOKEN"

// question is what a command asks the API.
type question[Answer proto.Message] struct {
	ask  func(ctx context.Context, api *grpc.ClientConn, args []string) (Answer, error)
	show func(a Answer) string
	// judge says what is wrong with an answer that has been shown; nil if nothing can be.
	judge   func(a Answer) error
	timeout time.Duration // 0 means 30 s
}

// remote lets cmd ask a running producer, and gives it the flags for that.
func remote[Answer proto.Message](src *app.Source, cmd *cobra.Command, q question[Answer]) *cobra.Command {
	p := producer{command: cmd}
	var asJSON bool
	flags := cmd.Flags()
	flags.StringVar(&p.addr, "server", "", "where the API is, `host:port` or https://host:port (default: that of the `lapse dev` of --data, else server.addr of the settings)")
	flags.StringVar(&p.token, "token", "", "bearer `token` of scope operator (default: $"+tokenVar+", else one of the settings)")
	flags.StringVar(&p.caFile, "ca-file", "", "PEM `file` of the authority that signed the server's certificate (default: the system's)")
	flags.DurationVar(&p.timeout, "timeout", cmp.Or(q.timeout, 30*time.Second), "how long to wait for the answer")
	flags.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := app.Load(*src)
		if err != nil {
			return err
		}
		p.fillIn(c, src.Data)
		answer, err := reach(cmd.Context(), p, func(ctx context.Context, api *grpc.ClientConn) (Answer, error) { return q.ask(ctx, api, args) })
		if err != nil {
			return err
		}
		if err := q.print(cmd.OutOrStdout(), answer, asJSON); err != nil || q.judge == nil {
			return err
		}
		return q.judge(answer)
	}
	return cmd
}

func (q question[Answer]) print(out io.Writer, a Answer, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(out, q.show(a))
		return err
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(a)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", raw)
	return err
}

// producer is where the API is, and how to get in.
type producer struct {
	command *cobra.Command // whose flags say so
	addr    string
	token   string
	caFile  string
	timeout time.Duration
}

// fillIn takes from the environment, the data directory of `lapse dev` and the settings what no flag says.
func (p *producer) fillIn(c *app.Config, data string) {
	if p.token == "" {
		p.token = os.Getenv(tokenVar)
	}
	if p.token == "" {
		p.token, _ = c.TokenFor("operator")
	}
	if p.addr == "" {
		p.addr = cmp.Or(app.DevAddress(data), c.Server.Addr)
		if c.Server.TLS.CertFile != "" {
			p.addr = "https://" + p.addr
		}
	}
}

// reach lets ask speak to the producer.
func reach[Answer any](ctx context.Context, p producer, ask func(ctx context.Context, api *grpc.ClientConn) (Answer, error)) (answer Answer, err error) {
	api, err := p.dial()
	if err != nil {
		return answer, err
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err = ask(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+p.token), api)
	if st, ok := status.FromError(err); ok && st != nil {
		return answer, explained(st)
	}
	return answer, err
}

func (p *producer) dial() (*grpc.ClientConn, error) {
	addr, secure := strings.CutPrefix(p.addr, "https://")
	host, port, err := net.SplitHostPort(strings.TrimPrefix(addr, "http://"))
	if err != nil {
		return nil, app.UsageError(p.command.CommandPath(), "--server: write host:port or https://host:port")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // where a server that listens everywhere listens, too
	}
	creds := insecure.NewCredentials()
	if secure {
		conf, err := p.tls()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(conf)
	}
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(host, port), grpc.WithTransportCredentials(creds))
}

func (p *producer) tls() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.caFile == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(p.caFile)
	if err != nil {
		return nil, app.UsageError(p.command.CommandPath(), "--ca-file: %v", err)
	}
	conf.RootCAs = x509.NewCertPool()
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, app.UsageError(p.command.CommandPath(), "--ca-file: no certificate in %s", p.caFile)
	}
	return conf, nil
}

// explained turns an answer of the API into an error with its kind, its hint and the fields that were refused.
func explained(st *status.Status) error {
	hint := ""
	var fields []order.Field
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			hint = d.GetMetadata()["hint"]
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, order.Field{Name: v.GetField(), Reason: v.GetDescription()})
			}
		}
	}
	switch st.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		hint = tokenHint // the API's own speaks of headers
	case codes.Unavailable:
		hint = cmp.Or(hint, "Is the producer running there? Say --server host:port.")
	}
	return app.RemoteError(st.Code(), st.Message(), hint, fields...)
}
