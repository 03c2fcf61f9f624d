package app

import "slices"

// Key is one setting. The table that Keys returns is the only place that lists them: defaults,
// validation, the refusal of unknown names, reload, the printed configuration and the reference in
// docs/configuration.md all come from it.
type Key struct {
	Name    string // as in the file: section.name
	Default string // as written in the file; "" means none
	Doc     string // what it does
	Live    bool   // a changed file takes effect without a restart
	Secret  bool   // never printed; may also be given as the path of a file, under Name + "_file"

	value value // bound to its field of a Config
}

// Env is the environment variable of the key.
func (k Key) Env() string { return envName(k.Name) }

// fileName is the name under which a secret's file is given.
func (k Key) fileName() string { return k.Name + "_file" }

// live marks keys that are reloaded.
func live(keys ...Key) []Key {
	for i := range keys {
		keys[i].Live = true
	}
	return keys
}

// Keys is the table of all settings, bound to the fields of c.
func (c *Config) Keys() []Key {
	return slices.Concat(
		c.databaseKeys(), c.brokerKeys(), c.delayKeys(), c.orderKeys(), c.limitKeys(), c.lifeKeys(), c.hookKeys(), c.createKeys(), c.closeKeys(), c.relayKeys(),
		c.sweepKeys(), c.breakerKeys(), c.reconcileKeys(), c.houseKeys(), c.serverKeys(), c.opsKeys(), c.authKeys(), c.paymentKeys(), c.logKeys(), c.shutdownKeys(),
	)
}

func (c *Config) databaseKeys() []Key {
	d := &c.Database
	return []Key{
		{Name: "database.driver", Default: "mysql", value: choice(&d.Driver, "mysql", "sqlite"),
			Doc: "`mysql` also means MariaDB. `sqlite` is for one process, as in `lapse dev`."},
		{Name: "database.dsn", Secret: true, value: text(&d.DSN),
			Doc: "Where the primary is: `user:password@tcp(host:3306)/lapse`, or the path of the SQLite file. Required."},
		{Name: "database.replica_dsn", Secret: true, value: text(&d.ReplicaDSN),
			Doc: "A read replica for the compensator's scans. Without it they read the primary."},
		{Name: "database.replica_max_lag", Default: "5s", value: duration(&d.ReplicaMaxLag, millisecond, hour),
			Doc: "A replica that lags more than this is not read; the scan goes to the primary."},
		{Name: "database.max_conns", Default: "16", value: integer(&d.MaxConns, 1, 1000),
			Doc: "Connections to the database, each process. More than 16 cost latency and bring no throughput."},
	}
}

func (c *Config) brokerKeys() []Key {
	b := &c.Broker
	return []Key{
		{Name: "broker.driver", Default: "rocketmq", value: choice(&b.Driver, "rocketmq", "local"),
			Doc: "`local` needs no broker and works only with all roles in one process, as in `lapse dev`."},
		{Name: "broker.name_servers", value: list(&b.NameServers),
			Doc: "RocketMQ name servers, each `host:port`, with or without `http://` before it. Required with `rocketmq`."},
		{Name: "broker.access_key", Secret: true, value: text(&b.AccessKey), Doc: "ACL user. Empty: no ACL."},
		{Name: "broker.secret_key", Secret: true, value: text(&b.SecretKey), Doc: "ACL password."},
		{Name: "broker.tls.enabled", Default: "false", value: boolean(&b.TLS.Enabled), Doc: "Speak TLS to name servers and brokers. The client library does not verify who answers."},
		{Name: "broker.tls.ca_file", value: text(&b.TLS.CAFile), Doc: "PEM file of the authority that must have signed the servers' certificates; checked at start and when offsets are asked for. Empty: not checked."},
		{Name: "broker.tls.server_name", value: text(&b.TLS.ServerName), Doc: "Name expected in the servers' certificates. Empty: the dialled host."},
		{Name: "broker.timeout_topic", Default: "order-timeout", value: word(&b.TimeoutTopic), Doc: "Topic of the delayed time-out messages."},
		{Name: "broker.event_topic", Default: "order-event", value: word(&b.EventTopic), Doc: "Topic of the events for subscribers."},
		{Name: "broker.group", Default: "lapse-closer", value: word(&b.Group), Doc: "Consumer group of the closers."},
		{Name: "broker.queues", Default: "8", value: integer(&b.Queues, 1, 1024), Doc: "Queues of a topic that is made at start."},
		{Name: "broker.create_topics", Default: "true", value: boolean(&b.CreateTopics),
			Doc: "Make missing topics at start. `false`: say which are missing and how to make them."},
		{Name: "broker.trace", Default: "true", value: boolean(&b.Trace), Doc: "Record the message trace of both ends, for the RocketMQ console."},
	}
}

