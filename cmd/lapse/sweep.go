package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
)

// runTimeout is how long may take, by default, what has much to do.
const runTimeout = 10 * time.Minute

func sweepCommand(src *app.Source) *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "sweep --now",
		Short: "Close everything that is due, at once",
		Long: `Asks a running producer (or lapse dev) to look through all shards and close every order that is due, without
waiting for the compensator's next round. Harmless at any time. What the brakes keep open stays open, and is counted.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&now, "now", false, "sweep at once")
	return remote(src, cmd, question[*lapsev1.SweepRun]{
		timeout: runTimeout,
		ask: func(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.SweepRun, error) {
			if !now {
				return nil, app.UsageError("lapse sweep", "say --now: rounds come by themselves, this command asks for one at once")
			}
			return lapsev1.NewOperatorServiceClient(api).Sweep(ctx, &lapsev1.SweepRequest{})
		},
		show:  sweepTable,
		judge: func(run *lapsev1.SweepRun) error { return endedEarly("sweep", run.GetError()) },
	})
}

// sweepTable shows a run, and says so if the brakes kept orders open.
func sweepTable(run *lapsev1.SweepRun) string {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"run", "by", "took", "shards", "looked at", "closed", "failed", "braked"})
	t.AppendRow(table.Row{
		run.GetId(), run.GetOwner(), time.Duration(run.GetDurationMs()) * time.Millisecond, run.GetShards(), run.GetLooked(), run.GetClosed(), run.GetFailed(), run.GetBraked(),
	})
	if run.GetBraked() == 0 {
		return t.Render()
	}
	return t.Render() + "\n" + "The brakes keep orders open that are due, these and perhaps more: see lapse brakes."
}

// endedEarly is the error of a run that says why it was broken off.
func endedEarly(run, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("the %s ended early: %w", run, errors.New(why))
}

func reconcileCommand(src *app.Source) *cobra.Command {
	var mend bool
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Look for damage in what is stored, and mend it with --mend",
		Long: `Asks a running producer (or lapse dev) to compare orders, ledger, counters, messages and late payments with each
other. By itself it only says what it would do; with --mend it does it. Harmless at any time: the compensator does it every
night. Exit code 1 if damage is left.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&mend, "mend", false, "mend what can be mended")
	return remote(src, cmd, question[*lapsev1.ReconcileRun]{
		timeout: runTimeout,
		ask: func(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.ReconcileRun, error) {
			return lapsev1.NewOperatorServiceClient(api).Reconcile(ctx, &lapsev1.ReconcileRequest{DryRun: new(!mend)})
		},
		show:  reconciliation,
		judge: left,
	})
}

// left is the error of a run that leaves damage, or was broken off.
func left(run *lapsev1.ReconcileRun) error {
	err := endedEarly("reconciliation", run.GetError())
	if n := run.GetFound() - run.GetMended(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d findings are not mended", n, run.GetFound()))
	}
	return err
}

// reconciliation shows what a run found, and sums it up.
func reconciliation(run *lapsev1.ReconcileRun) string {
	found, sum := table.NewWriter(), table.NewWriter()
	found.AppendHeader(table.Row{"damage", "of", "what", "action", "mended"})
	for _, f := range run.GetFindings() {
		found.AppendRow(table.Row{f.GetKind(), f.GetSubject(), f.GetDetail(), f.GetAction(), yes(f.GetMended())})
	}
	sum.AppendHeader(table.Row{"run", "by", "took", "dry run", "looked at", "found", "mended"})
	sum.AppendRow(table.Row{
		run.GetId(), run.GetOwner(), run.GetFinishedAt().AsTime().Sub(run.GetStartedAt().AsTime()), yes(run.GetDryRun()), run.GetLooked(), run.GetFound(), run.GetMended(),
	})
	if len(run.GetFindings()) == 0 {
		return sum.Render()
	}
	return found.Render() + "\n" + sum.Render()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
