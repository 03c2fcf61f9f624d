package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// eventually polls until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// watched is a Live that is watched for the length of a test.
type watched struct {
	*Live
	watcher *watcher
	logs    *observer.ObservedLogs
}

func watch(t *testing.T, path string) watched {
	t.Helper()
	live, err := Open(Source{File: path})
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	w := newWatcher(live, func() {}, prometheus.NewRegistry(), zap.New(core))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return watched{live, w, logs}
}

func (w watched) outcome(name string) float64 {
	return read(w.watcher.reloads.WithLabelValues(name))
}

func (w watched) said(text string) bool {
	return slices.ContainsFunc(w.logs.All(), func(e observer.LoggedEntry) bool {
		return strings.Contains(e.Message+fmt.Sprint(e.ContextMap()), text)
	})
}

func TestAChangedFileTakesEffect(t *testing.T) {
	path := file(t, "sweep: {interval: 10s}\n")
	w := watch(t, path)
	write(t, path, "sweep: {interval: 20s}\nlog: {level: debug}\n")
	eventually(t, "the new values are in force", func() bool {
		return w.Config().Sweep.Interval == 20*time.Second && w.Config().Log.Level == "debug"
	})
	eventually(t, "the log names the settings", func() bool { return w.said("sweep.interval log.level") })
}

func TestABadFileKeepsTheOldValuesAndSaysSo(t *testing.T) {
	bad := map[string]string{
		"no YAML":        "sweep: [",
		"a bad value":    "sweep: {interval: 20s, limit: -1}\n",
		"a wrong name":   "sweep: {interval: 20s, limt: 1}\n",
		"a bad relation": "sweep: {interval: 20s}\norder: {timeout: {max: 1s}}\n",
	}
	for name, content := range bad {
		t.Run(name, func(t *testing.T) {
			path := file(t, "sweep: {interval: 10s}\n")
			w := watch(t, path)
			write(t, path, content)
			eventually(t, "the metric tells", func() bool { return read(w.watcher.rejected) == 1 })
			if got := w.Config().Sweep.Interval; got != 10*time.Second {
				t.Errorf("half a file is in force: %v", got)
			}
			if !w.said("configuration refused") || w.outcome("refused") != 1 {
				t.Errorf("logged %v, counted %v", w.logs.All(), w.outcome("refused"))
			}
			write(t, path, "sweep: {interval: 30s}\n")
			eventually(t, "a good file is taken again", func() bool {
				return w.Config().Sweep.Interval == 30*time.Second && read(w.watcher.rejected) == 0
			})
		})
	}
}

func TestAFileThatGoesAwayKeepsTheOldValues(t *testing.T) {
	path := file(t, "sweep: {interval: 10s}\n")
	w := watch(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the metric tells", func() bool { return read(w.watcher.rejected) == 1 })
	if got := w.Config().Sweep.Interval; got != 10*time.Second {
		t.Errorf("got %v", got)
	}
}

func TestSettingsThatNeedARestartKeepTheirValueAndTheLogSaysWhich(t *testing.T) {
	path := file(t, "delay: {grace: 1s}\nsweep: {interval: 10s}\n")
	w := watch(t, path)
	write(t, path, "delay: {grace: 2s}\nsweep: {interval: 20s}\n")
	eventually(t, "the live setting changes", func() bool { return w.Config().Sweep.Interval == 20*time.Second })
	if got := w.Config().Delay.Grace; got != time.Second {
		t.Errorf("delay.grace changed to %v", got)
	}
	eventually(t, "the log says so", func() bool { return w.said("restart needed") && w.said("delay.grace") })
}

// A mounted volume is swapped like this: file ⇒ ..data/file, ..data ⇒ a directory that is replaced.
func TestASwappedSymlinkIsAChange(t *testing.T) {
	dir := t.TempDir()
	release := func(n int) {
		version := fmt.Sprintf("..v%d", n)
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "lapse.yaml"), fmt.Sprintf("sweep: {interval: %ds}\n", n))
		next := filepath.Join(dir, "..next")
		if err := os.Symlink(version, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	release(1)
	path := filepath.Join(dir, "lapse.yaml")
	if err := os.Symlink("..data/lapse.yaml", path); err != nil {
		t.Fatal(err)
	}
	w := watch(t, path)
	for n := 2; n <= 5; n++ {
		release(n)
		eventually(t, "the swapped file is in force", func() bool { return w.Config().Sweep.Interval == time.Duration(n)*time.Second })
	}
}

func TestOtherFilesBesideItAreNoChange(t *testing.T) {
	path := file(t, "sweep: {interval: 10s}\n")
	w := watch(t, path)
	for n := range 20 {
		write(t, filepath.Join(filepath.Dir(path), "lapse.db"), fmt.Sprint(n))
	}
	write(t, path, "sweep: {interval: 20s}\n")
	eventually(t, "the change is in force", func() bool { return w.Config().Sweep.Interval == 20*time.Second })
	if n := w.outcome("applied") + w.outcome("unchanged"); n != 1 {
		t.Errorf("%v reloads for one change", n)
	}
}

func TestReadersSeeOneWholeConfigurationWhileItIsReloaded(t *testing.T) {
	path := file(t, "sweep: {limit: 1, cap: 1}\n")
	w := watch(t, path)
	for n := 2; n <= 6; n++ {
		write(t, path, fmt.Sprintf("sweep: {limit: %d, cap: %d}\n", n, n))
		eventually(t, "the change is in force", func() bool {
			c := w.Config()
			if c.Sweep.Limit != c.Sweep.Cap {
				t.Fatalf("half a reload: %+v", c.Sweep)
			}
			return c.Sweep.Limit == n
		})
	}
}

func TestAPrintedValueTellsWhetherASettingHasChanged(t *testing.T) {
	path := file(t, "sweep: {interval: 60s}\n")
	live, err := Open(Source{File: path})
	if err != nil {
		t.Fatal(err)
	}
	before := live.Config()
	write(t, path, "sweep: {interval: 1m}\n")
	changed, restart, err := live.reload()
	if err != nil || len(changed)+len(restart) != 0 {
		t.Errorf("60s and 1m are the same: %v %v %v", changed, restart, err)
	}
	write(t, path, "sweep: {interval: 2m}\n")
	if _, _, err := live.reload(); err != nil || before.Sweep.Interval != time.Minute {
		t.Errorf("a configuration that was handed out has changed: %v %v", before.Sweep, err)
	}
}
