package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"lapse/pkg/app"
	"lapse/pkg/order"
)

// payTimes is the report of one business type as JSON; times are seconds.
type payTimes struct {
	BizType     string   `json:"biz_type"`
	Payers      int64    `json:"payers"`
	P50         float64  `json:"p50_s"`
	P90         float64  `json:"p90_s"`
	P95         float64  `json:"p95_s"`
	P99         float64  `json:"p99_s"`
	Recommended float64  `json:"recommended_s"` // 0: not to be said
	Censored    bool     `json:"censored"`
	Choices     []choice `json:"choices"`
}

type payTimesReport struct {
	BizTypes []payTimes `json:"biz_types"`
}

type choice struct {
	Timeout float64 `json:"timeout_s"`
	CutOff  float64 `json:"cut_off"`
}

func paytimeCommand(src *app.Source) *cobra.Command {
	var asJSON bool
	var window time.Duration
	cmd := &cobra.Command{
		Use:   "paytime",
		Short: "Recommend a time-out from how long payers really take",
		Long: `Reads from the configured database how long the payers of each business type took, those included whose money came
too late, and says for each usual time-out which share of them it would have cut off. Recommended is the shortest one that
cuts off at most 1 %. Whoever the time-outs of the day cut off for good was never seen to pay: where the tail touches them,
the report says so, and a longer time-out has to be tried to know more. It changes nothing and may run beside a live system.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			reports, err := app.PayTimes(cmd.Context(), c, window)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), payTimesOf(reports))
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), payTimesTable(reports))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&window, "since", 30*24*time.Hour, "look at orders whose deadline was within so long")
	return cmd
}

func payTimesOf(reports []order.PayReport) payTimesReport {
	out := payTimesReport{BizTypes: []payTimes{}}
	for _, r := range reports {
		p := payTimes{
			BizType: r.BizType, Payers: r.Payers, P50: r.P50.Seconds(), P90: r.P90.Seconds(), P95: r.P95.Seconds(), P99: r.P99.Seconds(),
			Recommended: r.Recommended.Seconds(), Censored: r.Censored,
		}
		for _, c := range r.Choices {
			p.Choices = append(p.Choices, choice{c.Timeout.Seconds(), c.CutOff})
		}
		out.BizTypes = append(out.BizTypes, p)
	}
	return out
}

func payTimesTable(reports []order.PayReport) string {
	if len(reports) == 0 {
		return "nobody has paid in that time\n"
	}
	percentiles, choices := table.NewWriter(), table.NewWriter()
	for _, t := range []table.Writer{percentiles, choices} {
		t.Style().Format.Header = text.FormatDefault // 30m are minutes
	}
	percentiles.AppendHeader(table.Row{"business type", "payers", "P50", "P90", "P95", "P99", "recommended time-out", "remark"})
	header := table.Row{"business type"}
	for _, c := range reports[0].Choices {
		header = append(header, short(c.Timeout))
	}
	choices.AppendHeader(header)
	for _, r := range reports {
		recommended, remark := "too few payers to say", ""
		if r.Recommended > 0 {
			recommended = short(r.Recommended)
		}
		if r.Censored {
			remark = "the tail was cut off by the time-out of the day"
		}
		percentiles.AppendRow(table.Row{r.BizType, r.Payers, r.P50, r.P90, r.P95, r.P99, recommended, remark})
		row := table.Row{r.BizType}
		for _, c := range r.Choices {
			row = append(row, fmt.Sprintf("%.1f%%", 100*c.CutOff))
		}
		choices.AppendRow(row)
	}
	return "How long payers took:\n" + percentiles.Render() + "\nShare of payers that a time-out of so long would have cut off:\n" + choices.Render() + "\n"
}

// short writes whole minutes or hours.
func short(d time.Duration) string {
	if d < time.Hour || d%time.Hour != 0 {
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh", int(d.Hours()))
}
