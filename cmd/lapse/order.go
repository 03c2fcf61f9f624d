package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
)

func orderCommand(src *app.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "order",
		Short: "Change an order by hand: cancel, restore, extend or archive it",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return app.UsageError("lapse order", "say cancel, restore, extend or archive")
		},
	}
	cmd.AddCommand(cancelCommand(src), restoreCommand(src), extendCommand(src), archiveCommand(src))
	return cmd
}

func cancelCommand(src *app.Source) *cobra.Command {
	var reason string
	var force bool
	cmd := &cobra.Command{
		Use:   "cancel ORDER_NO --reason WHY",
		Short: "Cancel an order that is not paid",
		Long: `Cancels an order as staff (MANUAL). While a payment is in flight it is confirming first, until the gateway has closed its
bill: the command does not wait for that, says so, and exits with 0. With --json, look at the status.`,
		Args: cobra.ExactArgs(1),
	}
	reasonFlag(cmd, &reason)
	cmd.Flags().BoolVar(&force, "force", false, "cancel also an order whose confirm deadline has passed undecided")
	return remote(src, cmd, question[*lapsev1.Order]{
		ask: func(ctx context.Context, api *grpc.ClientConn, args []string) (*lapsev1.Order, error) {
			return lapsev1.NewOrderServiceClient(api).CancelOrder(ctx, &lapsev1.CancelOrderRequest{OrderNo: args[0], Reason: reason, Force: force})
		},
		show: cancelled,
	})
}

// cancelled shows an order that is cancelled, or is going to be once its gateway has spoken.
func cancelled(o *lapsev1.Order) string {
	if o.GetStatus() != "confirming" {
		return orderTable(o)
	}
	return orderTable(o) + fmt.Sprintf("\nNot cancelled yet: a payment is in flight and the gateway is asked. %s is cancelled when it confirms that no money comes;\n"+
		"what is not known by %s ends as confirm.end says.", o.GetOrderNo(), clock(o.GetConfirmUntil()))
}

func restoreCommand(src *app.Source) *cobra.Command {
	var reason string
	var round int32
	var payWithin time.Duration
	cmd := &cobra.Command{
		Use:   "restore ORDER_NO --reason WHY",
		Short: "Open a cancelled order again",
		Long: `Opens a cancelled order again, in a new round: paid by its oldest open late payment if it has one, else pending with a new
deadline. Refused when what it held cannot be had any more.`,
		Args: cobra.ExactArgs(1),
	}
	reasonFlag(cmd, &reason)
	cmd.Flags().Int32Var(&round, "round", 0, "the cancelled round, which makes it harmless to say it again (default: the present one)")
	cmd.Flags().DurationVar(&payWithin, "pay-within", 0, "how long it may stay unpaid again (default: that of the settings)")
	return remote(src, cmd, question[*lapsev1.Order]{
		ask: func(ctx context.Context, api *grpc.ClientConn, args []string) (*lapsev1.Order, error) {
			return lapsev1.NewOrderServiceClient(api).RestoreOrder(ctx, &lapsev1.RestoreOrderRequest{OrderNo: args[0], Reason: reason, Round: round, Timeout: given(payWithin)})
		},
		show: orderTable,
	})
}

// given is an optional duration.
func given(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// extension is what the flags of `lapse order extend` say.
type extension struct {
	user, bizType string
	by            time.Duration
	until         time.Time
	reason        string
}

func extendCommand(src *app.Source) *cobra.Command {
	var e extension
	cmd := &cobra.Command{
		Use:   "extend [ORDER_NO] --by DURATION|--until TIME --reason WHY",
		Short: "Give pending orders more time: one, a user's or a business type's",
		Long: `Moves the deadline of an order, or of all pending orders of a user or a business type: later by a duration, or held until
an instant. A deadline never comes nearer. With --until it is harmless to say it again.`,
		Args: cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&e.user, "user", "", "all pending orders of this user")
	flags.StringVar(&e.bizType, "type", "", "all pending orders of this business type")
	flags.DurationVar(&e.by, "by", 0, "later by so much")
	flags.TimeVar(&e.until, "until", time.Time{}, []string{time.RFC3339}, "not before this instant, as in RFC 3339")
	reasonFlag(cmd, &e.reason)
	return remote(src, cmd, question[proto.Message]{timeout: runTimeout, ask: e.ask, show: e.show})
}

func (e *extension) ask(ctx context.Context, api *grpc.ClientConn, args []string) (proto.Message, error) {
	var until *timestamppb.Timestamp
	if !e.until.IsZero() {
		until = timestamppb.New(e.until)
	}
	switch many := e.user != "" || e.bizType != ""; {
	case many == (len(args) == 1):
		return nil, app.UsageError("lapse order extend", "say one of ORDER_NO, --user and --type")
	case many:
		return lapsev1.NewOperatorServiceClient(api).ExtendOrders(ctx, &lapsev1.ExtendOrdersRequest{UserId: e.user, BizType: e.bizType, Reason: e.reason, By: given(e.by), Until: until})
	}
	return lapsev1.NewOrderServiceClient(api).ExtendOrder(ctx, &lapsev1.ExtendOrderRequest{OrderNo: args[0], Reason: e.reason, By: given(e.by), Until: until})
}

func (e *extension) show(answer proto.Message) string {
	if o, ok := answer.(*lapsev1.Order); ok {
		return orderTable(o)
	}
	n := answer.(*lapsev1.ExtendOrdersResponse).GetExtended()
	if n > 0 {
		return fmt.Sprintf("%d orders extended", n)
	}
	whose := fmt.Sprintf("business type %q", e.bizType)
	if e.user != "" {
		whose = fmt.Sprintf("user %q", e.user)
	}
	return fmt.Sprintf("0 orders extended: %s has no pending order whose deadline this moves. Is it spelt as in the orders?", whose)
}

func archiveCommand(src *app.Source) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "archive ORDER_NO --reason WHY",
		Short: "Close a cancelled order for good, after its retention",
		Args:  cobra.ExactArgs(1),
	}
	reasonFlag(cmd, &reason)
	return remote(src, cmd, question[*lapsev1.Order]{
		ask: func(ctx context.Context, api *grpc.ClientConn, args []string) (*lapsev1.Order, error) {
			return lapsev1.NewOrderServiceClient(api).ArchiveOrder(ctx, &lapsev1.ArchiveOrderRequest{OrderNo: args[0], Reason: reason})
		},
		show: orderTable,
	})
}

func orderTable(o *lapsev1.Order) string {
	why := o.GetCancelReason()
	if o.GetStatus() == "confirming" {
		why = "not yet (" + why + ")"
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"order", "user", "type", "amount", "status", "cancelled for", "round", "expires at"})
	t.AppendRow(table.Row{
		o.GetOrderNo(), o.GetUserId(), o.GetBizType(), fmt.Sprint(o.GetAmount(), " ", o.GetCurrency()), o.GetStatus(), why, o.GetRound(), clock(o.GetExpireAt()),
	})
	return t.Render()
}
