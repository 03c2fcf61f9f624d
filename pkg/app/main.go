package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"lapse/pkg/order"
)

// Exit codes of all programs.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2 // wrong flags or settings
	ExitNotFound    = 3
	ExitConflict    = 4
	ExitUnavailable = 5
)

// ExitCode is the exit code for an error.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	switch order.KindOf(err) {
	case order.Invalid:
		return ExitUsage
	case order.NotFound:
		return ExitNotFound
	case order.Conflict, order.KeyReused:
		return ExitConflict
	case order.Unavailable, order.Exhausted:
		return ExitUnavailable
	}
	return ExitFailed
}

// Explain writes an error for a person: what is wrong, each refused setting on its own line, and the hint.
func Explain(w io.Writer, program string, err error) {
	var e *order.Error
	if !errors.As(err, &e) || len(e.Fields) == 0 {
		fmt.Fprintf(w, "%s: %v\n", program, err)
	} else {
		fmt.Fprintf(w, "%s: %s\n", program, e.Message)
		for _, f := range e.Fields {
			fmt.Fprintf(w, "  %s: %s\n", f.Name, f.Reason)
		}
	}
	if e != nil && e.Hint != "" {
		fmt.Fprintf(w, "  %s\n", e.Hint)
	}
}

// UsageError says that a command line is wrong.
func UsageError(program, format string, args ...any) error {
	return order.Errorf(order.Invalid, "usage", format, args...).WithHint("See " + program + " --help.")
}

// remoteKinds are the kinds of error that an answer of the API stands for; others are failures.
var remoteKinds = map[codes.Code]order.Kind{
	codes.InvalidArgument:    order.Invalid,
	codes.Unauthenticated:    order.Unauthenticated,
	codes.PermissionDenied:   order.PermissionDenied,
	codes.NotFound:           order.NotFound,
	codes.FailedPrecondition: order.Conflict,
	codes.AlreadyExists:      order.KeyReused,
	codes.ResourceExhausted:  order.Exhausted,
	codes.Unavailable:        order.Unavailable,
	codes.DeadlineExceeded:   order.Unavailable,
}

// RemoteError is the error that the API answered with, and the fields that it refused.
func RemoteError(code codes.Code, message, hint string, fields ...order.Field) error {
	return &order.Error{Kind: remoteKinds[code], Code: "remote", Message: message, Hint: hint, Fields: fields}
}

// Interrupted is a context that ends with the first SIGINT or SIGTERM. The second one ends the process at
// once.
func Interrupted() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Main is the main function of a service: it reads the flags, runs until a signal, and returns the exit
// code.
func Main(program string, service func(live *Live, out io.Writer) *App) int {
	err := run(os.Args[1:], program, service, os.Stdout, os.Stderr)
	if err != nil {
		Explain(os.Stderr, program, err)
	}
	return ExitCode(err)
}

func run(args []string, program string, service func(live *Live, out io.Writer) *App, stdout, stderr io.Writer) error {
	var src Source
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.SetOutput(stderr)
	src.AddFlags(flags)
	version := flags.Bool("version", false, "print the version and exit")
	PlainHelp(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return UsageError(program, "%v", err)
	case flags.NArg() > 0:
		return UsageError(program, "unexpected argument %q", flags.Arg(0))
	case *version:
		_, err := fmt.Fprintln(stdout, program, BuildInfo())
		return err
	}
	live, err := Open(src)
	if err != nil {
		return err
	}
	ctx, stop := Interrupted()
	defer stop()
	return service(live, stderr).Run(ctx)
}

// AddFlags adds the flags that fill src.
func (s *Source) AddFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&s.File, "config", "c", "", "YAML `file` with settings (see docs/configuration.md)")
	flags.Var(setting{s}, "set", "one setting, as `name=value`; may be given several times; stronger than file and environment")
}

// PlainHelp makes the help show a flag that is given without a value as --flag, not as --flag[=true|false].
func PlainHelp(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			f.Value = plainBool{f.Value}
		}
	})
}

// plainBool is a flag's value without the method by which pflag's help tells it from others.
type plainBool struct{ pflag.Value }

// setting is the flag --set. Unlike pflag's maps it takes commas as they are.
type setting struct{ source *Source }

func (s setting) Set(arg string) error {
	name, value, ok := strings.Cut(arg, "=")
	if !ok || name == "" {
		return errors.New("write name=value")
	}
	if s.source.Set == nil {
		s.source.Set = map[string]string{}
	}
	s.source.Set[name] = value
	return nil
}

func (s setting) String() string { return "" }
func (s setting) Type() string   { return "setting" }
