package readme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"lapse/pkg/app"
	"lapse/test/services"
)

// runner runs the blocks of one text.
type runner struct {
	t       testing.TB
	dir     string            // the copy of the project
	secrets string            // what stands for /run/secrets
	stands  map[string]string // what stands for something in the text
	env     []string
	served  []*served
}

// served is a command that goes on.
type served struct {
	command string
	cmd     *exec.Cmd
	said    string // path of its output
	ended   chan struct{}
	err     error // after ended
}

const (
	readyBound = 3 * time.Minute // it may have to be built first
	stopBound  = time.Minute
)

// newRunner makes a runner over a copy of the files at root.
func newRunner(t *testing.T, root string) *runner {
	t.Helper()
	r := &runner{t: t, dir: t.TempDir(), secrets: t.TempDir()}
	if err := copyProject(t.Context(), root, r.dir); err != nil {
		t.Fatal(err)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LAPSE_") && !strings.HasPrefix(v, "MAKE") {
			r.env = append(r.env, v)
		}
	}
	r.stands = map[string]string{"/run/secrets/": r.secrets + "/", "http://namesrv:9876": "127.0.0.1:9876"}
	t.Cleanup(func() {
		for _, s := range r.served {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("%s said:\n%s", s.command, s.output())
			}
		}
	})
	return r
}

// copyProject copies what is in the project, committed or not, without what was made from it.
func copyProject(ctx context.Context, root, dir string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	raw, err := list.Output()
	if err != nil {
		return fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(raw), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err // one that does not exist was deleted and not committed
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, raw, info.Mode().Perm()))
}

// run runs a text; the error says in which line of it what went wrong.
func (r *runner) run(ctx context.Context, text string) error {
	all, err := blocks(text)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.language == "yaml" && !b.has("norun") {
			if err := r.configure(b); err != nil {
				return fmt.Errorf("line %d: %w", b.line, err)
			}
		}
	}
	for _, b := range all {
		if b.language != "sh" || b.has("norun") {
			continue
		}
		do := r.script
		if b.has("serve") {
			do = r.serve
		}
		if err := do(ctx, b.text); err != nil {
			return fmt.Errorf("line %d: %w", b.line, err)
		}
	}
	return nil
}

// here is a text of the README with what stands for its addresses.
func (r *runner) here(text string) string {
	for from, to := range r.stands {
		text = strings.ReplaceAll(text, from, to)
	}
	return text
}

// configure has a configuration accepted, and keeps it if it has a name.
func (r *runner) configure(b block) error {
	name := b.file()
	if name == "" {
		name = fmt.Sprintf("line-%d.yaml", b.line)
	}
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(r.here(b.text)), 0o600); err != nil {
		return err
	}
	if _, err := app.Load(app.Source{File: path}); err != nil {
		return err
	}
	if b.file() == "" {
		return os.Remove(path)
	}
	return nil
}

// prelude comes before every script: an answer of an error is an error.
const prelude = `set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body "$@"; }
`

func (r *runner) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+r.here(withoutRecursion(script)))
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that what it starts can be ended with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// script runs a block to its end.
func (r *runner) script(ctx context.Context, script string) error {
	var said bytes.Buffer
	cmd := r.command(ctx, script)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s\nsaid:\n%s", err, script, said.String())
	}
	return nil
}

// serve starts the lines of a block one after the other, each once the one before has ended or is ready.
func (r *runner) serve(ctx context.Context, script string) error {
	for _, line := range commands(script) {
		if err := r.start(ctx, line); err != nil {
			return err
		}
	}
	return r.takeTokens()
}

func (r *runner) freeAddr() string { return fmt.Sprintf("127.0.0.1:%d", services.FreePort(r.t)) }

func (r *runner) start(ctx context.Context, line string) error {
	api, ops := r.freeAddr(), r.freeAddr()
	out, err := os.CreateTemp(r.secrets, "said-")
	if err != nil {
		return err
	}
	defer out.Close()
	s := &served{command: line, cmd: r.command(context.WithoutCancel(ctx), "exec "+line), said: out.Name(), ended: make(chan struct{})}
	s.cmd.Env = append(s.cmd.Env, "LAPSE_SERVER_ADDR="+api, "LAPSE_OPS_ADDR="+ops)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	r.served = append(r.served, s)
	stays, err := s.ready(ctx, "http://"+ops+"/readyz")
	if err != nil {
		return fmt.Errorf("%s: %w\nsaid:\n%s", line, err, s.output())
	}
	if stays && answers("http://"+api) {
		r.stands["localhost:8080"] = api
	}
	return nil
}

// ready waits until the command has ended well, or stays and is ready.
func (s *served) ready(ctx context.Context, url string) (stays bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-s.ended:
			return false, s.err
		case <-ctx.Done():
			return false, fmt.Errorf("neither ended nor ready at %s: %w", url, ctx.Err())
		case <-poll.C:
			if r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil); err != nil {
				return false, err
			} else if response, err := http.DefaultClient.Do(r); err == nil {
				response.Body.Close()
				if response.StatusCode == http.StatusOK {
					return true, nil
				}
			}
		}
	}
}

// answers reports whether anything speaks HTTP there: only producers do on their API's address.
func answers(url string) bool {
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	response.Body.Close()
	return true
}

// stop ends the command and all that it has started.
func (s *served) stop() error {
	group := -s.cmd.Process.Pid
	if errors.Is(syscall.Kill(group, syscall.SIGTERM), syscall.ESRCH) {
		return nil
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
			if errors.Is(syscall.Kill(group, 0), syscall.ESRCH) {
				return nil
			}
		case <-timer.C:
			return errors.Join(fmt.Errorf("%s did not stop within %v", s.command, stopBound), syscall.Kill(group, syscall.SIGKILL))
		}
	}
}

func (s *served) output() string {
	raw, err := os.ReadFile(s.said)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4000):])
}

// takeTokens puts what `lapse dev` has made into the environment of the scripts that follow.
func (r *runner) takeTokens() error {
	raw, err := os.ReadFile(filepath.Join(r.dir, app.DefaultData, "credentials.yaml"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var made struct {
		Auth struct {
			Tokens []struct{ Name, Token string }
		}
		Payment struct{ Secrets []string }
	}
	if err := yaml.Unmarshal(raw, &made); err != nil {
		return err
	}
	for _, token := range made.Auth.Tokens {
		r.env = append(r.env, strings.ToUpper(token.Name)+"="+token.Token)
	}
	for _, secret := range made.Payment.Secrets {
		r.env = append(r.env, "PAYMENT_SECRET="+secret)
	}
	return nil
}

// withServices gives the runner a database and a broker, where those of the README's example are.
func (r *runner) withServices(t *testing.T) {
	t.Helper()
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	r.stands["http://namesrv:9876"] = os.Getenv("LAPSE_TEST_ROCKETMQ")
	for name, secret := range map[string]string{
		"lapse-dsn": services.NewDatabase(t).DSN, "shop-token": services.RandomHex(16), "staff-token": services.RandomHex(16), "payment": services.RandomHex(16),
	} {
		if err := os.WriteFile(filepath.Join(r.secrets, name), []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
