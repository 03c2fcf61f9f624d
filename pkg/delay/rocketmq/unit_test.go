package rocketmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"lapse/pkg/delay/delaytest"
	"lapse/pkg/order"
)

func TestOptions(t *testing.T) {
	valid := Options{NameServers: []string{"127.0.0.1:9876"}}
	t.Run("name servers alone are enough", func(t *testing.T) {
		got, err := valid.withDefaults()
		if err != nil || got.TimeoutTopic != "order-timeout" || got.Mode != ModeTimer || got.Group != defaultGroup {
			t.Errorf("got %+v and %v", got, err)
		}
	})
	refused := map[string]func(*Options){
		"name_servers":  func(o *Options) { o.NameServers = nil },
		"access_key":    func(o *Options) { o.AccessKey = "only one" },
		"timeout_topic": func(o *Options) { o.TimeoutTopic = "with space" },
		"event_topic":   func(o *Options) { o.EventTopic = "order-timeout" },
		"group":         func(o *Options) { o.Group = "%RETRY%" },
		"mode":          func(o *Options) { o.Mode = "at-once" },
		"queues":        func(o *Options) { o.Queues = -1 },
		"concurrency":   func(o *Options) { o.Concurrency = 5000 },
		"max_retries":   func(o *Options) { o.MaxRetries = 17 },
		"send_timeout":  func(o *Options) { o.SendTimeout = -1 },
		"drain":         func(o *Options) { o.Drain = -1 },
	}
	for field, spoil := range refused {
		t.Run("a wrong "+field+" is named", func(t *testing.T) {
			opts := valid
			spoil(&opts)
			_, err := opts.withDefaults()
			var e *order.Error
			if !errors.As(err, &e) || e.Kind != order.Invalid || len(e.Fields) != 1 || e.Fields[0].Name != field {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("a name server without a port is refused", func(t *testing.T) {
		_, err := Options{NameServers: []string{"namesrv"}}.withDefaults()
		if order.KindOf(err) != order.Invalid {
			t.Errorf("got %v", err)
		}
	})
	t.Run("host names become URLs, addresses stay", func(t *testing.T) {
		got := Options{NameServers: []string{"namesrv:9876", "10.0.0.1:9876", "[::1]:9876"}}.nameServers()
		if want := "http://namesrv:9876 10.0.0.1:9876 [::1]:9876"; strings.Join(got, " ") != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
	t.Run("a CA file that is missing or empty is refused", func(t *testing.T) {
		for _, file := range []string{"/does/not/exist.pem", "unit_test.go"} {
			opts := valid
			opts.TLS, opts.TLSCAFile = true, file
			if _, err := NewAdmin(opts, zap.NewNop()); order.KindOf(err) != order.Invalid {
				t.Errorf("%s: %v", file, err)
			}
		}
	})
	t.Run("events in the closers' group are refused", func(t *testing.T) {
		if _, err := NewConsumer(valid, order.Notice, nil, zap.NewNop()); order.KindOf(err) != order.Invalid {
			t.Errorf("got %v", err)
		}
	})
}

func TestStep(t *testing.T) {
	now := time.Date(2025, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	day := 24 * time.Hour
	tests := []struct {
		mode       Mode
		rest, want time.Duration
	}{
		{ModeTimer, -time.Hour, -time.Hour},
		{ModeTimer, time.Millisecond, time.Millisecond},
		{ModeTimer, 2*day + 23*time.Hour, 2*day + 23*time.Hour},
		{ModeTimer, 3 * day, 2*day + 23*time.Hour},
		{ModeTimer, 90 * day, 2*day + 23*time.Hour},
		{ModeLevels, -time.Hour, 0},
		{ModeLevels, 999 * time.Millisecond, 0},
		{ModeLevels, time.Second, time.Second},
		{ModeLevels, 4999 * time.Millisecond, time.Second},
		{ModeLevels, 59 * time.Second, 30 * time.Second},
		{ModeLevels, time.Minute, time.Minute},
		{ModeLevels, 30 * time.Minute, 30 * time.Minute},
		{ModeLevels, 119 * time.Minute, time.Hour},
		{ModeLevels, 90 * day, 2 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s, due in %v", tt.mode, tt.rest), func(t *testing.T) {
			s := &Sender{opts: Options{Mode: tt.mode}}
			if got := s.Step(now, now.Add(tt.rest)).Sub(now); got != tt.want {
				t.Errorf("a step of %v, want %v", got, tt.want)
			}
		})
	}
}

func TestMessage(t *testing.T) {
	opts, err := Options{NameServers: []string{"127.0.0.1:9876"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e := delaytest.Timeout("message-1", time.Minute)
	event := delaytest.Event("message-2", `{"a":1}`)

	t.Run("a time-out has its keys, tag and properties", func(t *testing.T) {
		m := (&Sender{opts: opts}).message(e)
		want := map[string]string{
			"KEYS": "message-1 message-1:timeout", "TAGS": "timeout", "hop": "1", "version": "1",
			"expire_at": e.ExpireAt.UTC().Format("2006-01-02T15:04:05.000Z"), "deliver_at": e.DeliverAt.UTC().Format("2006-01-02T15:04:05.000Z"),
			"traceparent":      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			"TIMER_DELIVER_MS": fmt.Sprint(e.DeliverAt.UnixMilli()),
		}
		if got := m.GetProperties(); fmt.Sprint(got) != fmt.Sprint(want) || m.Topic != "order-timeout" {
			t.Errorf("topic %s, properties\n%v, want\n%v", m.Topic, got, want)
		}
	})
	t.Run("an event has its keys, tag and sharding key, and no delay", func(t *testing.T) {
		m := (&Sender{opts: opts}).message(event)
		want := map[string]string{"KEYS": "message-2 " + event.MessageID, "TAGS": "cancelled", "SHARDING_KEY": "message-2"}
		if got := m.GetProperties(); fmt.Sprint(got) != fmt.Sprint(want) || m.Topic != "order-event" {
			t.Errorf("topic %s, properties\n%v, want\n%v", m.Topic, got, want)
		}
	})
	t.Run("a property cannot smuggle in another", func(t *testing.T) {
		forged := e
		forged.Body = order.TimeoutBody{Version: 1, OrderNo: "message-1", TraceParent: "x\x02DELAY\x011"}.Encode()
		if got := (&Sender{opts: opts}).message(forged).GetProperty("traceparent"); got != "" {
			t.Errorf("traceparent %q was taken over", got)
		}
	})
	levels := []struct {
		delay time.Duration
		want  string
	}{
		{0, ""}, {499 * time.Millisecond, ""}, {500 * time.Millisecond, "1"}, {time.Second, "1"}, {4499 * time.Millisecond, "1"},
		{4990 * time.Millisecond, "2"}, {5 * time.Second, "2"}, {time.Minute - 20*time.Millisecond, "5"}, {2 * time.Hour, "18"},
	}
	for _, tt := range levels {
		t.Run(fmt.Sprintf("in levels mode, a delay of %v is level %q", tt.delay, tt.want), func(t *testing.T) {
			opts := opts
			opts.Mode = ModeLevels
			e := e
			e.Delay = tt.delay
			m := (&Sender{opts: opts}).message(e)
			if got := m.GetProperty("DELAY"); got != tt.want || m.GetProperty("TIMER_DELIVER_MS") != "" {
				t.Errorf("level %q, want %q; properties %v", got, tt.want, m.GetProperties())
			}
		})
	}
}

func TestSendError(t *testing.T) {
	tests := []struct {
		text string
		want order.Kind
	}{
		{"CODE: 13, DESC: timer message illegal, the delay time should not be bigger than the max delay", order.Invalid},
		{"CODE: 1, DESC: system error", order.Unavailable},
		{"CODE: 2, DESC: [TIMEOUT_CLEAN_QUEUE]broker busy", order.Unavailable},
		{"CODE: 14, DESC: service not available now", order.Unavailable},
		{"CODE: 16, DESC: the broker's sending message is forbidden", order.Unavailable},
		{"the topic=order-timeout route info not found", order.Unavailable},
		{"request timeout", order.Unavailable},
		{"dial tcp 127.0.0.1:10911: connect: connection refused", order.Unavailable},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			if got := order.KindOf(sendError(errors.New(tt.text), "order-timeout")); got != tt.want {
				t.Errorf("kind %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSkew(t *testing.T) {
	now := time.UnixMilli(1_700_000_100_000)
	up := func(boot time.Time, runtime string) map[string]string {
		return map[string]string{"bootTimestamp": fmt.Sprint(boot.UnixMilli()), "runtime": runtime}
	}
	tests := []struct {
		name  string
		table map[string]string
		want  time.Duration
	}{
		{"clocks that agree", up(now.Add(-100*time.Second-700*time.Millisecond), "[ 0 days, 0 hours, 1 minutes, 40 seconds ]"), 0},
		{"a broker an hour ahead", up(now.Add(time.Hour-100*time.Second), "[ 0 days, 0 hours, 1 minutes, 40 seconds ]"), time.Hour},
		{"a broker five seconds behind", up(now.Add(-26*time.Hour-5500*time.Millisecond), "[ 1 days, 2 hours, 0 minutes, 0 seconds ]"), -5 * time.Second},
		{"a broker that does not say", map[string]string{}, 0},
		{"a broker that says something else", up(now, "26 h"), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := skew(tt.table, now); got != tt.want {
				t.Errorf("skew %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStalls(t *testing.T) {
	type reading struct {
		at             time.Duration
		committed, end int64
	}
	tests := []struct {
		name     string
		readings []reading
		stuck    int
	}{
		{"a queue that waits and does not advance is stuck", []reading{{0, 5, 9}, {stallAfter, 5, 9}}, 1},
		{"a queue that waits longer and longer is stuck", []reading{{0, 5, 9}, {stallAfter, 5, 99}}, 1},
		{"a queue that has waited for less is not", []reading{{0, 5, 9}, {stallAfter - 1, 5, 9}}, 0},
		{"a queue that advances is not", []reading{{0, 5, 9}, {stallAfter, 6, 99}}, 0},
		{"a queue that is read to its end is not", []reading{{0, 5, 5}, {stallAfter, 5, 5}}, 0},
		{"the time before messages waited does not count", []reading{{0, 5, 5}, {stallAfter - 1, 5, 5}, {stallAfter, 5, 9}}, 0},
		{"a queue seen for the first time is not", []reading{{stallAfter, 5, 9}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stalls{}
			var stuck []position
			for _, r := range tt.readings {
				stuck = s.update([]position{{topic: "order-timeout", broker: "broker-a", committed: r.committed, end: r.end}}, time.Unix(0, 0).Add(r.at))
			}
			if len(stuck) != tt.stuck {
				t.Errorf("%d queues are stuck, want %d", len(stuck), tt.stuck)
			}
		})
	}
}

func TestClientLog(t *testing.T) {
	core, seen := observer.New(zapcore.DebugLevel)
	l := newClientLog(zap.New(core))
	message := &primitive.MessageExt{Message: primitive.Message{Topic: "order-event", Body: []byte("somebody's order")}}
	l.Info("chatter", nil)
	l.Debug("chatter", nil)
	for range 20 {
		l.Warning("consumeMessageCurrently error", map[string]any{
			"underlayError": errors.New(strings.Repeat("x", 5000)), "messages": []*primitive.MessageExt{message}, "message": message, "traceData": "somebody's order",
		})
	}
	l.Fatal("the client gives up", nil)
	var text bytes.Buffer
	for _, entry := range seen.All() {
		fmt.Fprintln(&text, entry.Level, entry.Message, entry.ContextMap())
	}
	for name, wrong := range map[string]bool{
		"a body is logged":                  strings.Contains(text.String(), "somebody"),
		"information is logged":             strings.Contains(text.String(), "chatter"),
		"repeated warnings are not thinned": seen.FilterMessage("consumeMessageCurrently error").Len() != 5,
		"long values are not cut":           text.Len() > 5*500,
		"a fatal line is lost":              seen.FilterMessage("the client gives up").Len() != 1,
	} {
		if wrong {
			t.Errorf("%s:\n%s", name, text.String())
		}
	}
}

// The signature is what `printf rocketmqorder-timeout | openssl dgst -sha1 -hmac 12345678 -binary | base64` prints.
func TestSign(t *testing.T) {
	r := &remoting{accessKey: "rocketmq", secretKey: "12345678"}
	got := r.sign(map[string]string{"topic": "order-timeout"})
	if got["AccessKey"] != "rocketmq" || got["Signature"] != "9ZlQaFkiRf1aK18S50FEtjmRF4o=" {
		t.Errorf("got %v", got)
	}
	if plain := (&remoting{}).sign(map[string]string{"topic": "x"}); len(plain) != 1 {
		t.Errorf("without keys got %v", plain)
	}
}

// serve answers one connection with raw frames.
func serve(t *testing.T, reply func(opaque int32) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		c := &remotingConn{Conn: conn}
		if request, err := c.read(); err == nil {
			_, _ = conn.Write(reply(request.Opaque))
		}
	}()
	return l.Addr().String()
}

func frame(h header, body string) []byte {
	raw, _ := json.Marshal(h)
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(raw)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(raw)))
	return append(append(b, raw...), body...)
}

func TestRemoting(t *testing.T) {
	ok := func(body string) func(int32) []byte {
		return func(opaque int32) []byte { return frame(header{Opaque: opaque, Flag: 1}, body) }
	}
	tests := []struct {
		name  string
		reply func(int32) []byte
		want  string // of the error; "" for none
	}{
		{"an answer is read", ok("{}"), ""},
		{"what the server says on its own is passed over", func(o int32) []byte { return append(frame(header{Opaque: 99, Code: 40}, ""), ok("{}")(o)...) }, ""},
		{"a refusal carries its code, without the broker's stack trace", func(o int32) []byte {
			return frame(header{Opaque: o, Code: 16, Remark: "no permission\n\tat java.lang"}, "")
		}, "response code 16: no permission"},
		{"an answer that ends early is an error", func(o int32) []byte { return ok("{}")(o)[:20] }, "unexpected EOF"},
		{"something else than RocketMQ is recognized", func(int32) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, "not JSON"},
		{"lengths that make no sense are refused", func(int32) []byte { return []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1} }, "no RocketMQ frame"},
		{"a header longer than its frame is refused", func(int32) []byte { return []byte{0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0} }, "no RocketMQ frame"},
		{"a connection that is closed is an error", func(int32) []byte { return nil }, "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := (&remoting{}).call(t.Context(), serve(t, tt.reply), reqRoute, nil)
			switch {
			case tt.want == "" && (err != nil || string(got.body) != "{}"):
				t.Errorf("got %q and %v", got.body, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got error %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("a server that never answers is given up when the context ends", func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		addr := serve(t, func(int32) []byte { <-release; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := (&remoting{}).call(ctx, addr, reqRoute, nil); err == nil {
			t.Error("no error")
		}
	})
	t.Run("numbers as keys are read", func(t *testing.T) {
		var r route
		raw := `{"brokerDatas":[{"brokerName":"a","brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}}],"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}`
		if err := unmarshal([]byte(raw), &r); err != nil || r.master("a") != "10.0.0.1:10911" || !r.usable() {
			t.Errorf("got %+v and %v", r, err)
		}
	})
}

func TestRouteUsable(t *testing.T) {
	for perm, want := range map[int]bool{6: true, 7: true, 4: false, 2: false, 0: false} {
		var r route
		raw := fmt.Sprintf(`{"queueDatas":[{"perm":%d,"readQueueNums":1,"writeQueueNums":1}]}`, perm)
		if err := unmarshal([]byte(raw), &r); err != nil || r.usable() != want {
			t.Errorf("permission %d: usable %v, want %v (%v)", perm, r.usable(), want, err)
		}
	}
}

func TestGate(t *testing.T) {
	t.Run("an empty gate is done as soon as it is closed", func(t *testing.T) {
		<-newGate().close()
	})
	t.Run("a closed gate lets nobody in and waits for the last", func(t *testing.T) {
		g := newGate()
		for range 2 {
			if !g.enter() {
				t.Fatal("an open gate is shut")
			}
		}
		done := g.close()
		if g.enter() {
			t.Error("a closed gate is open")
		}
		g.leave()
		select {
		case <-done:
			t.Error("done while one is inside")
		default:
		}
		g.leave()
		<-done
		<-g.close() // once more is harmless
	})
}
