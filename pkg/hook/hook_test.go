package hook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"lapse/pkg/hook"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/signature"
)

var (
	_ lifecycle.Hook = (*hook.HTTP)(nil)
	_ lifecycle.Hook = hook.Owner(nil)
)

const secret = "a secret of both sides"

var booking = order.Adopted{Kind: "booking", Ref: "B-1 ü&?", Deadline: time.Date(2026, 3, 29, 12, 0, 0, 123e6, time.UTC)}

// calling is a hook whose owner is one handler.
func calling(t *testing.T, owner http.Handler) *hook.HTTP {
	t.Helper()
	server := httptest.NewServer(owner)
	t.Cleanup(server.Close)
	h, err := hook.New(server.URL+"/lapse/", secret)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdle)
	return h
}

func says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		fmt.Fprint(w, body)
	}
}

// owner answers with what it holds and notes what it was asked.
type owner struct {
	answer order.Answer
	items  []order.Adopted
	next   string
	err    error
	asked  []any
}

func (o *owner) Close(_ context.Context, a order.Adopted) (order.Answer, error) {
	o.asked = []any{a}
	return o.answer, o.err
}

func (o *owner) Due(_ context.Context, before time.Time, after string, limit int) ([]order.Adopted, string, error) {
	o.asked = []any{before, after, limit}
	return o.items, o.next, o.err
}

func served(o *owner) http.Handler { return http.StripPrefix("/lapse", hook.Handler(secret, o)) }

func TestWhatAnOwnerSaysComesThroughAsItIs(t *testing.T) {
	for _, want := range []order.Answer{
		{Word: order.WordClosed}, {Word: order.WordFinal}, {Word: order.WordLater, Deadline: booking.Deadline.Add(time.Hour)},
	} {
		o := &owner{answer: want}
		got, err := calling(t, served(o)).Close(t.Context(), booking)
		if err != nil || got != want || !reflect.DeepEqual(o.asked, []any{booking}) {
			t.Errorf("%+v, %v; want %+v; asked %v", got, err, want, o.asked)
		}
	}
	for _, items := range [][]order.Adopted{{}, {booking, booking}} {
		o := &owner{items: items, next: "B-1 ü&?"}
		before := booking.Deadline.Add(time.Nanosecond)
		got, next, err := calling(t, served(o)).Due(t.Context(), before, "after & ü", 200)
		if err != nil || !reflect.DeepEqual(got, items) || next != o.next || !reflect.DeepEqual(o.asked, []any{before, "after & ü", 200}) {
			t.Errorf("%+v, %q, %v; asked %v", got, next, err, o.asked)
		}
	}
}

