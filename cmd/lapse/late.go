package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
)

// reasonFlag is the flag of all that is done by hand.
func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why; it is kept with the name of the token (needed)")
}

func lateCommand(src *app.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "late",
		Short: "Money that came too late: list the cases, decide one",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return app.UsageError("lapse late", "say list or decide") },
	}
	cmd.AddCommand(lateListCommand(src), lateDecideCommand(src))
	return cmd
}

func lateListCommand(src *app.Source) *cobra.Command {
	const all = "all"
	var status string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List late-payment cases, oldest first",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&status, "status", "open", "open, requested, refunded, consumed or "+all)
	return remote(src, cmd, question[*lapsev1.ListLatePaymentsResponse]{
		ask: func(ctx context.Context, api *grpc.ClientConn, _ []string) (*lapsev1.ListLatePaymentsResponse, error) {
			if status == all {
				status = ""
			}
			return allLatePayments(ctx, lapsev1.NewOperatorServiceClient(api), status)
		},
		show: func(r *lapsev1.ListLatePaymentsResponse) string { return lateTable(r.GetLatePayments()...) },
	})
}

// allLatePayments reads all pages.
func allLatePayments(ctx context.Context, operator lapsev1.OperatorServiceClient, status string) (*lapsev1.ListLatePaymentsResponse, error) {
	all := &lapsev1.ListLatePaymentsResponse{}
	req := &lapsev1.ListLatePaymentsRequest{Status: status, PageSize: 100}
	for {
		page, err := operator.ListLatePayments(ctx, req)
		if err != nil {
			return nil, err
		}
		all.LatePayments = append(all.LatePayments, page.GetLatePayments()...)
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return all, nil
		}
	}
}

func lateDecideCommand(src *app.Source) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "decide PAYMENT_NO refund|reopen --reason WHY",
		Short: "Have a late payment refunded, or open its order again with it",
		Long: `Decides an open case. refund asks for the money to be given back, by one event refund_requested; say lapse refunded
once that is done. reopen opens the order again, paid; it is refused when what the order held cannot be had any more.`,
		Args: cobra.ExactArgs(2),
	}
	reasonFlag(cmd, &reason)
	return remote(src, cmd, question[*lapsev1.LatePayment]{
		ask: func(ctx context.Context, api *grpc.ClientConn, args []string) (*lapsev1.LatePayment, error) {
			return lapsev1.NewOperatorServiceClient(api).DecideLatePayment(ctx, &lapsev1.DecideLatePaymentRequest{PaymentNo: args[0], Decision: args[1], Reason: reason})
		},
		show: func(l *lapsev1.LatePayment) string { return lateTable(l) },
	})
}

func lateTable(cases ...*lapsev1.LatePayment) string {
	if len(cases) == 0 {
		return "no late payments"
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"payment", "order", "amount", "paid at", "the order was", "policy", "status", "by", "why"})
	for _, l := range cases {
		why := l.GetNote()
		if why == "" {
			why = l.GetWhy()
		}
		t.AppendRow(table.Row{
			l.GetPaymentNo(), l.GetOrderNo(), fmt.Sprint(l.GetAmount(), " ", l.GetCurrency()), clock(l.GetPaidAt()), l.GetOrderStatus(), l.GetPolicy(), l.GetStatus(), l.GetActor(), why,
		})
	}
	return t.Render()
}

// clock writes an instant; nothing if there is none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

func refundedCommand(src *app.Source) *cobra.Command {
	var refundNo, reason string
	cmd := &cobra.Command{
		Use:   "refunded PAYMENT_NO --refund-no NO --reason WHY",
		Short: "Report that a payment was given back",
		Long: `Records that a refund was completed: of a late payment whose refund was requested, or of a paid order, which is closed
by it. Lapse moves no money itself.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&refundNo, "refund-no", "", "the channel's number of the refund (needed)")
	reasonFlag(cmd, &reason)
	return remote(src, cmd, question[*lapsev1.Order]{
		ask: func(ctx context.Context, api *grpc.ClientConn, args []string) (*lapsev1.Order, error) {
			return lapsev1.NewOperatorServiceClient(api).CompleteRefund(ctx, &lapsev1.CompleteRefundRequest{PaymentNo: args[0], RefundNo: refundNo, Reason: reason})
		},
		show: orderTable,
	})
}