func (c *Config) delayKeys() []Key {
	d := &c.Delay
	return []Key{
		{Name: "delay.mode", Default: "timer", value: choice(&d.Mode, "timer", "levels"),
			Doc: "`timer` needs RocketMQ 5. `levels` steps through the 18 delay levels of RocketMQ 4."},
		{Name: "delay.grace", Default: "1s", value: duration(&d.Grace, 0, minute),
			Doc: "How long after its deadline an order's time-out message is due. Never early, so a little late on purpose."},
		{Name: "delay.horizon", Default: "24h", value: duration(&d.Horizon, minute, 72*hour),
			Doc: "Deadlines further away wait in the database until they are this near. RocketMQ refuses more than 72h."},
	}
}

func (c *Config) orderKeys() []Key {
	t := &c.Order.Timeout
	keys := []Key{
		{Name: "order.timeout.default", Default: "30m", value: duration(&t.Default, second, 90*day), Doc: "Time to pay for orders that name none."},
		{Name: "order.timeout.min", Default: "1s", value: duration(&t.Min, 100*millisecond, 90*day), Doc: "Shortest time to pay that a caller may ask for."},
		{Name: "order.timeout.max", Default: "2160h", value: duration(&t.Max, second, 90*day), Doc: "Longest time to pay that a caller may ask for (2160h are 90 days)."},
	}
	for _, k := range c.Order.Rule.keys() {
		k.Name = "order." + k.Name
		keys = append(keys, live(k)...)
	}
	return append(keys, Key{Name: "order.biz_types", Live: true, value: bizTypes(&c.Order.BizTypes),
		Doc: "Business types that are treated otherwise: `[{name: ticket, late: refund, on_expiry: remind, …}]` with the settings above, from `late` on."})
}

func (c *Config) limitKeys() []Key {
	l := &c.Limit
	return []Key{
		{Name: "limit.caller_rate", Default: "0", value: integer(&l.CallerRate, 0, 1_000_000),
			Doc: "Calls a second that one caller (a name in `auth.tokens`) may make of a process; twice as many at once. 0: any number."},
		{Name: "limit.user_pending", Default: "0", Live: true, value: integer(&l.UserPending, 0, 1_000_000),
			Doc: "Orders of one user that may wait to be paid; what they hold nobody else can buy. 0: any number."},
		{Name: "limit.user_minute", Default: "0", Live: true, value: integer(&l.UserMinute, 0, 1_000_000), Doc: "Orders that one user may make within a minute. 0: any number."},
	}
}

func (c *Config) lifeKeys() []Key {
	return []Key{
		{Name: "resource.remote_kinds", Live: true, value: list(&c.Resource.RemoteKinds),
			Doc: "Kinds of resources that other services hold: they give back when they read the `cancelled` event, and acknowledge it."},
		{Name: "attempt.default", Default: "15m", Live: true, value: duration(&c.Attempt.Default, second, day), Doc: "How long a payment attempt may take that names no time."},
		{Name: "attempt.longest", Default: "1h", Live: true, value: duration(&c.Attempt.Longest, second, day), Doc: "Longest time that a payment attempt may ask for."},
		{Name: "gateway.url", value: text(&c.Gateway.URL),
			Doc: "Where the payment gateway is asked about payments in flight (docs/gateway.md). Empty: nobody is asked, and an order is closed at its deadline."},
		{Name: "gateway.token", Secret: true, value: text(&c.Gateway.Token), Doc: "Bearer token that the gateway wants."},
		{Name: "gateway.timeout", Default: "3s", Live: true, value: duration(&c.Gateway.Timeout, 10*millisecond, 30*second), Doc: "How long one question to the gateway may take."},
		{Name: "confirm.for", Default: "10m", Live: true, value: duration(&c.Confirm.For, second, day), Doc: "How long the gateway is asked about an order that fell due with a payment in flight."},
		{Name: "confirm.end", Default: "cancel", Live: true, value: choice(&c.Confirm.End, "cancel", "hold"),
			Doc: "What becomes of an order that is still in doubt then: it is cancelled, or stays for a person."},
	}
}

