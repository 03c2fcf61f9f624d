package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

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
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return order.Errorf(order.Invalid, "usage", "%v", err).WithHint("See " + program + " --help.")
	case flags.NArg() > 0:
		return order.Errorf(order.Invalid, "usage", "unexpected argument %q", flags.Arg(0)).WithHint("See " + program + " --help.")
	case *version:
		b := BuildInfo()
		_, err := fmt.Fprintf(stdout, "%s %s (%s, %s)\n", program, b.Version, b.Revision, b.Go)
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
	flags.StringToStringVar(&s.Set, "set", nil, "one setting, as `name=value`; stronger than file and environment")
}
