package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lapse/pkg/app"
)

type result struct {
	code           int
	stdout, stderr string
}

func lapse(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// devData is a migrated data directory.
func devData(t *testing.T) string {
	t.Helper()
	data := t.TempDir()
	if err := app.PrepareData(data); err != nil {
		t.Fatal(err)
	}
	if r := lapse(t, "migrate", "--data", data); r.code != app.ExitOK {
		t.Fatal(r)
	}
	return data
}

// running is `lapse dev` on free ports, and its API's address.
func running(t *testing.T, data string) (addr string) {
	t.Helper()
	live, err := app.Open(app.Source{Data: data, Set: map[string]string{"server.addr": "127.0.0.1:0", "ops.addr": "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	serving := make(chan string, 1)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var log bytes.Buffer
	go func() {
		ended <- app.Dev(live, app.DevHooks{Serving: func(api, _ string) { serving <- api }}, &log).Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case addr = <-serving:
	case <-time.After(time.Minute):
		t.Fatal("it does not serve")
	}
	return addr
}

func mustLoad(t *testing.T, data string) *app.Config {
	t.Helper()
	c, err := app.Load(app.Source{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// closedPort is an address that nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestExitCodesTellWhatHappened(t *testing.T) {
	data := devData(t)
	addr := running(t, data)
	empty := t.TempDir()
	if err := app.PrepareData(empty); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("sweep: {intervall: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shop, _ := mustLoad(t, data).TokenFor("order")
	nobody := closedPort(t)
	t.Setenv(tokenVar, "")
	cases := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"an unknown command", []string{"frobnicate"}, app.ExitUsage, "See lapse --help."},
		{"an unknown kind of settings", []string{"config", "frobnicate"}, app.ExitUsage, "unknown command"},
		{"no kind of settings", []string{"config"}, app.ExitUsage, "print or docs"},
		{"an unknown flag", []string{"audit", "--frobnicate"}, app.ExitUsage, "See lapse audit --help."},
		{"an argument too many", []string{"version", "now"}, app.ExitUsage, "now"},
		{"a setting without a value", []string{"config", "print", "--set", "log.level"}, app.ExitUsage, "name=value"},
		{"a setting that does not exist", []string{"config", "print", "--set", "log.levle=info"}, app.ExitUsage, "did you mean log.level?"},
		{"a bad file", []string{"config", "print", "--config", bad}, app.ExitUsage, "sweep.intervall: "},
		{"no data directory", []string{"audit", "--data", filepath.Join(empty, "none")}, app.ExitUsage, "Run `lapse dev` first"},
		{"no database", []string{"audit"}, app.ExitUsage, "database.dsn"},
		{"a sweep that does not say when", []string{"sweep"}, app.ExitUsage, "--now"},
		{"a sweep of a bad address", []string{"sweep", "--now", "--server", "nowhere"}, app.ExitUsage, "host:port"},
		{"a sweep with a bad CA file", []string{"sweep", "--now", "--server", "https://" + addr, "--ca-file", bad}, app.ExitUsage, "no certificate"},
		{"a sweep without a token", []string{"sweep", "--now", "--server", addr}, app.ExitFailed, "$LAPSE_TOKEN"},
		{"a sweep with a wrong token", []string{"sweep", "--now", "--server", addr, "--token", "wrong"}, app.ExitFailed, "--data " + app.DefaultData},
		{"a schema that is too old", []string{"audit", "--data", empty}, app.ExitConflict, "lapse migrate"},
		{"a sweep with a token of another scope", []string{"sweep", "--now", "--server", addr, "--token", shop}, app.ExitFailed, "$LAPSE_TOKEN"},
		{"a second lapse dev on the same data", []string{"dev", "--data", data, "--set", "server.addr=127.0.0.1:0", "--set", "ops.addr=127.0.0.1:0"}, app.ExitConflict, "another `lapse dev`"},
		{"a port that is taken", []string{"dev", "--data", empty, "--set", "server.addr=" + addr, "--set", "ops.addr=127.0.0.1:0"}, app.ExitConflict, "--set server.addr=host:port"},
		{"a server that is not there", []string{"sweep", "--now", "--server", nobody, "--token", "x"}, app.ExitUnavailable, "producer running"},
		{"a database that is not there", []string{"migrate", "--set", "database.dsn=u:p@tcp(" + nobody + ")/lapse"}, app.ExitUnavailable, "refused"},
		{"a sweep", []string{"sweep", "--now", "--data", data, "--server", addr}, app.ExitOK, ""},
		{"an audit", []string{"audit", "--data", data}, app.ExitOK, ""},
		{"pay times", []string{"paytime", "--data", data}, app.ExitOK, ""},
		{"pay times of no time", []string{"paytime", "--since", "0s", "--data", data}, app.ExitUsage, "more than 0"},
		{"a shadow report of the future", []string{"shadow-report", "--since=-1h", "--data", data, "--server", addr}, app.ExitUsage, "--since: more than 0s"},
		{"an audit that wants orders closed before they are due", []string{"audit", "--overdue=-1s", "--data", data}, app.ExitUsage, "--overdue: at least 0s"},
		{"a second migration", []string{"migrate", "--data", data}, app.ExitOK, ""},
		{"the version", []string{"version"}, app.ExitOK, ""},
		{"the version as a flag", []string{"--version"}, app.ExitOK, ""},
		{"the settings", []string{"config", "print"}, app.ExitOK, ""},
		{"the reference", []string{"config", "docs"}, app.ExitOK, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := lapse(t, c.args...)
			if r.code != c.code || !strings.Contains(r.stderr, c.says) {
				t.Errorf("want %d and %q, got %+v", c.code, c.says, r)
			}
			if (r.code == app.ExitOK) != (r.stdout != "") {
				t.Errorf("stdout is for answers, stderr for the rest: %+v", r)
			}
		})
	}
}

func TestTheVersionReadsAsOneHoweverItIsAskedFor(t *testing.T) {
	want := "lapse version " + app.Version + " ("
	for _, arg := range []string{"version", "--version"} {
		if r := lapse(t, arg); !strings.HasPrefix(r.stdout, want) {
			t.Errorf("%s: want %q, got %q", arg, want, r.stdout)
		}
	}
}

func TestHelpSaysWhatANewcomerNeeds(t *testing.T) {
	for command, wants := range map[string][]string{
		"dev":       {"--set server.addr=", "--set ops.addr="},
		"migrate":   {"do not start before", "again"},
		"sweep":     {"--token", "--json  "},
		"config":    {"-h, --help  "},
		"late":      {"list ", "decide "},
		"brakes":    {"enforce", "shadow", "off"},
		"reconcile": {"--mend", "Exit code 1"},
	} {
		r := lapse(t, command, "--help")
		for _, want := range wants {
			if r.code != app.ExitOK || !strings.Contains(r.stdout, want) {
				t.Errorf("%s: want %q in\n%s", command, want, r.stdout)
			}
		}
		if strings.Contains(r.stdout, "[=true|false]") {
			t.Errorf("%s shows pflag's syntax:\n%s", command, r.stdout)
		}
	}
}

func TestHelpNamesTheExitCodes(t *testing.T) {
	for _, arg := range []string{"help", "--help"} {
		if r := lapse(t, arg); r.code != app.ExitOK || !strings.Contains(r.stdout, "Exit codes:") || !strings.Contains(r.stdout, "5  unavailable") {
			t.Errorf("%s: %+v", arg, r)
		}
	}
}

func TestAnswersAsJSONAreNothingButJSON(t *testing.T) {
	data := devData(t)
	addr := running(t, data)
	cases := []struct {
		name string
		args []string
		has  string
	}{
		{"version", []string{"version", "--json"}, "revision"},
		{"audit", []string{"audit", "--json", "--data", data}, "checks"},
		{"paytime", []string{"paytime", "--json", "--data", data}, "biz_types"},
		{"sweep", []string{"sweep", "--now", "--json", "--data", data, "--server", addr}, "closed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := lapse(t, c.args...)
			var answer map[string]any
			if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || answer[c.has] == nil {
				t.Errorf("%v: %+v", err, r)
			}
		})
	}
}

func TestDevPrintsWhereItServesAndItsSecretsAndStopsInOrder(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, stop := context.WithCancel(t.Context())
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"dev", "--data", data, "--set", "server.addr=127.0.0.1:0", "--set", "ops.addr=127.0.0.1:0"}, in, &stderr)
		in.Close()
	}()
	var greeting strings.Builder
	for !strings.Contains(greeting.String(), "curl") {
		buf := make([]byte, 4096)
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("%v\n%s", err, greeting.String())
		}
		greeting.Write(buf[:n])
	}
	stop()
	if c := <-code; c != app.ExitOK {
		t.Errorf("exit code %d\n%s", c, stderr.String())
	}
	out.Close()
	c := mustLoad(t, data)
	if strings.Contains(greeting.String(), "Idempotency-Key") {
		t.Errorf("the example makes the same order each time:\n%s", greeting.String())
	}
	for _, want := range append(c.Payment.Secrets, c.Auth.Tokens[0].Token, c.Auth.Tokens[1].Token, c.Auth.Tokens[2].Token, "http://127.0.0.1:") {
		if !strings.Contains(greeting.String(), want) {
			t.Errorf("it does not say %s:\n%s", want, greeting.String())
		}
	}
	if strings.Contains(stderr.String(), c.Payment.Secrets[0]) {
		t.Error("the log shows the payment secret")
	}
}
