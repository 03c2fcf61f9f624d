package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"lapse/pkg/order"
	"lapse/pkg/store"
	"lapse/test/services"
)

// cutter is a TCP proxy in front of MySQL that can cut a connection at its next COMMIT.
type cutter struct {
	listener net.Listener
	server   string
	when     atomic.Int32
}

const (
	never int32 = iota
	beforeCommit
	afterCommit // the server has committed, the client never hears of it
)

func newCutter(t *testing.T, server string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, server: server}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.serve(client)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return c
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var mute atomic.Bool
	go func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if mute.Load() || err != nil {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	for {
		packet, err := readPacket(client)
		if err != nil {
			return
		}
		if bytes.Equal(packet[4:], []byte("\x03COMMIT")) {
			switch c.when.Swap(never) {
			case beforeCommit:
				return
			case afterCommit:
				mute.Store(true)
			}
		}
		if _, err := server.Write(packet); err != nil {
			return
		}
	}
}

// readPacket reads one packet of MySQL's protocol: 3 bytes of length, 1 of sequence, then the payload.
func readPacket(r io.Reader) ([]byte, error) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	packet := make([]byte, 4+(int(header[0])|int(header[1])<<8|int(header[2])<<16))
	copy(packet, header)
	_, err := io.ReadFull(r, packet[4:])
	return packet, err
}

