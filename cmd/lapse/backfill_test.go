package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lapse/pkg/app"
	"lapse/pkg/hook"
	"lapse/pkg/order"
)

// openBookings is an owner with some open bookings and no other answer.
type openBookings []string

func (o openBookings) Close(context.Context, order.Adopted) (order.Answer, error) {
	return order.Answer{}, nil
}

func (o openBookings) Due(context.Context, time.Time, string, int) (due []order.Adopted, next string, err error) {
	for _, ref := range o {
		due = append(due, order.Adopted{Kind: "booking", Ref: ref, Deadline: time.Now().Add(time.Hour)})
	}
	return due, "", nil
}

func TestABackfillSchedulesWhatTheHookListsOnce(t *testing.T) {
	const secret = "of-this-test-only"
	owner := httptest.NewServer(hook.Handler(secret, openBookings{"B-1", "B-2", "B-3"}))
	defer owner.Close()
	data := devData(t)
	with := []string{"backfill", "--data", data, "--set", "hook.url=" + owner.URL, "--set", "hook.secret=" + secret}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{with, app.ExitOK, "3 items are open, 3 of them were not scheduled"},
		{append(with, "--json"), app.ExitOK, `"scheduled": 0`},
		{append(with, "--set", "hook.secret=another-one-than-the-owners"), app.ExitUnavailable, "401"},
		{append(with, "--set", "hook.url=http://127.0.0.1:1"), app.ExitUnavailable, "no answer"},
		{append(with, "--set", "hook.url=nowhere"), app.ExitUsage, "no URL"},
		{append(with, "--set", "hook.secret="), app.ExitUsage, "hook.url"},
		{[]string{"backfill", "--data", data}, app.ExitUsage, "hook.url"},
	} {
		if r := lapse(t, c.args...); r.code != c.code || !strings.Contains(r.stdout+r.stderr, c.says) {
			t.Errorf("%v: %+v\nwant %d, %q", c.args, r, c.code, c.says)
		}
	}
}
