package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are the letters of doc.go.
const parts = "abcdef"

func run(ctx context.Context) error {
	only := flag.String("only", parts, "parts to run, such as a,c")
	scale := flag.Float64("scale", 1, "share of the whole amount of work, more than 0 to 1; ratios of small runs say little")
	out := flag.String("out", "out", "folder of the results")
	profiles := flag.Bool("cpuprofile", false, "also write CPU profiles of Lapse's side into the folder of the results")
	flag.Parse()
	if *scale <= 0 || *scale > 1 || flag.NArg() > 0 {
		return errors.New("usage: bench [-only a,c] [-scale 0.1] [-out folder] [-cpuprofile]")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	l, err := newLab(*scale, *out, *profiles)
	if err != nil {
		return err
	}
	r := &report{Started: time.Now(), Scale: *scale}
	if r.Machine, err = l.describe(ctx); err != nil {
		return err
	}
	if err := l.runParts(ctx, r, *only); err != nil {
		return err
	}
	r.Seconds = time.Since(r.Started).Seconds()
	r.Machine.LoadAfter = load()
	r.Goals = r.goals()
	r.print(os.Stdout)
	return r.save(*out)
}

// runParts runs the chosen parts one after the other.
func (l *lab) runParts(ctx context.Context, r *report, only string) error {
	steps := []struct {
		name string
		run  func() error
	}{
		{"a", func() (err error) { r.Create, err = l.creates(ctx); return err }},
		{"b", func() (err error) { r.Close, err = l.closes(ctx); return err }},
		{"c", func() (err error) { r.Lateness, err = l.latenesses(ctx); return err }},
		{"d", func() (err error) { r.Burst, err = l.bursts(ctx); return err }},
		{"e", func() (err error) { r.Sweep, err = l.sweeps(ctx); return err }},
		{"f", func() (err error) { r.Memory, err = l.memories(ctx); return err }},
	}
	for _, name := range strings.Split(strings.ReplaceAll(only, ",", ""), "") {
		i := slices.IndexFunc(steps, func(s struct {
			name string
			run  func() error
		}) bool {
			return s.name == name
		})
		if i < 0 {
			return fmt.Errorf("there is no part %q; the parts are %s", name, parts)
		}
		if err := steps[i].run(); err != nil {
			return fmt.Errorf("part %s: %w", name, err)
		}
	}
	return nil
}
