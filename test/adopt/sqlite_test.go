package adopt

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lapse/test/process"
	"lapse/test/services"
)

// This is what the example's README tells a newcomer to do.
func TestTheExampleRunsBesideLapseDevOnOneSQLiteFile(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	const secret = "only-for-this-machine"
	data, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", services.FreePort(t))
	s := &system{t: t, programs: process.Build(t, "./examples/bookings"), logs: t.TempDir(), shopAddr: address}
	ops := fmt.Sprintf("127.0.0.1:%d", services.FreePort(t))
	lapse := process.Start(t, s.logs, "lapse", s.programs.Path("lapse"), nil, "dev", "--data", data,
		"--set", "hook.url=http://"+address+"/lapse", "--set", "hook.secret="+secret,
		"--set", fmt.Sprintf("server.addr=127.0.0.1:%d", services.FreePort(t)), "--set", "ops.addr="+ops)
	s.await(startBound, "lapse dev is ready", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ops+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		status, _ := do(r)
		return status == http.StatusOK
	})
	shop := process.Start(t, s.logs, "bookings", s.programs.Path("bookings"), []string{"BOOKINGS_HOOK_SECRET=" + secret},
		"--dsn", filepath.Join(data, "lapse.db"), "--listen", address)
	s.await(startBound, "the shop answers", func() bool {
		status, _ := s.call(t.Context(), http.MethodGet, "/bookings/nosuch", "")
		return status == http.StatusNotFound
	})
	for ref, within := range map[string]time.Duration{"unpaid": 2 * time.Second, "paid": time.Minute} {
		if status, said, err := s.insist(t.Context(), "/bookings", fmt.Sprintf(`{"ref":%q,"pay_within":%q}`, ref, within)); err != nil || status != http.StatusOK {
			t.Fatal(status, said, err)
		}
	}
	if status, said := s.call(t.Context(), http.MethodPost, "/bookings/paid/pay", ""); status != http.StatusOK {
		t.Fatal(status, said)
	}
	for ref, state := range map[string]string{"unpaid": "lapsed", "paid": "paid"} {
		s.await(startBound, ref+" is "+state, func() bool {
			_, said := s.call(t.Context(), http.MethodGet, "/bookings/"+ref, "")
			return strings.Contains(said, `"state":"`+state+`"`)
		})
	}
	if status, said := s.call(t.Context(), http.MethodPost, "/bookings/unpaid/pay", ""); status != http.StatusConflict {
		t.Errorf("a lapsed booking was paid: %d %s", status, said)
	}
	for _, p := range []*process.Process{shop, lapse} {
		if err := p.Stop(stopBound); err != nil {
			t.Error(err)
		}
	}
}
