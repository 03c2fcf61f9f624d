package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"lapse/pkg/order"
)

func TestSetsBecomePlaceholders(t *testing.T) {
	for _, c := range []struct {
		text     string
		args     []any
		want     string
		wantArgs []any
	}{
		{"a = ?", []any{1}, "a = ?", []any{1}},
		{"a IN (?*) AND b = ?", []any{[]string{"x", "y"}, 2}, "a IN (?,?) AND b = ?", []any{"x", "y", 2}},
		{"a IN (?*) OR b IN (?*)", []any{[]string{"?*"}, []string{"y", "z"}}, "a IN (?) OR b IN (?,?)", []any{"?*", "y", "z"}},
		{"CASE a WHEN* END", []any{cases{{"k", 1}, {"l", 2}}}, "CASE a WHEN ? THEN ? WHEN ? THEN ?  END", []any{"k", 1, "l", 2}},
	} {
		text, args := bind(c.text, c.args)
		if text != c.want || !reflect.DeepEqual(args, c.wantArgs) {
			t.Errorf("%q, %v\nwant %q, %v", text, args, c.want, c.wantArgs)
		}
	}
}

func TestResourcesAreNamedOneBranchAKind(t *testing.T) {
	where, args := byKind([]order.Item{{Kind: "coupon", Ref: "c"}, {Kind: "stock", Ref: "a"}, {Kind: "stock", Ref: "b"}})
	if where != "kind = ? AND ref IN (?*) OR kind = ? AND ref IN (?*)" ||
		!reflect.DeepEqual(args, []any{"coupon", []string{"c"}, "stock", []string{"a", "b"}}) {
		t.Errorf("%s, %v", where, args)
	}
}

func TestATimeColumnIsReadFromEitherDatabase(t *testing.T) {
	want := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	for _, src := range []any{want, want.In(time.FixedZone("", 3600)), want.UnixMilli()} {
		var got time.Time
		if err := at(&got).Scan(src); err != nil || got != want {
			t.Errorf("%v: %v, %v", src, got, err)
		}
	}
	got := want
	if err := at(&got).Scan(nil); err != nil || !got.IsZero() {
		t.Error(got, err)
	}
	if err := at(&got).Scan("2026"); err == nil {
		t.Error("a text was taken for a time")
	}
}

func TestTextIsClippedToWholeCharacters(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("é", 300), "\xff" + strings.Repeat("x", 600), strings.Repeat("订", 200)} {
		got := clip(s, 500)
		if len(got) > 500 || !utf8.ValidString(got) || len(s) > 510 && len(got) < 490 {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func TestOldServersAreRefusedWithAHint(t *testing.T) {
	for version, ok := range map[string]bool{
		"8.0.16": true, "8.4.3-log": true, "9.7.4": true, "8.0.15": false, "5.7.44-log": false,
		"10.6.0-MariaDB": true, "10.11.6-MariaDB-0+deb12u1": true, "11.8.2-MariaDB": true, "10.5.20-MariaDB-log": false, "TiDB": false,
	} {
		if err := checkVersion(version); (err == nil) != ok {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestDriverErrorsAreToldApartByNumber(t *testing.T) {
	number := func(n uint16) error {
		return fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: n, Message: "Deadlock"})
	}
	for _, c := range []struct {
		err  error
		want failure
	}{
		{number(1213), deadlock}, {number(1205), lockWait}, {number(1062), duplicate}, {number(1053), noConnection},
		{number(1064), failure{}}, {mysql.ErrInvalidConn, noConnection}, {context.DeadlineExceeded, noConnection},
	} {
		if got := (mysqlDialect{}).failure(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	if got := (sqliteDialect{}).failure(errors.New("database is locked")); got != noConnection {
		t.Errorf("%v", got)
	}
}

// A lock that never comes free is waited for three times, a deadlock is tried often, and both end as Unavailable.
func TestPatienceEnds(t *testing.T) {
	for _, c := range []struct {
		number   uint16
		attempts int
		kind     order.Kind
	}{{1205, 3, order.Unavailable}, {1213, 13, order.Unavailable}, {1062, 7, order.Internal}, {1064, 1, order.Internal}} {
		retries := 0
		s, err := Open(context.Background(), Options{Driver: "sqlite", DSN: t.TempDir() + "/lapse.db", OnRetry: func(string) { retries++ }})
		if err != nil {
			t.Fatal(err)
		}
		s.dialect = failing{s.dialect}
		attempts := 0
		err = s.write(context.Background(), func(context.Context, tx) error {
			attempts++
			return &mysql.MySQLError{Number: c.number}
		})
		if attempts != c.attempts || retries != c.attempts-1 || order.KindOf(err) != c.kind {
			t.Errorf("%d: %d attempts, %d retries, %v", c.number, attempts, retries, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// failing is a dialect that classifies errors as MySQL's does.
type failing struct{ dialect }

func (failing) failure(err error) failure { return mysqlDialect{}.failure(err) }

func FuzzACursorIsOursOrRefused(f *testing.F) {
	f.Add("")
	f.Add(encodeCursor(order.Cursor{ExpireAt: time.UnixMilli(1_774_785_600_123), ID: 7}))
	f.Add("MS4x")
	f.Fuzz(func(t *testing.T, cursor string) {
		c, err := decodeCursor(cursor)
		if err != nil {
			if order.KindOf(err) != order.Invalid {
				t.Error(err)
			}
			return
		}
		if cursor != "" && encodeCursor(c) != cursor {
			t.Errorf("%q was taken for %+v", cursor, c)
		}
	})
}
