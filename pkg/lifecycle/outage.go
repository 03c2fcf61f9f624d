package lifecycle

import (
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// outage remembers that the broker is away and when to ask it again.
type outage struct {
	now   func() time.Time       // the local clock
	retry func() backoff.BackOff // makes waits
	mu    sync.Mutex
	waits backoff.BackOff // nil while the broker is there
	until time.Time
}

// begin notes a failed send and returns how long to wait. Failures of sends that were under way together
// count as one; first tells the first of them.
func (o *outage) begin() (wait time.Duration, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if left := o.until.Sub(o.now()); left > 0 {
		return left, false
	}
	if o.waits == nil {
		o.waits = o.retry()
	}
	wait = o.waits.NextBackOff()
	o.until = o.now().Add(wait)
	return wait, true
}

// end notes that a send went through.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits, o.until = nil, time.Time{}
}

// on reports whether the last word from the broker was a failure.
func (o *outage) on() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waits != nil
}

// left is the time until the broker may be asked again.
func (o *outage) left() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.until.Sub(o.now())
}
