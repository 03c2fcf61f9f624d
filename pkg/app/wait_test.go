package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"lapse/pkg/order"
)

var absent = order.Errorf(order.Unavailable, "absent", "connection refused")

func TestWaitingEndsWhenItIsThereAndTheLogSaysWhatForAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		start := time.Now()
		err := waitFor(t.Context(), zap.New(core), "the database", "look at database.dsn", func(context.Context) error {
			if time.Since(start) < 25*time.Second {
				return absent
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		waiting := logs.FilterMessage("waiting for the database").All()
		if len(waiting) < 2 || len(waiting) > 4 {
			t.Errorf("said %d times in 25 s, want about every 10 s", len(waiting))
		}
		fields := waiting[0].ContextMap()
		if since, ok := fields["since"].(time.Time); !ok || !since.Equal(start) || fields["hint"] != "look at database.dsn" || fields["error"] != "connection refused" {
			t.Errorf("got %v", fields)
		}
		if logs.FilterMessage("the database is there").Len() != 1 {
			t.Error("it does not say that the wait is over")
		}
	})
}

func TestWhatIsWrongRatherThanAbsentFailsAtOnce(t *testing.T) {
	wrong := order.Errorf(order.Conflict, "schema_version", "schema 3, want 4").WithHint("Run lapse migrate.")
	tries := 0
	err := waitFor(t.Context(), zap.NewNop(), "the database", "", func(context.Context) error { tries++; return wrong })
	if !errors.Is(err, wrong) || tries != 1 {
		t.Errorf("%d tries, got %v", tries, err)
	}
}

func TestWhatAcceptsAndNeverAnswersIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := waitFor(t.Context(), zap.NewNop(), "the database", "", func(ctx context.Context) error {
			if tries++; tries == 3 {
				return nil
			}
			<-ctx.Done()
			return errors.New("some driver's idea of a time-out")
		})
		if err != nil || tries != 3 {
			t.Errorf("%d tries, got %v", tries, err)
		}
	})
}

func TestAStopEndsTheWait(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	err := waitFor(ctx, zap.NewNop(), "the database", "", func(context.Context) error { stop(); return absent })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