func TestACommitOfUnknownOutcomeIsRunAgainAndCountsOnce(t *testing.T) {
	ctx := context.Background()
	dsn := services.NewDatabase(t).DSN
	direct := migrated(t, store.Options{Driver: "mysql", DSN: dsn})
	raw := rawDB(t, "mysql", dsn)
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy := newCutter(t, c.Addr)
	c.Addr = proxy.listener.Addr().String()
	var retries atomic.Int32
	s := open(t, store.Options{Driver: "mysql", DSN: c.FormatDSN(), OnRetry: func(failure string) {
		if failure != "connection" {
			t.Errorf("run again for %s", failure)
		}
		retries.Add(1)
	}})
	if _, err := direct.Adjust(ctx, order.Adjustment{ID: "init", Kind: "stock", Ref: "a", Delta: 1000}); err != nil {
		t.Fatal(err)
	}
	draft := func(no string) order.Draft {
		return order.Draft{OrderNo: no, UserID: "u1", BizType: "retail", Amount: 5, Currency: "CNY", Timeout: time.Millisecond,
			Items: []order.Item{{Kind: "stock", Ref: "a", Quantity: 1}}}
	}
	later := func(_ order.Message, now time.Time) time.Time { return now.Add(time.Minute) }
	made := func(t *testing.T, no string) order.Message {
		answers, err := direct.Create(ctx, []order.Draft{draft(no)}, later)
		if err != nil || answers[0].Err != nil {
			t.Fatal(answers, err)
		}
		return *answers[0].Message
	}
	status := func(t *testing.T, no string, want order.Status) {
		o, _, err := direct.Get(ctx, no)
		if err != nil || o.Status != want || o.Version > 2 {
			t.Errorf("%+v, %v", o, err)
		}
	}
	// Each is given the number of an order that exists, and its message; unless it makes it itself.
	calls := map[string]func(t *testing.T, no string, m order.Message) error{
		"create": func(t *testing.T, no string, _ order.Message) error {
			answers, err := s.Create(ctx, []order.Draft{draft(no + "-new"), draft(no)}, later)
			if err == nil {
				err = errors.Join(answers[0].Err, answers[1].Err)
			}
			status(t, no+"-new", order.Pending)
			return err
		},
		"pay": func(t *testing.T, no string, _ order.Message) error {
			got, err := s.Pay(ctx, order.Payment{PaymentNo: "P-" + no, OrderNo: no, Amount: 5, Currency: "CNY", PaidAt: time.Now()}, order.Rules{}, later)
			if got.Outcome != order.PaymentAccepted {
				t.Errorf("%+v", got)
			}
			status(t, no, order.Paid)
			return err
		},
		"cancel": func(t *testing.T, no string, _ order.Message) error {
			o, _, err := s.Cancel(ctx, order.Cancelling{OrderNo: no, UserID: "u1", Reason: order.ReasonUserCancel}, later)
			if o.Status != order.Cancelled {
				t.Errorf("%+v", o)
			}
			status(t, no, order.Cancelled)
			return err
		},
		"close": func(t *testing.T, no string, _ order.Message) error {
			_, err := s.CloseDue(ctx, order.Closing{OrderNos: []string{no}, Reason: order.ReasonTimeout}, later)
			status(t, no, order.Cancelled)
			return err
		},
		"attempt": func(t *testing.T, no string, _ order.Message) error {
			e := order.Extending{OrderNo: no, By: time.Hour, Act: order.Act{Actor: "staff", Note: "a slow bank"}}
			if _, err := direct.Extend(ctx, e, later); err != nil {
				return err
			}
			_, _, err := s.StartPayment(ctx, order.Attempting{AttemptNo: "A-" + no, OrderNo: no, Channel: "card", Lifetime: time.Hour})
			if found, terr := direct.Attempts(ctx, no); terr != nil || len(found) != 1 {
				t.Errorf("%+v, %v", found, terr)
			}
			return err
		},
		"extension": func(t *testing.T, no string, m order.Message) error {
			e := order.Extending{OrderNo: no, By: time.Hour, Act: order.Act{Actor: "staff", Note: "a slow bank"}}
			done, err := s.Extend(ctx, e, later)
			if want := m.DueAt.Add(time.Hour); done.Order == nil || done.Extended != 1 || !done.Order.ExpireAt.Equal(want) {
				t.Errorf("moved to %+v, want one to %v", done, want)
			}
			status(t, no, order.Pending)
			return err
		},
		"extensions": func(t *testing.T, no string, m order.Message) error {
			if _, err := raw.ExecContext(ctx, "UPDATE t_order SET user_id = ? WHERE order_no = ?", "u-"+no, no); err != nil {
				return err
			}
			e := order.Extending{UserID: "u-" + no, By: time.Hour, Act: order.Act{Actor: "staff", Note: "a slow bank"}}
			done, err := s.ExtendPage(ctx, e, order.Foremost(), 10, later)
			if done.Extended != 1 {
				t.Errorf("%d were moved", done.Extended)
			}
			if o, _, terr := direct.Get(ctx, no); terr != nil || !o.ExpireAt.Equal(m.DueAt.Add(time.Hour)) {
				t.Errorf("moved from %v to %v, %v", m.DueAt, o.ExpireAt, terr)
			}
			status(t, no, order.Pending)
			return err
		},
		"adjust": func(t *testing.T, no string, _ order.Message) error {
			before, err := direct.Resource(ctx, "stock", "a")
			if err != nil {
				return err
			}
			r, err := s.Adjust(ctx, order.Adjustment{ID: no, Kind: "stock", Ref: "a", Delta: 7})
			if r.Available != before.Available+7 {
				t.Errorf("%d, then %d", before.Available, r.Available)
			}
			return err
		},
		"settle": func(t *testing.T, no string, m order.Message) error {
			err := s.Settle(ctx, []order.Sent{{Message: m}})
			if _, rows, terr := direct.Timeline(ctx, no); terr != nil || len(rows) != 1 || rows[0].State != order.AlreadySent {
				t.Errorf("%+v, %v", rows, terr)
			}
			return err
		},
		"postpone": func(t *testing.T, no string, _ order.Message) error {
			_, err := s.Postpone(ctx, []order.Early{{OrderNo: no}}, later)
			if _, rows, terr := direct.Timeline(ctx, no); terr != nil || len(rows) != 1 || rows[0].Hop != 1 {
				t.Errorf("%+v, %v", rows, terr)
			}
			return err
		},
	}
	for name, call := range calls {
		for at, when := range map[string]int32{"before": beforeCommit, "after": afterCommit} {
			t.Run(fmt.Sprintf("%s, cut %s its commit", name, at), func(t *testing.T) {
				no := fmt.Sprintf("ORDER-%s-%s", name, at)
				m := made(t, no)
				retries.Store(0)
				proxy.when.Store(when)
				if err := call(t, no, m); err != nil {
					t.Error(err)
				}
				if retries.Load() != 1 {
					t.Errorf("run again %d times", retries.Load())
				}
			})
		}
	}
	checks, err := direct.Audit(ctx, store.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range checks {
		if !check.Holds() {
			t.Errorf("%+v", check)
		}
	}
}
