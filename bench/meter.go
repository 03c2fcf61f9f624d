package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/<pid>/stat: sysconf(_SC_CLK_TCK), 100 a second on every Linux that Go runs on.
const tick = time.Second / 100

const (
	quietWindow = 400 * time.Millisecond // the database counts as idle when it used
	quietShare  = 0.05                   // less than this share of one core for so long
	quietMost   = 20 * time.Second       // it is waited for no longer than this
)

// meter reads the CPU time of the three that share the work.
type meter struct {
	database int // process ids; 0 if it cannot be seen from here
	broker   int
}

// cost is what a piece of work took.
type cost struct {
	wall     time.Duration
	database time.Duration // with what the server had left to do afterwards, such as purge; 0 if unknown
	broker   time.Duration // 0 if unknown
	program  time.Duration // this process
}

// measure runs work. It begins and ends with an idle database, so that each piece pays for its own purge and
// page writes and for nobody else's.
func (m meter) measure(ctx context.Context, work func() error) (cost, error) {
	m.quiet(ctx)
	database := processCPU(m.database)
	c, err := m.span(work)
	m.quiet(ctx)
	c.database = processCPU(m.database) - database
	return c, errors.Join(err, ctx.Err())
}

// span runs work and leaves out what the database has left to do.
func (m meter) span(work func() error) (cost, error) {
	database, broker, program := processCPU(m.database), processCPU(m.broker), programCPU()
	start := time.Now()
	err := work()
	return cost{
		wall: time.Since(start), program: programCPU() - program,
		database: processCPU(m.database) - database, broker: processCPU(m.broker) - broker,
	}, err
}

// quiet waits until the database is idle.
func (m meter) quiet(ctx context.Context) {
	if m.database == 0 {
		return
	}
	for deadline := time.Now().Add(quietMost); time.Now().Before(deadline); {
		before := processCPU(m.database)
		if !sleep(ctx, quietWindow) {
			return
		}
		if processCPU(m.database)-before < time.Duration(quietShare*float64(quietWindow)) {
			return
		}
	}
}

// processCPU is the user and system time of a process and its threads so far; 0 if it cannot be read.
func processCPU(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the name in parentheses, which may hold anything; utime and stime are 14 and 15.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// programCPU is the user and system time of this process so far.
func programCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// memory is a field of /proc/<pid>/status in MB (2^20 bytes), such as VmRSS or VmHWM.
func memory(pid int, field string) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}

// sleep waits for d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
