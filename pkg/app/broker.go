package app

import (
	"context"
	"encoding/json"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"lapse/pkg/delay"
	"lapse/pkg/delay/local"
	"lapse/pkg/delay/rocketmq"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

// broker is a driver of delayed delivery as a process uses it.
type broker struct {
	sender lifecycle.Sender
	// start waits until messages can be sent.
	start func(ctx context.Context, p *parts) error
	// subscribe hands time-out messages to the handler, by the part that it returns if that has a run.
	subscribe func(handler delay.Handler) (part, error)
	// probe tells whether it answers, and its clock; nil if it has none.
	probe func(ctx context.Context) (skew time.Duration, err error)
}

func (a *App) newBroker(c *Config) (*broker, error) {
	if c.Broker.Driver == "local" {
		return a.localBroker(), nil
	}
	return a.rocketmqBroker(c)
}

func (a *App) localBroker() *broker {
	driver := local.New()
	driver.Subscribe(order.Notice, a.seeEvents)
	b := &broker{
		sender: driver,
		start:  func(context.Context, *parts) error { return nil },
		subscribe: func(handler delay.Handler) (part, error) {
			driver.Subscribe(order.Timeout, handler)
			return part{}, nil
		},
	}
	if a.hooks.Lose != nil {
		b.sender = losing{driver, a.hooks.Lose}
	}
	return b
}

// seeEvents is the subscriber of events in dev: it shows what a subscriber of the event topic would get.
func (a *App) seeEvents(_ context.Context, deliveries []order.Delivery) error {
	for _, d := range deliveries {
		var e order.CloudEvent[order.CancelledData]
		if err := json.Unmarshal(d.Body, &e); err != nil {
			return err
		}
		fields := []zap.Field{
			zap.String("order_no", e.Subject), zap.String("event_id", e.ID),
			zap.String("biz_type", e.Data.BizType), zap.String("reason", string(e.Data.Reason)),
		}
		if e.Type == order.TypeCancelled && lapsed(e.Data.Reason) {
			fields = append(fields, zap.Int64("lateness_ms", e.Data.CancelledAt.Sub(e.Data.ExpireAt).Milliseconds()))
		}
		a.log.Named("events").Info("order "+e.Type, fields...)
		if a.hooks.Event != nil {
			a.hooks.Event(d.Body)
		}
	}
	return nil
}

// lapsed reports whether an order was cancelled at its deadline, and not because somebody wanted it.
func lapsed(r order.Reason) bool { return r == order.ReasonTimeout || r == order.ReasonCompensate }

func (a *App) rocketmqBroker(c *Config) (*broker, error) {
	opts, log := rocketmqOptions(c), a.log.Named("broker")
	admin, err := rocketmq.NewAdmin(opts, log)
	if err != nil {
		return nil, err
	}
	sender, err := rocketmq.NewSender(opts, log)
	if err != nil {
		return nil, err
	}
	return &broker{
		sender: sender,
		start: func(ctx context.Context, p *parts) error {
			if err := sender.Start(ctx); err != nil {
				return err
			}
			p.start(part{"broker connection", func(ctx context.Context) error {
				<-ctx.Done()
				return sender.Close()
			}})
			return nil
		},
		subscribe: func(handler delay.Handler) (part, error) {
			consumer, err := rocketmq.NewConsumer(opts, order.Timeout, handler, log)
			if err != nil {
				return part{}, err
			}
			measureConsumer(consumer, a.reg)
			return part{"consumer", consumer.Run}, nil
		},
		probe: func(ctx context.Context) (time.Duration, error) { return worstSkew(ctx, admin) },
	}, nil
}

func rocketmqOptions(c *Config) rocketmq.Options {
	b := c.Broker
	return rocketmq.Options{
		NameServers: b.nameServers(), AccessKey: b.AccessKey, SecretKey: b.SecretKey,
		TLS: b.TLS.Enabled, TLSCAFile: b.TLS.CAFile, TLSServerName: b.TLS.ServerName,
		TimeoutTopic: b.TimeoutTopic, EventTopic: b.EventTopic, CreateTopics: b.CreateTopics, Queues: b.Queues,
		Mode: rocketmq.Mode(c.Delay.Mode), Group: b.Group, Drain: c.Shutdown.Timeout / stopShare, Trace: b.Trace,
	}
}

// worstSkew asks every broker for its clock.
func worstSkew(ctx context.Context, admin *rocketmq.Admin) (worst time.Duration, err error) {
	brokers, err := admin.Brokers(ctx)
	for _, b := range brokers {
		if b.Skew.Abs() > worst.Abs() {
			worst = b.Skew
		}
	}
	return worst, err
}

// measureConsumer registers what a consumer tells.
func measureConsumer(c *rocketmq.Consumer, reg prometheus.Registerer) {
	f := promauto.With(reg)
	gauge := func(name, help string, get func() int64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: "lapse_consumer_" + name, Help: help}, func() float64 { return float64(get()) })
	}
	counter := func(name, help string, get func() int64) {
		f.NewCounterFunc(prometheus.CounterOpts{Name: "lapse_consumer_" + name, Help: help}, func() float64 { return float64(get()) })
	}
	gauge("lag", "Time-out messages that are due and wait for the consumer group.", c.Lag)
	gauge("stalled_queues", "Queues in which messages wait and nothing has moved for minutes.", c.Stalled)
	counter("redelivered_total", "Messages that came again after having been handed back.", c.Redelivered)
	counter("panics_total", "Panics of the handler.", c.Panicked)
}
