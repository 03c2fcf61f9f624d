package main

import (
	"github.com/spf13/cobra"

	"lapse/cmd/lapse/internal/demo"
)

func demoCommand() *cobra.Command {
	var opts demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch orders lapse: the whole system in one process, driven by real calls, and every promise checked",
		Long: `Runs the whole system in this process, on SQLite in a directory of its own, and drives it by its HTTP API:
orders that nobody pays, that are paid, cancelled by their user, paid too late, created twice, refused.
In half a minute it prints the fate of every order and whether every promise was kept.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Out, opts.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return demo.Run(cmd.Context(), opts)
		},
	}
	cmd.Flags().BoolVar(&opts.JSON, "json", false, "print the report as JSON, and nothing else on stdout")
	cmd.Flags().BoolVar(&opts.Keep, "keep", false, "keep the directory with the database and the log, and say where it is")
	return cmd
}
