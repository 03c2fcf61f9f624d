package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"lapse/pkg/app"
)

// finding is one line of an audit as JSON.
type finding struct {
	Invariant  string `json:"invariant"`
	Name       string `json:"name"`
	Checked    int64  `json:"checked"`
	Violations int64  `json:"violations"`
	Example    string `json:"example,omitempty"`
}

type auditReport struct {
	Holds  bool      `json:"holds"`
	Checks []finding `json:"checks"`
}

func auditCommand(src *app.Source) *cobra.Command {
	var asJSON bool
	var overdue time.Duration
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check every promise on the stored data",
		Long: `Reads the configured database and checks the promises by query. Exit code 1 if one does not hold. It changes
nothing and may run beside a live system.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if overdue < 0 {
				return app.UsageError("lapse audit", "--overdue: at least 0s")
			}
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			checks, err := app.Audit(cmd.Context(), c, overdue)
			if err != nil {
				return err
			}
			report := auditReport{Holds: true, Checks: []finding{}}
			for _, k := range checks {
				report.Checks = append(report.Checks, finding{k.Invariant, k.Name, k.Checked, k.Violations, k.Example})
				report.Holds = report.Holds && k.Holds()
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), report.table())
			}
			if err == nil && !report.Holds {
				err = errors.New("not every promise holds: the rows named as examples need a human")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&overdue, "overdue", 0, "how long after its deadline an order may still be pending (default 3m)")
	return cmd
}

func (r auditReport) table() string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"", "must hold", "checked", "violations", "example"})
	for _, f := range r.Checks {
		t.AppendRow(table.Row{f.Invariant, f.Name, f.Checked, f.Violations, f.Example})
	}
	return t.Render()
}
