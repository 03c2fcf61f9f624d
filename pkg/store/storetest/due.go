package storetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
)

// brake sets the brakes behind the store's back.
func (b bed) brake(value string) {
	b.t.Helper()
	b.exec("UPDATE t_setting SET value = '" + value + "', version = version + 1 WHERE name = 'brakes'")
}

// dueTests are about what becomes of orders whose deadline has passed, other than being closed.
var dueTests = map[string]func(t *testing.T, b bed){
	"one batch treats each order as it is": func(t *testing.T, b bed) {
		b.stock("a", 9)
		patient, both, later := draft("ORDER-patient", "a"), draft("ORDER-both", "a"), draft("ORDER-later", "a")
		patient.Rule.SecondChance, both.Rule.SecondChance = time.Minute, time.Minute
		later.Timeout = time.Hour
		b.create(draft("ORDER-plain", "a"), draft("ORDER-paying", "a"), patient, both, later)
		b.attempt(0, "ORDER-paying", "BILL-0001", time.Hour)
		b.attempt(0, "ORDER-both", "BILL-0002", time.Hour)
		batch := b.expire(time.Minute, "ORDER-plain", "ORDER-paying", "ORDER-patient", "ORDER-both", "ORDER-later")
		if len(batch.Closed) != 1 || batch.Closed[0].OrderNo != "ORDER-plain" || batch.Doubtful != 1 || batch.Reminded != 2 || len(batch.Braked) != 0 {
			t.Errorf("%+v", batch)
		}
		if len(batch.Messages) != 1+2*2 { // the cancelled event; of the reminded ones an event and the time-out each
			t.Errorf("%d messages", len(batch.Messages))
		}
		for no, want := range map[string]string{
			"ORDER-plain":   "created→0 expired→20",
			"ORDER-paying":  "created→0 payment_started→0 confirming→5",
			"ORDER-patient": "created→0 reminded→0",
			"ORDER-both":    "created→0 payment_started→0 reminded→0", // its payment goes on
			"ORDER-later":   "created→0",
		} {
			if got := b.story(no); got != want {
				t.Errorf("%s: %s, want %s", no, got, want)
			}
		}
		b.expectStock("a", 5, 4, 0)
	},
	"while brakes hold nothing is closed and nothing is lost": func(t *testing.T, b bed) {
		for name, c := range map[string]struct {
			brakes string
			shadow int
		}{
			"off":             {`{"mode":"off","percent":100}`, 0},
			"tripped":         {`{"mode":"enforce","percent":100,"tripped":"no payments","tripped_at":"2026-03-29T12:00:00Z"}`, 0},
			"off and tripped": {`{"mode":"off","percent":0,"tripped":"no payments"}`, 0},
			"shadow":          {`{"mode":"shadow","percent":100}`, 3},
			"nobody yet":      {`{"mode":"enforce","percent":0}`, 3},
			"not this type":   {`{"mode":"enforce","percent":100,"by_type":{"retail":0}}`, 3},
		} {
			t.Run(name, func(t *testing.T) {
				b := bed{Bed: b.Bed, t: t}
				slug := strings.ReplaceAll(name, " ", "-")
				b.stock(slug, 3)
				patient := draft("PATIENT-"+slug, slug)
				patient.Rule.SecondChance = time.Minute
				b.create(draft("PLAIN-"+slug, slug), draft("PAYING-"+slug, slug), patient)
				b.attempt(0, "PAYING-"+slug, "BILL-"+slug, time.Hour)
				nos := []string{"PLAIN-" + slug, "PAYING-" + slug, "PATIENT-" + slug}
				b.brake(c.brakes)
				before := b.dump(append([]string{"t_local_message"}, businessTables...)...)
				for i := range 2 { // the first note of a round stays
					batch := b.expire(time.Minute+time.Duration(i)*time.Second, nos...)
					if len(batch.Closed)+batch.Doubtful+batch.Reminded+len(batch.Messages) != 0 || len(batch.Braked) != 3 {
						t.Errorf("%+v", batch)
					}
				}
				if after := b.dump(append([]string{"t_local_message"}, businessTables...)...); after != before {
					t.Errorf("changed\n%s\nto\n%s", before, after)
				}
				if n := b.count("SELECT COUNT(*) FROM t_shadow WHERE reason = 'TIMEOUT' AND order_no LIKE '%-" + slug + "'"); n != c.shadow {
					t.Errorf("%d notes of what would have been done, want %d", n, c.shadow)
				}
				b.brake(`{"mode":"enforce","percent":100}`)
				batch := b.expire(time.Hour, nos...)
				if len(batch.Closed) != 2 || batch.Reminded != 1 || len(batch.Braked) != 0 { // the payment in flight is over by now
					t.Errorf("%+v", batch)
				}
			})
		}
		if n := b.count("SELECT COUNT(DISTINCT decided_at) FROM t_shadow"); n != 1 {
			t.Errorf("orders were noted at %d times: a later note has replaced the first", n)
		}
	},
	"brakes stop no payment and no cancellation by hand": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.brake(`{"mode":"off","percent":100}`)
		if _, m, err := b.at(time.Hour).Cancel(ctx, wish("ORDER-1", "u1"), leased); err != nil || len(m) != 1 {
			t.Error(m, err)
		}
		if got, err := b.at(time.Hour).Pay(ctx, payment("P1", "ORDER-2"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentAccepted {
			t.Error(got, err)
		}
	},
	"without brakes that can be read nothing is closed": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.brake("off")
		_, err := b.at(time.Hour).CloseDue(context.Background(), order.Closing{OrderNos: []string{"ORDER-1"}, Reason: order.ReasonTimeout}, leased)
		expectError(t, err, order.Internal, "data_damaged")
		if b.status("ORDER-1") != order.Pending {
			t.Error("closed")
		}
		b.brake(`{"mode":"enforce","percent":100}`)
	},
}
