package app

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"lapse/pkg/order"
)

const (
	waitTry   = 5 * time.Second // bound of one attempt; something that accepts and never answers is absent too
	waitFirst = 200 * time.Millisecond
	waitMost  = 5 * time.Second  // longest pause between two attempts
	waitSay   = 10 * time.Second // how often the log says that it still waits
)

// waitFor tries until something that the process needs is there. What is there but wrong (any error not
// of kind order.Unavailable) fails at once, since waiting would not mend it.
func waitFor(ctx context.Context, log *zap.Logger, what, hint string, try func(ctx context.Context) error) error {
	since := time.Now()
	var said time.Time
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = waitFirst, waitMost
	for {
		err := attempt(ctx, try)
		switch {
		case err == nil:
			if !said.IsZero() {
				log.Info(what+" is there", zap.Duration("waited", time.Since(since).Round(time.Millisecond)))
			}
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case order.KindOf(err) != order.Unavailable:
			return err
		}
		if time.Since(said) >= waitSay {
			said = time.Now()
			log.Warn("waiting for "+what, zap.Time("since", since), zap.String("hint", hint), zap.Error(err))
		}
		if !pauseFor(ctx, pause.NextBackOff()) {
			return ctx.Err()
		}
	}
}

// attempt is one try within its bound. One that uses it up is absent, whatever its error says.
func attempt(ctx context.Context, try func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, waitTry)
	defer cancel()
	err := try(bounded)
	if err != nil && bounded.Err() != nil {
		return order.Errorf(order.Unavailable, "no_answer", "no answer within %v", waitTry).Wrap(err)
	}
	return err
}

// pauseFor waits; false if ctx ended.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
