// Lapse is the command of operators and newcomers: `lapse dev` runs everything in one process, the rest
// looks after an installation.
//
// On stdout stands what was asked for, with --json nothing but JSON; logs and errors go to stderr. The exit codes
// are in the help and in docs/operations.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"lapse/pkg/app"
)

func main() {
	ctx, stop := app.Interrupted()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var src app.Source
	root := newRoot(&src)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started { // no command was reached: cobra refused the command line
		err = app.UsageError(cmd.CommandPath(), "%v", err)
	}
	if err != nil {
		app.Explain(stderr, "lapse", err)
	}
	return app.ExitCode(err)
}

func newRoot(src *app.Source) *cobra.Command {
	root := &cobra.Command{
		Use:   "lapse",
		Short: "Closes orders that are not paid in time",
		Long: `Closes orders that are not paid in time. Answers go to stdout, logs and errors to stderr.

Exit codes:
  0  done
  1  failed; or something is wrong with what was looked at: an audit, a reconciliation, a demo
  2  the command line, a setting or a field is wrong
  3  not found
  4  conflict: the present state does not allow it
  5  unavailable: not decided, try again`,
		Version:       app.BuildInfo().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	src.AddFlags(root.PersistentFlags())
	root.PersistentFlags().StringVar(&src.Data, "data", "", "data `directory` of `lapse dev`: its settings, and where it listens, instead of those of an installation")
	root.AddCommand(devCommand(src), demoCommand(), migrateCommand(src), sweepCommand(src), reconcileCommand(src), orderCommand(src), lateCommand(src), refundedCommand(src),
		brakesCommand(src), shadowReportCommand(src), auditCommand(src), paytimeCommand(src), backfillCommand(src), configCommand(src), versionCommand())
	plainHelp(root)
	return root
}

// plainHelp applies app.PlainHelp to cmd and the commands below it.
func plainHelp(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	app.PlainHelp(cmd.Flags())
	for _, c := range cmd.Commands() {
		plainHelp(c)
	}
}

// printJSON writes v, indented.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say what this program was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := app.BuildInfo()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "lapse", b)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func migrateCommand(src *app.Source) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema to the version of this program",
		Long: `Brings the schema of the configured database to the version of this program. The services never do it themselves:
they do not start before it is done, so run it before each new version of them. It is safe to run again, also while another
one runs. ` + "`lapse dev`" + ` needs no migrate.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			version, err := app.Migrate(cmd.Context(), c)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the schema has version %d\n", version)
			return err
		},
	}
}

func configCommand(src *app.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show settings",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return app.UsageError("lapse config", "say print or docs") },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "print",
		Short: "Print the settings in force as YAML, without the secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			return c.Print(cmd.OutOrStdout())
		},
	}, &cobra.Command{
		Use:   "docs",
		Short: "Print the reference of all settings (docs/configuration.md)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return app.Reference(cmd.OutOrStdout()) },
	})
	return cmd
}
