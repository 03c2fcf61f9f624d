package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// link is the way from the processes to the database, which can be made bad.
type link struct{ proxy *toxiproxy.Proxy }

// toxics are what may be wrong with a link, by what it does to it.
var toxics = map[string]string{
	"cut":  `{"name": "fault", "type": "reset_peer", "stream": "downstream"}`,                              // connections end, new ones as well
	"hang": `{"name": "fault", "type": "timeout", "stream": "upstream", "attributes": {"timeout": 0}}`,     // half open: what is said does not arrive
	"mute": `{"name": "fault", "type": "timeout", "stream": "downstream", "attributes": {"timeout": 0}}`,   // it arrives, and the answer is lost
	"slow": `{"name": "fault", "type": "latency", "stream": "downstream", "attributes": {"latency": 300}}`, // ms
}

// newLink makes a link to an address; it ends with t.
func newLink(t *testing.T, upstream string) *link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &link{toxiproxy.NewProxy(server, "database", "127.0.0.1:0", upstream)}
	if err := l.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.proxy.Stop)
	return l
}

// addr is where the link listens.
func (l *link) addr() string { return l.proxy.Listen }

// poison makes the link bad for a while.
func (l *link) poison(ctx context.Context, toxic string, down time.Duration) error {
	return between(ctx, down, func() error {
		_, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic))
		return err
	}, func() error { return l.proxy.Toxics.RemoveToxic(context.WithoutCancel(ctx), "fault") })
}