func (c *Config) hookKeys() []Key {
	h := &c.Hook
	return []Key{
		{Name: "hook.url", value: text(&h.URL),
			Doc: "Where the owner of adopted items is called (docs/adopt.md): close and due are below it. Empty: nobody is, and items wait."},
		{Name: "hook.secret", Secret: true, value: text(&h.Secret), Doc: "HMAC key that signs these calls. Needed with `hook.url`."},
		{Name: "hook.timeout", Default: "3s", Live: true, value: duration(&h.Timeout, 10*millisecond, 30*second), Doc: "How long one such call may take."},
		{Name: "hook.interval", Default: "1m", Live: true, value: duration(&h.Interval, 100*millisecond, day),
			Doc: "Time between two searches for items that are due for longer than `sweep.overdue` and `delay.grace` together."},
	}
}

func (c *Config) createKeys() []Key {
	return live(
		Key{Name: "create.group_size", Default: "256", value: integer(&c.Create.GroupSize, 1, 1000), Doc: "Most orders that are created in one transaction."},
		Key{Name: "create.linger", Default: "2ms", value: duration(&c.Create.Linger, 0, second),
			Doc: "How long a create waits for others to share its transaction. A lone caller does not wait."},
	)
}

func (c *Config) closeKeys() []Key {
	return live(
		Key{Name: "close.batch_size", Default: "500", value: integer(&c.Close.BatchSize, 1, 2000), Doc: "Most orders that are closed in one transaction."},
		Key{Name: "close.linger", Default: "20ms", value: duration(&c.Close.Linger, 0, second), Doc: "How long a due order waits for others to share its transaction."},
	)
}

// leastLease leaves a send its 3 s, twice, and time to note it.
const leastLease = 7 * second

func (c *Config) relayKeys() []Key {
	return live(
		Key{Name: "relay.poll_interval", Default: "1s", value: duration(&c.Relay.PollInterval, 10*millisecond, minute),
			Doc: "How often the local messages are looked through for what was left unsent."},
		Key{Name: "relay.lease", Default: "10s", value: duration(&c.Relay.Lease, leastLease, hour),
			Doc: "How long a claimed message belongs to its process; the time until another one takes over after a crash. More than twice what a send may take (3s), or messages are sent twice."},
		Key{Name: "relay.max_attempts", Default: "16", value: integer(&c.Relay.MaxAttempts, 1, 1000),
			Doc: "Refusals of a message by the broker until it is quarantined. An outage is no refusal."},
	)
}

func (c *Config) sweepKeys() []Key {
	s := &c.Sweep
	return live(
		Key{Name: "sweep.interval", Default: "1m", value: duration(&s.Interval, 100*millisecond, day), Doc: "Time between two rounds of the compensator."},
		Key{Name: "sweep.overdue", Default: "30s", value: duration(&s.Overdue, 0, day),
			Doc: "The compensator leaves an order to its message until it is due for longer than this and `delay.grace` together."},
		Key{Name: "sweep.limit", Default: "200", value: integer(&s.Limit, 1, 2000), Doc: "Orders read and closed at a time."},
		Key{Name: "sweep.pause", Default: "50ms", value: duration(&s.Pause, 0, minute), Doc: "Rest between two such batches of a shard, to spare the database; less than half of `sweep.lease`."},
		Key{Name: "sweep.cap", Default: "100000", value: integer(&s.Cap, 1, 100_000_000), Doc: "Most orders that one run looks at; the next run goes on."},
		Key{Name: "sweep.rate", Default: "500", value: integer(&s.Rate, 1, 100_000),
			Doc: "Orders a second that a compensator's rounds close at most, as after closing was off. `lapse sweep --now` knows no such limit."},
		Key{Name: "sweep.lease", Default: "30s", value: duration(&s.Lease, second, hour), Doc: "How long a shard belongs to one compensator without a sign of life."},
	)
}

func (c *Config) breakerKeys() []Key {
	b := &c.Breaker
	return live(
		Key{Name: "breaker.enabled", Default: "true", value: boolean(&b.Enabled),
			Doc: "Stop closing when payments cease to come in while payment attempts go on, as in an outage of notifications (docs/switch-over.md)."},
		Key{Name: "breaker.interval", Default: "10s", value: duration(&b.Interval, 100*millisecond, hour), Doc: "Time between two looks."},
		Key{Name: "breaker.settle", Default: "2m", value: duration(&b.Settle, second, hour), Doc: "How long an attempt is given to be paid before it counts; one that takes longer counts as unpaid. Most of those that are paid at all should be by then."},
		Key{Name: "breaker.attempts", Default: "200", value: integer(&b.Attempts, 20, 100_000), Doc: "How many of the newest settled attempts are judged, by those before them; fewer in a day decide nothing."},
		Key{Name: "breaker.drop", Default: "30", value: integer(&b.Drop, 1, 99), Doc: "It trips when their paid share is less than so many percent of the usual one."},
		Key{Name: "breaker.floor", Default: "5", value: integer(&b.Floor, 1, 99), Doc: "The least paid share in percent that is ever normal, and what it judges by where there are too few attempts to know the usual one."},
		Key{Name: "breaker.resume", Default: "manual", value: choice(&b.Resume, "manual", "auto"), Doc: "`auto`: closing goes on by itself when payments are back; else by `lapse brakes set --resume`."},
	)
}

