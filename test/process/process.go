// Package process runs the project's programs as real processes, for tests.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lapse/test/services"
)

// Programs are the project's binaries in one directory.
type Programs string

// Build builds all programs, and those of other packages.
func Build(t testing.TB, others ...string) Programs {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"build", "-o", dir + string(filepath.Separator), "./producer", "./consumer", "./compensator", "./cmd/lapse"}, others...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = services.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return Programs(dir)
}

// BuildAt builds all programs as they were at a revision. It skips the test where the history is not there, as in a
// shallow clone.
func BuildAt(t testing.TB, revision string) Programs {
	t.Helper()
	src, dir := t.TempDir(), t.TempDir()
	archive := filepath.Join(src, "src.tar")
	for _, args := range [][]string{
		{"git", "archive", "-o", archive, revision},
		{"tar", "-x", "-C", src, "-f", archive},
		{"go", "-C", src, "build", "-o", dir + string(filepath.Separator), "./producer", "./consumer", "./compensator", "./cmd/lapse"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = services.Root()
		if out, err := cmd.CombinedOutput(); err != nil && args[0] == "git" {
			t.Skipf("SKIPPED, FOR WANT OF THE HISTORY OF THIS REPOSITORY: %v\n%s", err, out)
		} else if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return Programs(dir)
}

// Path of a program.
func (p Programs) Path(name string) string { return filepath.Join(string(p), name) }

// Run runs a program to its end and returns what it wrote to stdout; err has what it wrote to stderr.
func (p Programs) Run(ctx context.Context, env []string, name string, args ...string) (stdout string, err error) {
	cmd := exec.CommandContext(ctx, p.Path(name), args...)
	cmd.Env = environment(env)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// environment is env and what every program needs, without settings that this process was given.
func environment(env []string) []string {
	var all []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LAPSE_") {
			all = append(all, v)
		}
	}
	return append(all, env...)
}

// Process is one running program. Its log goes to a file that later runs of the same name are added to.
type Process struct {
	Name  string
	Log   string // path
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; read after ended
}

// tail is how much of a log is shown when a test fails.
const tail = 6000

// Start starts a program. When t ends it is killed if it still runs, and the end of its log is shown if t
// has failed.
func Start(t testing.TB, logs, name, path string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, Log: filepath.Join(logs, name+".log"), ended: make(chan struct{})}
	file, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), path, args...) // the cleanup below ends it
	p.cmd.Env = environment(env)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of %s's log:\n%s", name, p.Tail())
		}
	})
	return p
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Kill ends the process by SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.ended
}

// Freeze stops the process by SIGSTOP, and Thaw lets it go on: to others it is as if the machine had paused.
func (p *Process) Freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Stop ends the process by SIGTERM. It is an error if that takes longer than bound or the process does not
// end with status 0.
func (p *Process) Stop(bound time.Duration) error {
	if p.Ended() {
		return fmt.Errorf("%s had ended before: %w", p.Name, p.err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.Name, p.err)
		}
		return nil
	case <-timer.C:
		p.Kill()
		return errors.New(p.Name + " did not stop in time")
	}
}

// Tail is the end of the log.
func (p *Process) Tail() string {
	raw, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-tail):])
}
