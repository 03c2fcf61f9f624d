package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
)

func brakesCommand(src *app.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brakes",
		Short: "Show what stops the closing of due orders, or set it",
		Long: `Shows the mode of closing (enforce closes; shadow only notes what it would close; off does nothing), for which share of
users it holds, and whether the mass-cancel breaker has stopped it.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(setBrakesCommand(src))
	return remote(src, cmd, question[*lapsev1.Brakes]{
		ask: func(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.Brakes, error) {
			return lapsev1.NewOperatorServiceClient(api).GetBrakes(ctx, &lapsev1.GetBrakesRequest{})
		},
		show: brakesTable,
	})
}

// setBrakes is what the flags of `lapse brakes set` say.
type setBrakes struct {
	mode    string
	percent int32
	byType  map[string]string
	version int32
	resume  bool
	reason  string
	says    func(flag string) bool // whether the command line has it
}

func setBrakesCommand(src *app.Source) *cobra.Command {
	var s setBrakes
	cmd := &cobra.Command{
		Use:   "set --reason WHY",
		Short: "Change the brakes; what no flag names stays as it is",
		Long: `Changes the brakes on closing. They hold from the answer on. While they stop closing nothing is lost: what is due is closed,
at a stated rate, once it is enforced again.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&s.mode, "mode", "", "enforce, shadow or off")
	flags.Int32Var(&s.percent, "percent", 0, "share of users whose orders are closed, 0 to 100; those of the others are only noted")
	flags.StringToStringVar(&s.byType, "type", nil, "the share for a business `type=percent`; type=default for none of its own")
	flags.Int32Var(&s.version, "version", 0, "refuse if the brakes have another version by now (default: do not ask)")
	flags.BoolVar(&s.resume, "resume", false, "let closing go on after the mass-cancel breaker has stopped it")
	flags.Lookup("type").DefValue = ""
	s.says = flags.Changed
	reasonFlag(cmd, &s.reason)
	return remote(src, cmd, question[*lapsev1.Brakes]{ask: s.ask, show: brakesTable})
}

func (s *setBrakes) ask(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.Brakes, error) {
	req, err := s.change()
	if err != nil {
		return nil, err
	}
	return lapsev1.NewOperatorServiceClient(api).SetBrakes(ctx, req)
}

// change is the request that changes what the flags name.
func (s *setBrakes) change() (*lapsev1.SetBrakesRequest, error) {
	req := &lapsev1.SetBrakesRequest{Mode: s.mode, ByType: map[string]int32{}, Version: s.version, Resume: s.resume, Reason: s.reason}
	if s.says("percent") {
		req.Percent = &s.percent
	}
	for bizType, share := range s.byType {
		if share == "default" {
			req.ByDefault = append(req.ByDefault, bizType)
			continue
		}
		percent, err := strconv.ParseInt(share, 10, 32)
		if err != nil {
			return nil, app.UsageError("lapse brakes set", "--type: write %s=percent or %s=default", bizType, bizType)
		}
		req.ByType[bizType] = int32(percent)
	}
	return req, nil
}

func brakesTable(b *lapsev1.Brakes) string {
	var byType []string
	for _, bizType := range slices.Sorted(maps.Keys(b.GetByType())) {
		byType = append(byType, fmt.Sprintf("%s %d%%", bizType, b.GetByType()[bizType]))
	}
	tripped := "no"
	if b.GetTripped() != "" {
		tripped = clock(b.GetTrippedAt()) + ": " + b.GetTripped()
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"mode", "closed for", "by type", "stopped by the breaker", "version"})
	t.AppendRow(table.Row{b.GetMode(), fmt.Sprintf("%d%%", b.GetPercent()), strings.Join(byType, ", "), tripped, b.GetVersion()})
	return t.Render()
}

func shadowReportCommand(src *app.Source) *cobra.Command {
	var since, tolerance time.Duration
	var job string
	cmd := &cobra.Command{
		Use:   "shadow-report",
		Short: "Compare what would have been closed with what your existing job did close",
		Long: `While closing is in shadow, or for users it is not rolled out to, what would be closed is only noted. This compares the notes
with what your existing job closed meanwhile, which it reports by cancelling as staff: early, late, missed, or wrong because
the order was paid. What was cancelled while nothing was noted does not count. Say --job, so that what other staff cancel does
not count, either.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&since, "since", 24*time.Hour, "look at what was decided within so long")
	cmd.Flags().DurationVar(&tolerance, "tolerance", time.Minute, "how much later the job may close")
	cmd.Flags().StringVar(&job, "job", "", "the name of the token that the job cancels with (default: whoever cancels as staff)")
	return remote(src, cmd, question[*lapsev1.ShadowReport]{
		timeout: runTimeout,
		ask: func(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.ShadowReport, error) {
			if since <= 0 {
				return nil, app.UsageError("lapse shadow-report", "--since: more than 0s")
			}
			return lapsev1.NewOperatorServiceClient(api).GetShadowReport(ctx, &lapsev1.GetShadowReportRequest{
				From: timestamppb.New(time.Now().Add(-since)), Tolerance: durationpb.New(tolerance), Job: job,
			})
		},
		show: shadowTable,
	})
}

func shadowTable(r *lapsev1.ShadowReport) string {
	sum := table.NewWriter()
	sum.AppendHeader(table.Row{"would close", "job closed", "agreed", "early", "late", "missed", "wrong", "coverage"})
	sum.AppendRow(table.Row{
		r.GetDecided(), r.GetClosed(), r.GetAgreed(), r.GetEarly(), r.GetLate(), r.GetMissed(), r.GetWrong(), fmt.Sprintf("%.1f%%", 100*r.GetCoverage()),
	})
	if len(r.GetExamples()) == 0 {
		return sum.Render()
	}
	examples := table.NewWriter()
	examples.AppendHeader(table.Row{"order", "", "deadline", "would be closed at", "ended at"})
	for _, e := range r.GetExamples() {
		examples.AppendRow(table.Row{e.GetOrderNo(), e.GetKind(), clock(e.GetExpireAt()), clock(e.GetDecidedAt()), clock(e.GetEndedAt())})
	}
	return sum.Render() + "\n" + examples.Render()
}
