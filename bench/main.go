package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
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

func run(ctx context.Context) error {
	only := flag.String("only", "a,b,c,d,e,f", "parts to run, in this order")
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

// runParts runs the chosen parts, one after the other.
func (l *lab) runParts(ctx context.Context, r *report, only string) error {
	parts := map[string]func() error{
		"a": func() (err error) { r.Create, err = l.creates(ctx); return err },
		"b": func() (err error) { r.Close, err = l.closes(ctx); return err },
		"c": func() (err error) { r.Lateness, err = l.latenesses(ctx); return err },
		"d": func() (err error) { r.Burst, err = l.bursts(ctx); return err },
		"e": func() (err error) { r.Sweep, err = l.sweeps(ctx); return err },
		"f": func() (err error) { r.Memory, err = l.memories(ctx); return err },
	}
	chosen := strings.Split(only, ",")
	for _, name := range chosen {
		if parts[name] == nil {
			return fmt.Errorf("there is no part %q; the parts are a to f", name)
		}
	}
	for _, name := range chosen {
		if err := parts[name](); err != nil {
			return fmt.Errorf("part %s: %w", name, err)
		}
	}
	return nil
}
