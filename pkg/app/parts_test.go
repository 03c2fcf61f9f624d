package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// recorder notes the order in which parts end.
type recorder struct {
	mu    sync.Mutex
	ended []string
}

func (r *recorder) part(name string) part {
	return part{name, func(ctx context.Context) error {
		<-ctx.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = append(r.ended, name)
		return nil
	}}
}

func TestPartsStopInTheReverseOrderOfTheirStart(t *testing.T) {
	var r recorder
	p := newParts(zap.NewNop())
	for _, name := range []string{"database", "relay", "server"} {
		p.start(r.part(name))
	}
	if err := p.stop(time.Minute); err != nil {
		t.Error(err)
	}
	if want := []string{"server", "relay", "database"}; !slices.Equal(r.ended, want) {
		t.Errorf("got %v, want %v", r.ended, want)
	}
}

func TestAPartThatFailsEndsTheOthersAndItsErrorIsTold(t *testing.T) {
	var r recorder
	boom := errors.New("boom")
	p := newParts(zap.NewNop())
	p.start(r.part("database"))
	p.start(part{"relay", func(context.Context) error { return boom }})
	<-p.over.Done()
	if err := p.stop(time.Minute); !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "relay: ") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(r.ended, []string{"database"}) {
		t.Errorf("got %v", r.ended)
	}
}

func TestAPartThatEndsUnaskedIsAFailure(t *testing.T) {
	p := newParts(zap.NewNop())
	p.start(part{"relay", func(context.Context) error { return nil }})
	<-p.over.Done()
	if err := p.stop(time.Minute); err == nil || !strings.Contains(err.Error(), "relay ended unasked") {
		t.Errorf("got %v", err)
	}
}

func TestAPartThatDoesNotStopIsNamedWhenTheBoundHasPassed(t *testing.T) {
	var r recorder
	release := make(chan struct{})
	p := newParts(zap.NewNop())
	p.start(r.part("database"))
	p.start(part{"consumer", func(context.Context) error { <-release; return nil }})
	err := p.stop(time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "consumer") {
		t.Errorf("got %v", err)
	}
	close(release)
	if err := p.group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWhyAPartFailedIsToldAlthoughAnotherDoesNotStop(t *testing.T) {
	boom, release := errors.New("boom"), make(chan struct{})
	core, logs := observer.New(zap.ErrorLevel)
	p := newParts(zap.New(core))
	p.start(part{"database", func(context.Context) error { <-release; return nil }})
	p.start(part{"relay", func(context.Context) error { return boom }})
	<-p.over.Done()
	if all := logs.All(); len(all) != 1 || all[0].ContextMap()["error"] != "relay: boom" {
		t.Errorf("logged %v", logs.All())
	}
	if err := p.stop(time.Millisecond); !errors.Is(err, boom) || !strings.Contains(err.Error(), "not stopped within 1ms: database") {
		t.Errorf("got %v", err)
	}
	close(release)
}
