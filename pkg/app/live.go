package app

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
)

// Live is the configuration in force. A reload replaces it as a whole; parts that read a setting at each
// use see the new value at the next one, and no timer starts anew for it.
type Live struct {
	src  Source
	now  atomic.Pointer[Config]
	seen []string // what the files said when they were last read; see fingerprints
}

// Open loads the configuration for the first time.
func Open(src Source) (*Live, error) {
	l := &Live{src: src, seen: fingerprints(src.files())}
	c, err := Load(src)
	if err != nil {
		return nil, err
	}
	l.now.Store(c)
	return l, nil
}

// Config is what is in force now. It is shared: do not change it.
func (l *Live) Config() *Config { return l.now.Load() }

// reload reads everything afresh. It returns the names of settings that now have another value, and of
// those that would need a restart for it and keep the old one. On an error nothing has changed.
func (l *Live) reload() (changed, needRestart []string, err error) {
	fresh, err := Load(l.src)
	if err != nil {
		return nil, nil, err
	}
	next := *l.Config()
	have, want := next.Keys(), fresh.Keys()
	for i, k := range have {
		switch {
		case k.value.String() == want[i].value.String():
		case k.Live:
			k.value.take(want[i].value)
			changed = append(changed, k.Name)
		default:
			needRestart = append(needRestart, k.Name)
		}
	}
	l.now.Store(&next)
	return changed, needRestart, nil
}

// settleTime is how long the files must be left alone before they are read: editors and orchestrators
// write in several steps.
const settleTime = 100 * time.Millisecond

// watcher reloads Live when its files change.
type watcher struct {
	live     *Live
	changed  func() // called after each reload that changed something
	log      *zap.Logger
	reloads  *prometheus.CounterVec
	rejected prometheus.Gauge
}

func newWatcher(live *Live, changed func(), reg prometheus.Registerer, log *zap.Logger) *watcher {
	f := promauto.With(reg)
	return &watcher{
		live: live, changed: changed, log: log,
		reloads:  f.NewCounterVec(prometheus.CounterOpts{Name: "lapse_config_reloads_total", Help: "Reloads of the configuration, by outcome: applied, unchanged or refused."}, []string{"outcome"}),
		rejected: f.NewGauge(prometheus.GaugeOpts{Name: "lapse_config_refused", Help: "1 while the configuration file is not valid and an older one is in force."}),
	}
}

// Run watches until ctx ends. It watches directories, not files: a mounted file is a symlink of a symlink
// that is swapped as a whole, and editors replace files.
func (w *watcher) Run(ctx context.Context) error {
	files := w.live.src.files()
	if len(files) == 0 {
		<-ctx.Done()
		return nil
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer fs.Close()
	for _, f := range files {
		if err := fs.Add(filepath.Dir(f)); err != nil {
			return err
		}
	}
	return w.loop(ctx, fs)
}

func (w *watcher) loop(ctx context.Context, fs *fsnotify.Watcher) error {
	settled := time.NewTimer(settleTime) // a change between loading and watching is a change
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-fs.Events:
			settled.Reset(settleTime)
		case err := <-fs.Errors:
			w.log.Warn("watching the configuration failed, reading it to be sure", zap.Error(err))
			settled.Reset(settleTime)
		case <-settled.C:
			// The directory may be a busy one: dev keeps its database there.
			if now := fingerprints(w.live.src.files()); !slices.Equal(now, w.live.seen) {
				w.live.seen = now
				w.reload()
			}
		}
	}
}

func (w *watcher) reload() {
	changed, needRestart, err := w.live.reload()
	if err != nil {
		w.log.Error("configuration refused, the old values stay in force", zap.Error(err))
		w.reloads.WithLabelValues("refused").Inc()
		w.rejected.Set(1)
		return
	}
	w.rejected.Set(0)
	if len(needRestart) > 0 {
		w.log.Warn("configuration changed: restart needed for some settings, they keep their old values", zap.Strings("settings", needRestart))
	}
	if len(changed) == 0 {
		w.reloads.WithLabelValues("unchanged").Inc()
		return
	}
	w.reloads.WithLabelValues("applied").Inc()
	w.changed()
	w.log.Info("configuration reloaded", zap.Strings("settings", changed))
}

// fingerprints tell whether files have changed: a hash of what they say, "" for one that cannot be read.
func fingerprints(files []string) []string {
	prints := make([]string, len(files))
	for i, f := range files {
		if raw, err := os.ReadFile(f); err == nil {
			sum := sha256.Sum256(raw)
			prints[i] = string(sum[:])
		}
	}
	return prints
}