func (c *Config) reconcileKeys() []Key {
	r := &c.Reconcile
	return live(
		Key{Name: "reconcile.interval", Default: "24h", value: duration(&r.Interval, minute, 90*day), Doc: "Time from one reconciliation to the next (docs/reconcile.md)."},
		Key{Name: "reconcile.rate", Default: "2000", value: integer(&r.Rate, 1, 1_000_000), Doc: "Rows a second that a reconciliation looks at, to spare the database."},
		Key{Name: "reconcile.overdue", Default: "10m", value: duration(&r.Overdue, minute, day), Doc: "How long what should happen at once may take before it is mended."},
		Key{Name: "reconcile.ack", Default: "24h", value: duration(&r.Ack, minute, 90*day), Doc: "How long a remote service may take to acknowledge a release before it is told again."},
		Key{Name: "reconcile.case", Default: "72h", value: duration(&r.Case, minute, 90*day), Doc: "How long a late-payment case may wait for a person or a refund before somebody is told again."},
	)
}

func (c *Config) houseKeys() []Key {
	h := &c.House
	return live(
		Key{Name: "house.interval", Default: "1h", value: duration(&h.Interval, second, 90*day), Doc: "Time between two rounds of the compensator's housekeeping."},
		Key{Name: "house.archive_after", Default: "4320h", value: duration(&h.ArchiveAfter, minute, 3650*day), Doc: "A cancelled order may be restored for so long, then it is closed for good (4320h are 180 days)."},
		Key{Name: "house.retention", Default: "9600h", value: duration(&h.Retention, hour, 3650*day),
			Doc: "What ended so long ago is deleted: paid and closed orders with all that belongs to them, records of runs and of shadow decisions, refused payments (9600h are 400 days)."},
	)
}

func (c *Config) serverKeys() []Key {
	s := &c.Server
	return []Key{
		{Name: "server.addr", Default: ":8080", value: text(&s.Addr), Doc: "Where the API (HTTP and gRPC) listens."},
		{Name: "server.tls.cert_file", value: text(&s.TLS.CertFile), Doc: "PEM file of the API's certificate, with `server.tls.key_file`. Empty: plain text."},
		{Name: "server.tls.key_file", value: text(&s.TLS.KeyFile), Doc: "PEM file of the API's key."},
	}
}

func (c *Config) opsKeys() []Key {
	return []Key{
		{Name: "ops.addr", Default: ":9090", value: text(&c.Ops.Addr), Doc: "Where /healthz, /readyz and /metrics listen. Not for the public."},
		{Name: "ops.pprof", Default: "false", value: boolean(&c.Ops.Pprof), Doc: "Serve Go's profiles under /debug/pprof/ there."},
	}
}

func (c *Config) authKeys() []Key {
	return []Key{
		{Name: "auth.tokens", Secret: true, value: tokens(&c.Auth.Tokens),
			Doc: "Bearer tokens of the API: `[{name, token or token_file, scopes}]`; scopes are `order`, `payment`, `operator`. Required by the producer."},
	}
}

func (c *Config) paymentKeys() []Key {
	return []Key{
		{Name: "payment.secrets", Secret: true, value: list(&c.Payment.Secrets),
			Doc: "HMAC keys of payment notifications; any of them is accepted, so that they can be changed. Required by the producer."},
		{Name: "payment.tolerance", Default: "5m", value: duration(&c.Payment.Tolerance, second, day), Doc: "How far a notification's time stamp may be off."},
	}
}

func (c *Config) logKeys() []Key {
	return []Key{
		{Name: "log.level", Default: "info", Live: true, value: choice(&c.Log.Level, "debug", "info", "warn", "error"), Doc: "Least severe level that is logged."},
		{Name: "log.format", Default: "json", value: choice(&c.Log.Format, "json", "console"), Doc: "Form of the log lines on stderr."},
	}
}

func (c *Config) shutdownKeys() []Key {
	return []Key{
		{Name: "shutdown.timeout", Default: "30s", value: duration(&c.Shutdown.Timeout, 100*millisecond, 10*minute),
			Doc: "Most time from the signal to the end of the process. With a gateway or a hook more than three times what a stop may wait for them: twice `gateway.timeout`, and `hook.timeout`."},
	}
}
