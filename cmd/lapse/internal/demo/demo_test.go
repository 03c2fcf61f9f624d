package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fast is the pace of tests: a quarter of the demo's time-outs.
const fast = 0.25

// tempDir makes the demo keep its files in a directory of the test, and returns it.
func tempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// short is a scenario of two orders; the second one has the fate given.
func short(second fate) scenario {
	return scenario{
		stocks: []stock{{hold{"stock", "mug", 5}, ""}},
		orders: []orders{
			{count: 1, biz: "retail", users: everybody, from: 2 * time.Second, to: 2 * time.Second, amount: 100,
				holds: []hold{{"stock", "mug", 2}}, act: leave, fate: lapses},
			{count: 1, biz: "ticket", users: everybody, from: 4 * time.Second, to: 4 * time.Second, amount: 100, act: leave, fate: second},
		},
	}
}

func left(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestEverythingHoldsAndNothingIsLeftBehind(t *testing.T) {
	dir := tempDir(t)
	var out bytes.Buffer
	if err := run(t.Context(), Options{Out: &out}, standard, fast); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"the same order, replayed", "refused with 401", "refused with 409", "refused with 422", "kept for a person to decide, said again", "to be refunded, said again", "opens the order again, said again", "confirming",
		"lost-01 ", "COMPENSATE", "I1 ", "I9 ", "43 distinct ids", lostMetric + " is 1", "statements hold", "lapse dev",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	for line := range strings.Lines(out.String()) {
		if width := len([]rune(strings.TrimSuffix(line, "\n"))); width > 100 {
			t.Errorf("%d columns, 100 is the most: %s", width, line)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours, and the output is no terminal")
	}
	if entries := left(t, dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestAWrongExpectationFailsTheDemo(t *testing.T) {
	dir := tempDir(t)
	var out bytes.Buffer
	err := run(t.Context(), Options{Out: &out, Keep: true}, short(paid), fast)
	if !errors.Is(err, ErrFailed) {
		t.Fatalf("got %v, wanted ErrFailed\n%s", err, out.String())
	}
	if want := "seen every order met the fate planned for it: 1 of 2, like ticket-01 is cancelled TIMEOUT"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in the output:\n%s", want, out.String())
	}
	kept := left(t, dir)
	if len(kept) != 1 || !strings.Contains(out.String(), filepath.Join(dir, kept[0].Name())) {
		t.Fatalf("kept: %v, and the output must say where:\n%s", kept, out.String())
	}
	for _, name := range []string{"lapse.db", "lapse.log"} {
		if _, err := os.Stat(filepath.Join(dir, kept[0].Name(), name)); err != nil {
			t.Error(err)
		}
	}
}

func TestTheReportAsJSONStandsAlone(t *testing.T) {
	tempDir(t)
	var out, talk bytes.Buffer
	if err := run(t.Context(), Options{Out: &out, Err: &talk, JSON: true}, short(lapses), fast); err != nil {
		t.Fatalf("%v\n%s", err, talk.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if !r.Holds || len(r.Orders) != 2 || r.Events.Distinct != 2 || len(r.Checks) == 0 {
		t.Errorf("got %+v", r)
	}
}

// interrupter ends a context as soon as a text is written to it.
type interrupter struct {
	bytes.Buffer
	on     string
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(i.on)) {
		i.cancel()
	}
	return i.Buffer.Write(p)
}

func TestAnInterruptStopsItCleanly(t *testing.T) {
	for _, on := range []string{"Lapse runs", "Created", "Waiting for the deadlines"} {
		t.Run("at "+on, func(t *testing.T) {
			dir := tempDir(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &interrupter{on: on, cancel: cancel}
			if err := Run(ctx, Options{Out: out}); !errors.Is(err, ErrInterrupted) {
				t.Errorf("got %v, wanted ErrInterrupted\n%s", err, out.String())
			}
			if entries := left(t, dir); len(entries) > 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

// The environment of a real installation must not lead the demo to its database.
func TestTheEnvironmentDoesNotRedirectTheDemo(t *testing.T) {
	tempDir(t)
	t.Setenv("LAPSE_DATABASE_DRIVER", "mysql")
	t.Setenv("LAPSE_DATABASE_DSN", "nobody:nothing@tcp(127.0.0.1:1)/none")
	t.Setenv("LAPSE_BROKER_DRIVER", "rocketmq")
	var out bytes.Buffer
	if err := run(t.Context(), Options{Out: &out}, short(lapses), fast); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}
