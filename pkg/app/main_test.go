package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"lapse/pkg/order"
)

// childVar makes the test binary a process that takes one signal and goes on; see TestMain.
const childVar = "LAPSE_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		stubborn()
		return
	}
	os.Exit(m.Run())
}

// stubborn says when it is ready and when it was told to stop, and does not.
func stubborn() {
	ctx, stop := Interrupted()
	defer stop()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("stopping")
	select {}
}

func TestTheSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), childVar+"=1")
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, out, "ready\n")
			if err := child.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			await(t, out, "stopping\n")
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			eventually(t, "it ends", func() bool { // one that comes together with the first is not a second one
				_ = child.Process.Signal(sig) // fails once it has ended
				return len(ended) == 1
			})
			var exit *exec.ExitError
			if err := <-ended; !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != sig {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// await reads what a process is to say next.
func await(t *testing.T, out io.Reader, said string) {
	t.Helper()
	line := make([]byte, len(said))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != said {
		t.Fatalf("want %q, got %q %v", said, line, err)
	}
}

func TestAServiceReadsItsCommandLine(t *testing.T) {
	started := func(*Live, io.Writer) *App { t.Error("it starts"); return nil }
	cases := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"help", []string{"--help"}, ExitOK, "", "--config"},
		{"help on flags without a value", []string{"--help"}, ExitOK, "", "--version  "},
		{"version", []string{"--version"}, ExitOK, "producer version devel (", ""},
		{"an unknown flag", []string{"--frobnicate"}, ExitUsage, "", ""},
		{"an argument", []string{"now"}, ExitUsage, "", ""},
		{"a setting without a name", []string{"--set", "=x"}, ExitUsage, "", ""},
		{"a setting that is not valid", []string{"--set", "log.level=loud"}, ExitUsage, "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := run(c.args, "producer", started, &stdout, &stderr)
			if ExitCode(err) != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("got %v, %q, %q", err, stdout.String(), stderr.String())
			}
		})
	}
}

func TestASettingOnTheCommandLineMayHaveCommasAndEqualSigns(t *testing.T) {
	var src Source
	flag := setting{&src}
	for _, arg := range []string{"broker.name_servers=a:1,b:2", "database.dsn=u:p@tcp(h)/d?x=y"} {
		if err := flag.Set(arg); err != nil {
			t.Fatal(err)
		}
	}
	c := load(t, src)
	if len(c.Broker.NameServers) != 2 || c.Database.DSN != "u:p@tcp(h)/d?x=y" {
		t.Errorf("got %v %v", c.Broker.NameServers, c.Database.DSN)
	}
}

func TestEveryKindOfErrorHasItsExitCode(t *testing.T) {
	cases := map[order.Kind]int{
		order.Internal: ExitFailed, order.Invalid: ExitUsage, order.Unauthenticated: ExitFailed, order.PermissionDenied: ExitFailed,
		order.NotFound: ExitNotFound, order.Conflict: ExitConflict, order.KeyReused: ExitConflict,
		order.Exhausted: ExitUnavailable, order.Unavailable: ExitUnavailable,
	}
	for kind, code := range cases {
		if got := ExitCode(fmt.Errorf("wrapped: %w", order.Errorf(kind, "c", "m"))); got != code {
			t.Errorf("kind %d: got %d, want %d", kind, got, code)
		}
	}
	if ExitCode(nil) != ExitOK || ExitCode(errors.New("plain")) != ExitFailed {
		t.Error("nil is ok, anything unknown has failed")
	}
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: ExitUsage, codes.NotFound: ExitNotFound, codes.FailedPrecondition: ExitConflict, codes.AlreadyExists: ExitConflict,
		codes.Unavailable: ExitUnavailable, codes.DeadlineExceeded: ExitUnavailable, codes.ResourceExhausted: ExitUnavailable,
		codes.Unauthenticated: ExitFailed, codes.PermissionDenied: ExitFailed, codes.Internal: ExitFailed, codes.Unknown: ExitFailed,
	} {
		if got := ExitCode(RemoteError(code, "m", "")); got != want {
			t.Errorf("%v: got %d, want %d", code, got, want)
		}
	}
}

func TestAnErrorIsExplainedLineByLine(t *testing.T) {
	var out strings.Builder
	err := &order.Error{Kind: order.Invalid, Message: "not valid", Hint: "Read the reference.", Fields: []order.Field{{Name: "a.b", Reason: "wrong"}, {Name: "c", Reason: "missing"}}}
	Explain(&out, "lapse", err)
	if want := "lapse: not valid\n  a.b: wrong\n  c: missing\n  Read the reference.\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
	out.Reset()
	Explain(&out, "lapse", errors.New("plain"))
	if out.String() != "lapse: plain\n" {
		t.Errorf("got %q", out.String())
	}
}
