package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// Admin asks name servers and brokers what the client library cannot be asked. It holds no connection.
type Admin struct {
	opts     Options
	remoting *remoting
	log      *zap.Logger
}

// NewAdmin makes an Admin; it connects to nothing yet.
func NewAdmin(opts Options, log *zap.Logger) (*Admin, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	r, err := opts.remoting()
	if err != nil {
		return nil, err
	}
	return &Admin{opts: opts, remoting: r, log: log}, nil
}

// Broker is what a broker says of itself.
type Broker struct {
	Name    string
	Addr    string
	Version string        // like 5.5.0
	Skew    time.Duration // its clock minus ours, to the second; 0 within a second
}

// hasTimer reports whether the broker can wait for a given time (RocketMQ 5.0 and later).
func (b Broker) hasTimer() bool {
	major, err := strconv.Atoi(strings.SplitN(b.Version, ".", 2)[0])
	return err == nil && major >= 5
}

// EnsureTopics checks that both topics can be written and read, and makes them if Options.CreateTopics says
// so. The error says what to do.
func (a *Admin) EnsureTopics(ctx context.Context) error {
	for _, kind := range []order.MessageKind{order.Timeout, order.Notice} {
		if err := a.ensureTopic(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// awaitTopics waits until the topics of the given kinds are there, and says in the log what it waits for.
// Its error is that of ctx.
func (a *Admin) awaitTopics(ctx context.Context, kinds ...order.MessageKind) error {
	said, last := time.Time{}, ""
	for _, kind := range kinds {
		for try := 0; ; try++ {
			err := a.ensureTopic(ctx, kind)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err.Error() != last || time.Since(said) > 30*time.Second {
				a.log.Warn("waiting for the broker", zap.String("topic", a.opts.topic(kind)), zap.Error(err), zap.String("hint", hintOf(err)))
				said, last = time.Now(), err.Error()
			}
			if err := pause(ctx, try); err != nil {
				return err
			}
		}
	}
	if last != "" {
		a.log.Info("the broker is there", zap.Strings("name_servers", a.opts.NameServers))
	}
	return nil
}

// pause waits between two tries: 100 ms, doubled up to 3 s, less up to a half.
func pause(ctx context.Context, try int) error {
	wait := min(100*time.Millisecond<<min(try, 5), 3*time.Second)
	wait -= rand.N(wait / 2)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}

func hintOf(err error) string {
	var e *order.Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// Brokers reads version and clock of every broker.
func (a *Admin) Brokers(ctx context.Context) ([]Broker, error) {
	masters, err := a.masters(ctx)
	if err != nil {
		return nil, err
	}
	for i := range masters {
		if err := a.describe(ctx, &masters[i]); err != nil {
			return nil, failed("broker "+masters[i].Name, masters[i].Addr, err)
		}
	}
	return masters, nil
}

// describe fills in what the broker says of itself.
func (a *Admin) describe(ctx context.Context, b *Broker) error {
	before := time.Now()
	got, err := a.remoting.call(ctx, b.Addr, reqBrokerInfo, nil)
	if err != nil {
		return err
	}
	var info struct{ Table map[string]string }
	if err := unmarshal(got.body, &info); err != nil {
		return err
	}
	b.Version = strings.ReplaceAll(strings.TrimPrefix(info.Table["brokerVersionDesc"], "V"), "_", ".")
	b.Skew = skew(info.Table, before.Add(time.Since(before)/2))
	return nil
}

// skew compares the broker's clock with now. The broker tells when it started and for how many whole seconds
// it has been running.
func skew(table map[string]string, now time.Time) time.Duration {
	boot, err := strconv.ParseInt(table["bootTimestamp"], 10, 64)
	if err != nil {
		return 0
	}
	var days, hours, minutes, seconds int
	_, err = fmt.Sscanf(table["runtime"], "[ %d days, %d hours, %d minutes, %d seconds ]", &days, &hours, &minutes, &seconds)
	if err != nil {
		return 0
	}
	up := time.Duration(((days*24+hours)*60+minutes)*60+seconds) * time.Second
	// The rest of the last second is unknown, so is the sign of less than a second.
	return (time.UnixMilli(boot).Add(up + time.Second/2).Sub(now)).Truncate(time.Second)
}

// route is where a topic's queues are.
type route struct {
	QueueDatas []struct {
		BrokerName                    string
		ReadQueueNums, WriteQueueNums int
		Perm                          int
	}
	BrokerDatas []struct {
		Cluster     string
		BrokerName  string
		BrokerAddrs map[string]string // by broker id; 0 is the master
	}
}

// Permissions of a queue.
const (
	permWrite = 2
	permRead  = 4
)

// usable reports whether the topic has a queue to write to and one to read from.
func (r route) usable() bool {
	perm := 0
	for _, q := range r.QueueDatas {
		if q.WriteQueueNums > 0 {
			perm |= q.Perm & permWrite
		}
		if q.ReadQueueNums > 0 {
			perm |= q.Perm & permRead
		}
	}
	return perm == permWrite|permRead
}

// master is the address of the broker that takes writes; "" if there is none.
func (r route) master(broker string) string {
	for _, b := range r.BrokerDatas {
		if b.BrokerName == broker {
			return b.BrokerAddrs["0"]
		}
	}
	return ""
}

// askNameServer asks one name server after the other until one answers.
func (a *Admin) askNameServer(ctx context.Context, code int, fields map[string]string, into any) error {
	var last error
	for _, addr := range a.opts.NameServers {
		got, err := a.remoting.call(ctx, addr, code, fields)
		var refused *codeError
		switch {
		case err == nil:
			return unmarshal(got.body, into)
		case errors.As(err, &refused):
			return err
		}
		last = failed("name server", addr, err)
	}
	return last
}

// failed says which server did not do what it was asked, and what to look at.
func failed(what, addr string, cause error) error {
	var refused *codeError
	if errors.As(cause, &refused) {
		return order.Errorf(order.Unavailable, "broker_refuses", "the %s at %s refuses", what, addr).Wrap(cause).WithHint(hintKeys)
	}
	return order.Errorf(order.Unavailable, "broker_unreachable", "the %s at %s does not answer", what, addr).Wrap(cause).
		WithHint("Is it running, is the address right, and is the way to it open?")
}

const hintKeys = "If the brokers have an ACL: are the keys right, and do they permit this topic and group?"

func (a *Admin) route(ctx context.Context, topic string) (route, error) {
	var r route
	err := a.askNameServer(ctx, reqRoute, map[string]string{"topic": topic}, &r)
	return r, err
}

// masters lists the brokers that take writes.
func (a *Admin) masters(ctx context.Context) ([]Broker, error) {
	var cluster struct {
		BrokerAddrTable map[string]struct {
			BrokerName  string
			BrokerAddrs map[string]string
		}
	}
	if err := a.askNameServer(ctx, reqClusterInfo, nil, &cluster); err != nil {
		return nil, err
	}
	var brokers []Broker
	for _, b := range cluster.BrokerAddrTable {
		if addr := b.BrokerAddrs["0"]; addr != "" {
			brokers = append(brokers, Broker{Name: b.BrokerName, Addr: addr})
		}
	}
	if brokers == nil {
		return nil, order.Errorf(order.Unavailable, "no_broker", "the name server knows no broker yet").
			WithHint("Is the broker running, and does it name this name server?")
	}
	slices.SortFunc(brokers, func(x, y Broker) int { return strings.Compare(x.Name, y.Name) })
	return brokers, nil
}

// ensureTopic checks one topic, and makes it if that is allowed.
func (a *Admin) ensureTopic(ctx context.Context, kind order.MessageKind) error {
	topic := a.opts.topic(kind)
	r, err := a.route(ctx, topic)
	if isCode(err, resNoTopic) {
		if !a.opts.CreateTopics {
			return a.missing(kind, nil)
		}
		r, err = a.createTopic(ctx, kind)
	}
	if err != nil {
		return err
	}
	if !r.usable() {
		return order.Errorf(order.Unavailable, "topic_unusable", "topic %s cannot be both written and read", topic).
			WithHint("Give it permission 6: mqadmin updateTopicPerm -p 6 -t " + topic)
	}
	return a.reach(ctx, r, topic)
}

// reach checks that a broker of the topic answers, and shows the right certificate where one is asked for.
func (a *Admin) reach(ctx context.Context, r route, topic string) error {
	err := order.Errorf(order.Unavailable, "no_broker", "topic %s has no broker", topic)
	for _, q := range r.QueueDatas {
		addr := r.master(q.BrokerName)
		if addr == "" {
			continue
		}
		conn, cause := a.remoting.dial(ctx, addr)
		if cause == nil {
			return conn.Close()
		}
		err = order.Errorf(order.Unavailable, "broker_unreachable", "broker %s of topic %s does not answer at %s", q.BrokerName, topic, addr).Wrap(cause)
	}
	return err.WithHint("Clients dial the address that the broker announces (brokerIP1): is it running, and reachable from here?")
}

// missing says how to make a topic.
func (a *Admin) missing(kind order.MessageKind, cause error) error {
	command := fmt.Sprintf("mqadmin updateTopic -n %s -c <cluster> -t %s -r %d -w %d",
		strings.Join(a.opts.NameServers, ";"), a.opts.topic(kind), a.opts.Queues, a.opts.Queues)
	if attributes := a.attributes(kind); attributes != "" {
		command += " -a " + attributes
	}
	return order.Errorf(order.Unavailable, "topic_missing", "topic %s does not exist", a.opts.topic(kind)).Wrap(cause).
		WithHint("Make it: " + command)
}

// attributes is what the proxy of 5.x wants to be told of a topic. 4.x knows no attributes.
func (a *Admin) attributes(kind order.MessageKind) string {
	if kind == order.Timeout {
		return "+message.type=DELAY"
	}
	return ""
}

// createTopic makes a topic on every broker, and returns its route once the name server knows it.
func (a *Admin) createTopic(ctx context.Context, kind order.MessageKind) (route, error) {
	masters, err := a.masters(ctx)
	if err != nil {
		return route{}, err
	}
	for _, b := range masters {
		if err := a.createOn(ctx, b, a.opts.topic(kind), a.opts.Queues, a.attributes(kind)); err != nil {
			return route{}, a.missing(kind, fmt.Errorf("broker %s: %w", b.Name, err))
		}
	}
	a.log.Info("made a topic", zap.String("topic", a.opts.topic(kind)), zap.Int("brokers", len(masters)), zap.Int("queues", a.opts.Queues))
	// A broker answers before the name server has heard of it.
	for try := range 10 {
		r, err := a.route(ctx, a.opts.topic(kind))
		if err == nil || !isCode(err, resNoTopic) {
			return r, err
		}
		if err := pause(ctx, try); err != nil {
			return route{}, err
		}
	}
	return route{}, a.missing(kind, errors.New("the broker took it, but the name server has not heard of it"))
}

func (a *Admin) createOn(ctx context.Context, b Broker, topic string, queues int, attributes string) error {
	_, err := a.remoting.call(ctx, b.Addr, reqCreateTopic, map[string]string{
		"topic": topic, "defaultTopic": "TBW102", "readQueueNums": strconv.Itoa(queues), "writeQueueNums": strconv.Itoa(queues),
		"perm": strconv.Itoa(permRead | permWrite), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
		"attributes": attributes,
	})
	return err
}

func isCode(err error, code int) bool {
	var refused *codeError
	return errors.As(err, &refused) && refused.Code == code
}

// ensureRetryTopic makes the topic of the group's retries. The broker does so too when the group first shows
// up, but after a client has looked for it, which then takes half a minute to look again.
func (a *Admin) ensureRetryTopic(ctx context.Context) error {
	if _, err := a.route(ctx, a.retryTopic()); !isCode(err, resNoTopic) {
		return err
	}
	masters, err := a.masters(ctx)
	if err != nil {
		return err
	}
	for _, b := range masters {
		if err := a.createOn(ctx, b, a.retryTopic(), 1, ""); err != nil {
			return failed("broker "+b.Name, b.Addr, err)
		}
	}
	return nil
}

// retryTopic is where the broker keeps what the group has handed back.
func (a *Admin) retryTopic() string { return "%RETRY%" + a.opts.Group }

// position is how far a group is in one queue.
type position struct {
	topic, broker string
	queue         int
	committed     int64 // offset of the next message
	end           int64 // offset after the last message
}

func (p position) behind() int64 { return max(p.end-p.committed, 0) }

// positions reads how far the group is in every queue of a topic and of its retries. The group commits every
// 5 s, so what it says is that old.
func (a *Admin) positions(ctx context.Context, topic string) ([]position, error) {
	var all []position
	for _, t := range []string{topic, a.retryTopic()} {
		r, err := a.route(ctx, t)
		if isCode(err, resNoTopic) {
			continue // nobody has subscribed yet
		}
		if err != nil {
			return nil, err
		}
		for _, q := range r.QueueDatas {
			some, err := a.positionsAt(ctx, r.master(q.BrokerName), t, q.BrokerName, q.ReadQueueNums)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
	}
	return all, nil
}

func (a *Admin) positionsAt(ctx context.Context, addr, topic, broker string, queues int) ([]position, error) {
	conn, err := a.remoting.dial(ctx, addr)
	if err != nil {
		return nil, failed("broker "+broker, addr, err)
	}
	defer conn.Close()
	some := make([]position, queues)
	for i := range some {
		p := position{topic: topic, broker: broker, queue: i}
		fields := map[string]string{"topic": topic, "queueId": strconv.Itoa(i), "consumerGroup": a.opts.Group}
		if p.committed, err = conn.offset(ctx, reqQueryOffset, fields); isCode(err, resNoOffset) {
			p.committed, err = conn.offset(ctx, reqMinOffset, fields)
		}
		if err == nil {
			p.end, err = conn.offset(ctx, reqMaxOffset, fields)
		}
		if err != nil {
			return nil, failed("broker "+broker, addr, err)
		}
		some[i] = p
	}
	return some, nil
}

// offset sends a request that is answered by an offset.
func (c *remotingConn) offset(ctx context.Context, code int, fields map[string]string) (int64, error) {
	got, err := c.call(ctx, code, fields)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(got.ExtFields["offset"], 10, 64)
}

// sendBack hands one message back for its group to get again after a delay level. After MaxRetries the broker
// puts it among the dead letters instead.
func (a *Admin) sendBack(ctx context.Context, topic, broker string, offset int64, messageID string, level int) error {
	r, err := a.route(ctx, topic)
	if err != nil {
		return err
	}
	_, err = a.remoting.call(ctx, r.master(broker), reqSendBack, map[string]string{
		"group": a.opts.Group, "originTopic": topic, "offset": strconv.FormatInt(offset, 10), "originMsgId": messageID,
		"delayLevel": strconv.Itoa(min(level, len(levels))), "maxReconsumeTimes": strconv.Itoa(a.opts.MaxRetries),
		"unitMode": "false", "bname": broker,
	})
	return err
}
