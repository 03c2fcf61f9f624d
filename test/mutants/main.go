package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// patience is how long a test may take to catch a bug; one that hangs has caught it.
const patience = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	alive, err := hunt(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || alive > 0 {
		os.Exit(1)
	}
}

// hunt plants the named bugs, or all, and returns how many lived on.
func hunt(ctx context.Context, names []string) (alive int, err error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	planted := 0
	for _, b := range bugs {
		if len(names) > 0 && !slices.Contains(names, b.name) {
			continue
		}
		planted++
		by, err := b.catch(ctx, dir)
		if err != nil {
			return alive, fmt.Errorf("%s: %w", b.name, err)
		}
		if by == "" {
			alive++
			by = "NOBODY"
		}
		fmt.Printf("%-75s %s\n", b.name, by)
	}
	if planted == 0 {
		return 0, errors.New("no bug of that name")
	}
	fmt.Printf("%d of %d bugs were caught\n", planted-alive, planted)
	return alive, nil
}

// plant returns the file with the bug in it.
func (b bug) plant(root string) (string, error) {
	code, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(code), b.old); n != 1 {
		return "", fmt.Errorf("%s has %d places like\n%s", b.file, n, b.old)
	}
	return strings.Replace(string(code), b.old, b.new, 1), nil
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// catch runs the tests on the bug and returns the first that failed; "" if none did.
func (b bug) catch(ctx context.Context, dir string) (by string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	code, err := b.plant(root)
	if err != nil {
		return "", err
	}
	mutant, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, b.file): mutant}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(mutant, []byte(code), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	args := []string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast", "-timeout", patience.String(), "-run", b.tests}
	said, failed := exec.CommandContext(ctx, "go", append(args, strings.Fields(b.catcher)...)...).CombinedOutput()
	found := failedTest.FindAllSubmatch(said, -1)
	switch {
	case failed == nil && strings.Contains(string(said), "[no tests to run]"):
		return "", fmt.Errorf("no test is like %s", b.tests)
	case failed == nil:
		return "", nil
	case len(found) > 0:
		return string(found[len(found)-1][1]), nil
	case strings.Contains(string(said), "panic: "):
		return "a panic or a hang in " + b.tests, nil
	}
	return "", fmt.Errorf("the tests did not run: %w\n%s", failed, said)
}
