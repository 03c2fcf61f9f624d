package rocketmq

import (
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"lapse/pkg/order"
)

const (
	connectTimeout = 3 * time.Second
	// readTimeout ends connections that have gone silent. Every live one has a heartbeat or a look at the
	// routes each 30 s.
	readTimeout  = 65 * time.Second
	writeTimeout = 5 * time.Second
)

// global is what the client library has only once for the whole process.
var global struct {
	once sync.Once
	tls  bool
}

// prepare sets up what is global in the client library, before the first client is made: later its own
// goroutines read it without a lock. The first log and the first TLS setting hold for the whole process.
func prepare(opts Options, log *zap.Logger) error {
	global.once.Do(func() {
		global.tls = opts.TLS
		rlog.SetLogger(newClientLog(log))
		// The options write to a configuration that all clients share, so one unused client sets it for all.
		_, _ = producer.NewDefaultProducer(
			producer.WithNsResolver(primitive.NewPassthroughResolver([]string{})), // no address: it is refused before it opens anything
			producer.WithRemotingTimeout(connectTimeout, readTimeout, writeTimeout), producer.WithTls(opts.TLS))
	})
	if global.tls != opts.TLS {
		return order.Errorf(order.Invalid, "invalid_broker_options", "one process cannot use a broker with TLS and another without")
	}
	return nil
}

func (o Options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.AccessKey, SecretKey: o.SecretKey}
}

func (o Options) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(o.nameServers())
}

func (o Options) trace() *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName: o.Group, Access: primitive.Local, Resolver: o.resolver(), Credentials: o.credentials(),
	}
}

func (o Options) producerOptions() []producer.Option {
	opts := []producer.Option{
		producer.WithNsResolver(o.resolver()), producer.WithGroupName("lapse-relay"), producer.WithInstanceName(instance("relay")),
		producer.WithCredentials(o.credentials()), producer.WithSendMsgTimeout(o.SendTimeout),
		producer.WithRetry(0),                                       // the relay has its own back-off
		producer.WithCompressMsgBodyOverHowmuch(1 << 30),            // bodies stay readable for whoever looks at the broker
		producer.WithQueueSelector(producer.NewHashQueueSelector()), // by order where there is a sharding key, else at random
	}
	if o.Trace {
		opts = append(opts, producer.WithTrace(o.trace()))
	}
	return opts
}

func (o Options) consumerOptions() []consumer.Option {
	opts := []consumer.Option{
		consumer.WithNsResolver(o.resolver()), consumer.WithGroupName(o.Group), consumer.WithInstance(instance("consumer")),
		consumer.WithCredentials(o.credentials()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), // what waits for a new group is not skipped
		consumer.WithConsumeMessageBatchMaxSize(batch), consumer.WithPullBatchSize(batch),
		consumer.WithConsumeGoroutineNums(o.Concurrency),
		consumer.WithPullThresholdForTopic(maxHeldMessages), consumer.WithPullThresholdSizeForTopic(maxHeldMiB),
		consumer.WithMaxReconsumeTimes(int32(o.MaxRetries)),
		// Past this the client sends running messages back, which would burn retries during a long outage of
		// the database, where handlers wait.
		consumer.WithConsumeTimeout(24 * time.Hour),
	}
	if o.Trace {
		opts = append(opts, consumer.WithTrace(o.trace()))
	}
	return opts
}

// clientLog is the client library's logger: warnings and errors go to zap, without message bodies.
type clientLog struct{ log *zap.Logger }

// newClientLog lets each text through five times a minute: during an outage the client repeats itself for
// every queue.
func newClientLog(log *zap.Logger) *clientLog {
	return &clientLog{log.Named("rocketmq").WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Minute, 5, 0)
	}))}
}

func (l *clientLog) Debug(string, map[string]any) {}
func (l *clientLog) Info(string, map[string]any)  {}

func (l *clientLog) Warning(msg string, fields map[string]any) { l.log.Warn(msg, tame(fields)...) }
func (l *clientLog) Error(msg string, fields map[string]any)   { l.log.Error(msg, tame(fields)...) }

// Fatal of the client is no reason to end this process.
func (l *clientLog) Fatal(msg string, fields map[string]any) { l.log.Error(msg, tame(fields)...) }

func (l *clientLog) Level(string)            {}
func (l *clientLog) OutputPath(string) error { return nil }

// loggable are the fields that hold no message.
var loggable = map[string]string{
	rlog.LogKeyBroker: "broker", "brokerAddr": "broker_addr", "remoteAddr": "remote_addr", "namesrv": "name_server",
	rlog.LogKeyConsumerGroup: "group", rlog.LogKeyTopic: "topic", rlog.LogKeyMessageQueue: "queue", rlog.LogKeyMessageId: "message_id",
	rlog.LogKeyUnderlayError: "error", rlog.LogKeyStack: "stack", "responseCode": "code", "remark": "remark",
}

// tame keeps the fields that are known to be harmless; their values are rendered here because the client
// goes on changing them.
func tame(fields map[string]any) []zap.Field {
	var kept []zap.Field
	for name, value := range fields {
		if known, ok := loggable[name]; ok {
			kept = append(kept, zap.String(known, cut(value)))
		}
	}
	return kept
}

// cut renders a value in at most 300 bytes.
func cut(value any) string {
	s := fmt.Sprint(value)
	return s[:min(len(s), 300)]
}
