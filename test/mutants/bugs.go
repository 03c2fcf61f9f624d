package main

// bug is a fault as somebody might make it.
type bug struct {
	name    string
	file    string // below the project's root
	old     string // stands there once
	new     string
	catcher string // packages
	tests   string // those that are to catch it, as go test -run has it
}

const (
	storeTests     = "./pkg/store"
	lifecycleTests = "./pkg/lifecycle"
)

var bugs = []bug{
	{
		"a deadline that has not passed is no reason to wait", "pkg/store/close.go",
		"WHERE order_no IN (?*) AND status = 0 AND expire_at <= ? ORDER BY order_no {skip}`",
		"WHERE order_no IN (?*) AND status = 0 AND expire_at <> ? ORDER BY order_no {skip}`",
		storeTests, "TestSQLite/(close|due)$",
	},
	{
		"an order is closed a second before its deadline", "pkg/store/close.go",
		"locked, err := t.orders(ctx, lockDueSQL, c.OrderNos, t.now)",
		"t.now = t.now.Add(time.Second)\n\tlocked, err := t.orders(ctx, lockDueSQL, c.OrderNos, t.now)",
		storeTests, "TestSQLite/(close|due)$",
	},
	{
		"what an order held is not given back", "pkg/store/cancel.go",
		"if err := t.release(ctx, orders); err != nil {\n\t\treturn nil, err\n\t}",
		"if err := t.loadItems(ctx, orders); err != nil {\n\t\treturn nil, err\n\t}",
		storeTests, "TestSQLite/(close|cancel)$",
	},
	{
		"a cancelled order is cancelled again, and gives back twice", "pkg/store/cancel.go",
		"case o.Status == order.Cancelled:\n\t\terr = t.loadItems(ctx, orders)",
		"case false:",
		storeTests, "TestSQLite/(close|cancel)$",
	},
	{
		"nobody is told of a cancellation", "pkg/store/cancel.go",
		"return t.insertMessages(ctx, events)",
		"return nil, nil",
		storeTests, "TestSQLite/(close|cancel)$",
	},
	{
		"the time-out row of a paid order stays", "pkg/store/pay.go",
		"if err := t.deleteTimeouts(ctx, []string{o.OrderNo}); err != nil {",
		"if err := t.deleteTimeouts(ctx, nil); err != nil {",
		storeTests, "TestSQLite/pay$",
	},
	{
		"a payment of another amount is believed", "pkg/order/payment.go",
		"if p.Amount != o.Amount {",
		"if p.Amount < 0 {",
		storeTests, "TestSQLite/pay$",
	},
	{
		"a payment is taken as often as it is told", "pkg/store/pay.go",
		`if outcome != "" {`,
		`if outcome == "?" {`,
		storeTests, "TestSQLite/(pay|late)$",
	},
	{
		"a payment pays an order that is not its own", "pkg/store/pay.go",
		"if err == nil && orderNo != p.OrderNo {",
		"if err == nil && orderNo == p.OrderNo+\"?\" {",
		storeTests, "TestSQLite/pay$",
	},
	{
		"money that comes too late leaves no case", "pkg/store/late.go",
		"return l, rows, t.record(ctx, p, l.Outcome())",
		"_, err = t.exec(ctx, \"DELETE FROM t_late_payment WHERE payment_no = ?\", l.PaymentNo)\n\treturn l, rows, err",
		storeTests, "TestSQLite/late$",
	},
	{
		"a restored order takes its things without asking whether they are there", "pkg/store/restore.go",
		"entries := ops(revived, taken, order.OpReserve)",
		"entries := ops(revived, nil, order.OpReserve)",
		storeTests, "TestSQLite/restore$",
	},
	{
		"an extended order keeps its old message", "pkg/store/close.go",
		"const rescheduleSQL = `UPDATE t_local_message SET hop = hop + 1,",
		"const rescheduleSQL = `UPDATE t_local_message SET hop = hop + 0,",
		storeTests, "TestSQLite/extend$",
	},
	{
		"whoever lost a lease settles all the same", "pkg/store/message.go",
		"own := f[fenceOf(m)]",
		"own := true",
		storeTests, "TestSQLite/message$",
	},
	{
		"a lease is not looked at when an order is closed", "pkg/store/close.go",
		"if c.Lease != nil {",
		"if c.Lease != nil && c.Lease.Shard < 0 {",
		storeTests, "TestSQLite/close$",
	},
	{
		"a shard is taken from whoever has it", "pkg/store/sweep.go",
		"const acquireSQL = `UPDATE t_lease SET owner = ?, token = token + 1, lease_until = ?\nWHERE shard = ? AND lease_until <= ? AND passed_at <= ?`",
		"const acquireSQL = `UPDATE t_lease SET owner = ?, token = token + 1, lease_until = ?\nWHERE shard = ? AND (lease_until <= ? OR 1 = 1) AND passed_at <= ?`",
		storeTests, "TestSQLite/(sweep|race)$",
	},
	{
		"closing goes on although it is off", "pkg/order/brake.go",
		"case b.Off():\n\t\treturn Wait",
		"case b.Off():\n\t\treturn Go",
		storeTests, "TestSQLite/brakes",
	},
	{
		"in shadow, orders are closed", "pkg/order/brake.go",
		"case b.Mode == ModeShadow:\n\t\treturn Record",
		"case b.Mode == ModeShadow:\n\t\treturn Go",
		storeTests, "TestSQLite/brakes",
	},
	{
		"a payment in flight does not delay the close", "pkg/store/close.go",
		"case c.Confirm > 0 && o.InFlight(t.now):",
		"case c.Confirm < 0 && o.InFlight(t.now):",
		storeTests, "TestSQLite/confirm",
	},
	{
		"an order in doubt is cancelled without a word of its gateway", "pkg/store/confirm.go",
		"case undecided && !late:",
		"case undecided && !late && v.Failed != \"\":",
		storeTests, "TestSQLite/confirm",
	},
	{
		"an order ends in doubt that nobody asked about", "pkg/lifecycle/confirm.go",
		"v.Unasked = true",
		"v.Unasked = false",
		lifecycleTests, "TestNoOrderEndsInDoubtWithoutAQuestion",
	},
	{
		"the last thing is sold twice", "pkg/order/resource.go",
		"case r.Available < quantity:\n\t\treturn Errorf(Conflict, \"out_of_stock\"",
		"case r.Available < quantity-1:\n\t\treturn Errorf(Conflict, \"out_of_stock\"",
		storeTests, "TestSQLite/(create|race)",
	},
	{
		"a coupon that has run out is given back", "pkg/store/resource.go",
		"if e.op == order.OpRelease && r.Expired(t.now) {",
		"if e.op == order.OpRelease && r.Expired(t.now) && r.Available < 0 {",
		storeTests, "TestSQLite/resource",
	},
	{
		"an order number means the newest order that was asked for", "pkg/store/create.go",
		"if o.RequestHash != d.Hash() {",
		"if o.RequestHash == d.Hash()+\"?\" {",
		storeTests, "TestSQLite/create",
	},
	{
		"an order is deleted while its event is not told", "pkg/store/purge.go",
		"return slices.DeleteFunc(nos, func(no string) bool { return slices.Contains(untold, no) }), err",
		"return slices.DeleteFunc(nos, func(no string) bool { return slices.Contains(untold, no+\"?\") }), err",
		storeTests, "TestSQLite/house",
	},
	{
		"any user may cancel any order", "pkg/store/cancel.go",
		"if userID != \"\" && o.UserID != userID {",
		"if userID == \"?\" && o.UserID != userID {",
		storeTests, "TestSQLite/cancel$",
	},
	{
		"a message is acknowledged before it has had its effect", "pkg/lifecycle/close.go",
		"for len(open) > 0 {\n\t\tleft, err := c.undecided(open, c.batches.Do(ctx, open...))",
		"go c.batches.Do(context.WithoutCancel(ctx), open...)\n\topen = nil\n\tfor len(open) > 0 {\n\t\tleft, err := c.undecided(open, c.batches.Do(ctx, open...))",
		lifecycleTests, "TestAnOutageOfTheDatabaseIsWaitedOutInPlace|TestABatchOfMessagesIsBisected",
	},
	{
		"a message that comes early is forgotten", "pkg/lifecycle/close.go",
		"c.postpone(ctx, sorted[\"early\"], c.relay.Schedule, c.relay.Offer),",
		"c.postpone(ctx, nil, c.relay.Schedule, c.relay.Offer),",
		lifecycleTests, "TestAMessageALittleEarlyIsScheduledAgain",
	},
	{
		"an unreadable message is dropped", "pkg/lifecycle/close.go",
		"if err := c.setAside(ctx, d, err, retry); err != nil {\n\t\t\t\treturn err\n\t\t\t}",
		"",
		lifecycleTests, "TestOldForgedAndUnreadableMessagesChangeNothing",
	},
	{
		"a message is taken for sent before it is", "pkg/lifecycle/relay.go",
		"\tvar receipt order.Receipt\n",
		"\tvar receipt order.Receipt\n\tr.settle.Put(context.WithoutCancel(ctx), order.Sent{Message: m})\n",
		lifecycleTests, "TestAnOutageOfTheBrokerCostsTimeAndNoAttempts|TestARowThatTheBrokerRefuses",
	},
	{
		"an outage of the broker is the message's fault", "pkg/lifecycle/relay.go",
		"case order.KindOf(err) == order.Unavailable:\n\t\tr.failed(ctx, way, m, err)",
		"case order.KindOf(err) == order.Unavailable:\n\t\tr.refused(ctx, m, err)",
		lifecycleTests, "TestAnOutageOfTheBrokerCostsTimeAndNoAttempts",
	},
	{
		"an error text in a 200 is an answer", "pkg/callout/callout.go",
		"case err != nil || media != \"application/json\":",
		"case err != nil && media == \"?\":",
		"./pkg/gateway ./pkg/hook", ".",
	},
	{
		"a notification that was signed long ago is believed", "pkg/server/signature.go",
		"off > v.age {",
		"off > 1000*v.age {",
		"./pkg/server", "Signature|Notification",
	},
}