func TestAnOwnerThatHasNoAnswerGivesNone(t *testing.T) {
	for name, o := range map[string]*owner{
		"an error":                 {err: errors.New("the table is locked"), answer: order.Answer{Word: order.WordClosed}},
		"no word":                  {},
		"an unknown word":          {answer: order.Answer{Word: "CLOSED"}},
		"later, but not when":      {answer: order.Answer{Word: order.WordLater}},
		"later, but out of bounds": {answer: order.Answer{Word: order.WordLater, Deadline: order.Never}},
	} {
		if got, err := calling(t, served(o)).Close(t.Context(), booking); order.KindOf(err) != order.Unavailable || got != (order.Answer{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	o := &owner{err: errors.New("the table is locked")}
	if got, _, err := calling(t, served(o)).Due(t.Context(), booking.Deadline, "", 1); order.KindOf(err) != order.Unavailable || got != nil ||
		!strings.Contains(err.Error(), "the table is locked") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhateverIsNotExplicitIsUnknown(t *testing.T) {
	const closed = `{"result":"closed"}`
	for name, handler := range map[string]http.HandlerFunc{
		"an error text in a 200": says("text/plain", "SYSTEM BUSY"),
		"an error text as JSON":  says("application/json", "SYSTEM BUSY"),
		"a page":                 says("text/html", closed),
		"no type":                says("", closed),
		"nothing":                says("application/json", ""),
		"null":                   says("application/json", "null"),
		"an empty object":        says("application/json", "{}"),
		"a list":                 says("application/json", "["+closed+"]"),
		"half a JSON":            says("application/json", closed[:15]),
		"two answers":            says("application/json", closed+closed),
		"an unknown result":      says("application/json", `{"result":"ok"}`),
		"items that are none":    says("application/json", `{"result":7,"items":7}`),
		"too long":               says("application/json", `{"result":"closed","items":[],"x":"`+strings.Repeat("x", 1<<20)+`"}`),
		"500": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, closed)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"a connection that breaks": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			h := calling(t, handler)
			if got, err := h.Close(t.Context(), booking); order.KindOf(err) != order.Unavailable || got != (order.Answer{}) {
				t.Errorf("close: %+v, %v", got, err)
			}
			if got, _, err := h.Due(t.Context(), booking.Deadline, "", 1); order.KindOf(err) != order.Unavailable || got != nil {
				t.Errorf("due: %+v, %v", got, err)
			}
		})
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	h := calling(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := h.Close(ctx, booking); order.KindOf(err) != order.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestOnlyCallsThatWereSignedLatelyAreServed(t *testing.T) {
	const body = `{"kind":"booking","ref":"B-1","deadline":"2026-03-29T12:00:00Z"}`
	const query = "before=2026-03-29T12%3A00%3A00Z&after=&limit=10"
	now := time.Now().Unix()
	for name, c := range map[string]struct {
		timestamp int64
		signature func(content string) string
		status    int
	}{
		"signed":            {now, func(c string) string { return signature.Sign(secret, now, []byte(c)) }, http.StatusOK},
		"by somebody else":  {now, func(c string) string { return signature.Sign("another secret", now, []byte(c)) }, http.StatusUnauthorized},
		"something else":    {now, func(c string) string { return signature.Sign(secret, now, []byte(c+" ")) }, http.StatusUnauthorized},
		"another time":      {now, func(c string) string { return signature.Sign(secret, now-1, []byte(c)) }, http.StatusUnauthorized},
		"not at all":        {now, func(string) string { return "" }, http.StatusUnauthorized},
		"with no digits":    {now, func(string) string { return "zz" }, http.StatusUnauthorized},
		"long ago":          {now - 400, func(c string) string { return signature.Sign(secret, now-400, []byte(c)) }, http.StatusUnauthorized},
		"in the far future": {now + 400, func(c string) string { return signature.Sign(secret, now+400, []byte(c)) }, http.StatusUnauthorized},
	} {
		o := &owner{answer: order.Answer{Word: order.WordClosed}}
		for _, r := range []*http.Request{
			httptest.NewRequest(http.MethodPost, "/close", strings.NewReader(body)), httptest.NewRequest(http.MethodGet, "/due?"+query, nil),
		} {
			o.asked = nil
			content := r.URL.RawQuery
			if r.Method == http.MethodPost {
				content = body
			}
			r.Header.Set(signature.TimestampHeader, strconv.FormatInt(c.timestamp, 10))
			r.Header.Set(signature.Header, c.signature(content))
			w := httptest.NewRecorder()
			hook.Handler(secret, o).ServeHTTP(w, r)
			if w.Code != c.status || (o.asked != nil) != (c.status == http.StatusOK) {
				t.Errorf("%s %s: %d, owner asked %v", name, r.URL.Path, w.Code, o.asked)
			}
		}
	}
}

func TestCallsThatMakeNoSenseNeverReachTheOwner(t *testing.T) {
	now := time.Now().Unix()
	for name, r := range map[string]*http.Request{
		"no JSON":        httptest.NewRequest(http.MethodPost, "/close", strings.NewReader("x")),
		"a huge body":    httptest.NewRequest(http.MethodPost, "/close", strings.NewReader(strings.Repeat(" ", 70_000)+"{}")),
		"no time":        httptest.NewRequest(http.MethodGet, "/due?limit=1", nil),
		"no limit":       httptest.NewRequest(http.MethodGet, "/due?before=2026-03-29T12:00:00Z", nil),
		"a huge limit":   httptest.NewRequest(http.MethodGet, "/due?before=2026-03-29T12:00:00Z&limit=1001", nil),
		"another method": httptest.NewRequest(http.MethodPut, "/close", nil),
		"another path":   httptest.NewRequest(http.MethodPost, "/open", nil),
	} {
		o := &owner{}
		content := []byte(r.URL.RawQuery)
		if r.Method == http.MethodPost {
			var err error
			if content, err = io.ReadAll(r.Body); err != nil {
				t.Fatal(err)
			}
			r.Body = io.NopCloser(strings.NewReader(string(content)))
		}
		r.Header.Set(signature.TimestampHeader, strconv.FormatInt(now, 10))
		r.Header.Set(signature.Header, signature.Sign(secret, now, content))
		w := httptest.NewRecorder()
		hook.Handler(secret, o).ServeHTTP(w, r)
		if w.Code < 400 || w.Code >= 500 || o.asked != nil {
			t.Errorf("%s: %d, asked %v", name, w.Code, o.asked)
		}
	}
}

func TestAHookNeedsAURLAndASecret(t *testing.T) {
	for _, c := range []struct{ url, secret string }{
		{"", secret}, {"shop/lapse", secret}, {"ftp://shop/lapse", secret}, {"http:///lapse", secret}, {"http://shop/lapse?x=1", secret},
		{"http://shop/lapse#x", secret}, {"http://shop/%zz", secret}, {"http://shop/lapse", "too short"},
	} {
		if _, err := hook.New(c.url, c.secret); order.KindOf(err) != order.Invalid {
			t.Errorf("%q, %q: %v", c.url, c.secret, err)
		}
	}
}

func TestAnOwnerIsNotServedWithASecretThatCanBeGuessed(t *testing.T) {
	defer func() {
		if err, _ := recover().(error); order.KindOf(err) != order.Invalid {
			t.Errorf("%v", err)
		}
	}()
	hook.Handler("short", &owner{})
	t.Error("served")
}
