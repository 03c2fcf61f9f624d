package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"lapse/test/services"
)

func init() { rlog.SetLogLevel("fatal") } // during an outage the client repeats itself

// marker is the tag of messages that only show how far a listener is.
const marker = "marker"

// listener is a subscriber of its own to one topic. It keeps every message that it was given, by its place in the
// topic, so that it can tell whether one is missing.
type listener struct {
	topic string
	heard func(message) // called once for each message
	mu    sync.Mutex
	at    map[place]message
	times int // deliveries, those of the same message again included
}

// place is where a message stands in its topic.
type place struct {
	queue  int
	offset int64
}

// message is what a subscriber is given.
type message struct {
	keys, tag, body string
	heard           time.Time // the first time
}

// listen subscribes to a topic from its first message on, until t ends.
func listen(t *testing.T, nameServer, topic string, heard func(message)) *listener {
	t.Helper()
	l := &listener{topic: topic, heard: heard, at: map[place]message{}}
	client, err := consumer.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})), consumer.WithGroupName("e2e-"+topic),
		consumer.WithInstance(services.RandomHex(6)), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeMessageBatchMaxSize(32))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Subscribe(topic, consumer.MessageSelector{}, l.hear); err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatalf("listening to %s: %v", topic, err)
	}
	t.Cleanup(func() { leave(t, client, topic) })
	return l
}

// leave ends a subscription. The client's Shutdown alone does not wait for pulls that are under way, so the queues are
// let go of first.
func leave(t *testing.T, client interface {
	Suspend()
	Unsubscribe(topic string) error
	Rebalance()
	Shutdown() error
}, topic string) {
	client.Suspend()
	errs := []error{client.Unsubscribe(topic), client.Unsubscribe("%RETRY%e2e-" + topic)}
	client.Rebalance()
	if err := errors.Join(append(errs, client.Shutdown())...); err != nil {
		t.Logf("leaving %s: %v", topic, err)
	}
}

func (l *listener) hear(_ context.Context, given ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	var fresh []message
	l.mu.Lock()
	for _, m := range given {
		l.times++
		where := place{m.Queue.QueueId, m.QueueOffset}
		if _, known := l.at[where]; known {
			continue
		}
		l.at[where] = message{m.GetKeys(), m.GetTags(), string(m.Body), time.Now()}
		if m.GetTags() != marker {
			fresh = append(fresh, l.at[where])
		}
	}
	l.mu.Unlock()
	if l.heard != nil {
		for _, m := range fresh {
			l.heard(m)
		}
	}
	return consumer.ConsumeSuccess, nil
}

// messages are all that were heard, without markers, and how many deliveries it took.
func (l *listener) messages() (all []message, deliveries int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.at {
		if m.tag != marker {
			all = append(all, m)
		}
	}
	return all, l.times
}

// drained waits until everything that was sent to the topic before has been heard: it sends a marker to each queue and
// waits until no place before it is empty. The marker is a time-out of nobody, so that closers know what to do with it.
func (l *listener) drained(ctx context.Context, s *sender) error {
	ends := map[int]int64{}
	for queue := range queues {
		at := &primitive.MessageQueue{Topic: l.topic, BrokerName: brokerName, QueueId: queue}
		result, err := s.send(ctx, l.topic, message{keys: nobody.keys, tag: marker, body: nobody.body}, at)
		if err != nil {
			return err
		}
		ends[queue] = result.QueueOffset
	}
	return await(ctx, 3*time.Minute, "every message of "+l.topic+" is heard", func(context.Context) (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for queue, end := range ends {
			for offset := range end + 1 {
				if _, heard := l.at[place{queue, offset}]; !heard {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

// brokerName is what scripts/rocketmq.sh calls its broker.
const brokerName = "broker-a"

// sender sends messages past the project's own programs.
type sender struct {
	client interface {
		SendSync(ctx context.Context, m ...*primitive.Message) (*primitive.SendResult, error)
	}
}

func newSender(t *testing.T, nameServer string) *sender {
	t.Helper()
	client, err := producer.NewDefaultProducer(producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		producer.WithGroupName("e2e-sender"), producer.WithInstanceName(services.RandomHex(6)), producer.WithQueueSelector(anyQueue{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Shutdown(); err != nil {
			t.Logf("stopping the sender: %v", err)
		}
	})
	return &sender{client}
}

// anyQueue sends a message to the queue that it names, else to one at random.
type anyQueue struct{}

func (anyQueue) Select(m *primitive.Message, all []*primitive.MessageQueue, broker string) *primitive.MessageQueue {
	if m.Queue != nil {
		return producer.NewManualQueueSelector().Select(m, all, broker)
	}
	return producer.NewRandomQueueSelector().Select(m, all, broker)
}

// send sends a message, to be delivered at once, and tries until the broker has taken it; at is the queue, nil for any.
func (s *sender) send(ctx context.Context, topic string, m message, at *primitive.MessageQueue) (*primitive.SendResult, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		fresh := primitive.NewMessage(topic, []byte(m.body)).WithTag(m.tag).WithKeys([]string{m.keys})
		fresh.Queue = at
		result, err := s.client.SendSync(ctx, fresh)
		if err == nil && result.Status == primitive.SendOK {
			return result, nil
		}
		if !pause(ctx, 500*time.Millisecond) {
			return nil, fmt.Errorf("sending to %s: %w", topic, err)
		}
	}
}

// perKey counts messages by the order number in their keys.
func perKey(all []message) map[string]int {
	counts := map[string]int{}
	for _, m := range all {
		counts[orderOf(m)]++
	}
	return counts
}

func most(counts map[string]int) int {
	n := 0
	for _, c := range counts {
		n = max(n, c)
	}
	return n
}
