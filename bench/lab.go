package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
)

// lab is what all measurements share.
type lab struct {
	meter
	dsn        string // without a database
	nameServer string
	run        string // part of the names of topics, groups and databases of this run
	scale      float64
	out        string // folder of the results
	profiles   bool
	log        *zap.Logger
}

func newLab(scale float64, out string, profiles bool) (*lab, error) {
	l := &lab{
		dsn: os.Getenv("LAPSE_TEST_MYSQL_DSN"), nameServer: os.Getenv("LAPSE_TEST_ROCKETMQ"),
		run: strings.ToLower(ulid.Make().String()[:10]), scale: scale, out: out, profiles: profiles,
	}
	if l.dsn == "" || l.nameServer == "" {
		return nil, errors.New("LAPSE_TEST_MYSQL_DSN and LAPSE_TEST_ROCKETMQ must say where the services are: make bench starts them")
	}
	l.database = pidOf(os.Getenv("LAPSE_TEST_MYSQL_PID"))
	if dir := os.Getenv("LAPSE_TEST_ROCKETMQ_DIR"); dir != "" {
		raw, _ := os.ReadFile(filepath.Join(dir, "broker.pid")) // without it the broker's CPU time is not shown
		l.broker = pidOf(string(raw))
	}
	config := zap.NewProductionConfig()
	config.Level.SetLevel(zap.WarnLevel)
	config.OutputPaths = []string{filepath.Join(out, "bench.log")}
	var err error
	l.log, err = config.Build()
	return l, err
}

// pidOf reads a process id; 0 if it is none of a process here.
func pidOf(text string) int {
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || processCPU(pid) == 0 {
		return 0
	}
	return pid
}

// scaled is n at the scale of this run.
func (l *lab) scaled(n int) int { return max(1, int(float64(n)*l.scale)) }

// say tells whoever watches what is going on.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// metrics makes figures that nobody scrapes.
func metrics() *lifecycle.Metrics { return lifecycle.NewMetrics(prometheus.NewRegistry()) }

// defaults are options as they are without a configuration.
func defaults[T any]() T {
	var zero T
	return zero
}

// profiled writes the CPU profile of work, if profiles are wanted.
func (l *lab) profiled(name string, work func() error) error {
	if !l.profiles {
		return work()
	}
	file, err := os.Create(filepath.Join(l.out, name+".prof"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return work()
}
