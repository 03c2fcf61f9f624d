package app

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
)

// goodToken and goodSecret could stand in production.
const (
	goodToken  = "8f14e45fceea167a5a36dedd4bea2543"
	goodSecret = "c9f0f895fb98ab9159f51fd0297e236d"
)

// file writes a configuration file and returns its path.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lapse.yaml")
	write(t, path, content)
	return path
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// load loads what must be good.
func load(t *testing.T, src Source) *Config {
	t.Helper()
	c, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refused returns the fields that a load refuses.
func refused(t *testing.T, src Source) map[string]string {
	t.Helper()
	_, err := Load(src)
	return refusedBy(t, err)
}

func refusedBy(t *testing.T, err error) map[string]string {
	t.Helper()
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != order.Invalid || len(e.Fields) == 0 {
		t.Fatalf("want a refusal that names settings, got %v", err)
	}
	fields := map[string]string{}
	for _, f := range e.Fields {
		fields[f.Name] = f.Reason
	}
	return fields
}

func TestEverySettingIsInTheTableOnceAndExplained(t *testing.T) {
	c := &Config{}
	seen := map[string]bool{}
	for _, k := range c.Keys() {
		if seen[k.Name] {
			t.Errorf("%s stands twice in the table", k.Name)
		}
		seen[k.Name] = true
		if !strings.HasSuffix(k.Doc, ".") || k.value.form() == "" {
			t.Errorf("%s is not explained in whole sentences", k.Name)
		}
		if k.Default != "" {
			if err := k.value.set(k.Default); err != nil {
				t.Errorf("the default of %s is refused: %v", k.Name, err)
			}
			if got := k.value.String(); got != k.Default && got != quote(k.Default) {
				t.Errorf("the default of %s is %q and is printed as %q", k.Name, k.Default, got)
			}
		}
	}
}

func TestTheDefaultsAreTheDesigned(t *testing.T) {
	c := load(t, Source{})
	got := map[string]any{
		"grace": c.Delay.Grace, "horizon": c.Delay.Horizon, "pay time": c.Order.Timeout.Default, "min": c.Order.Timeout.Min, "max": c.Order.Timeout.Max,
		"group": c.Create.GroupSize, "create linger": c.Create.Linger, "batch": c.Close.BatchSize, "close linger": c.Close.Linger,
		"sweep": c.Sweep.Interval, "overdue": c.Sweep.Overdue, "limit": c.Sweep.Limit, "conns": c.Database.MaxConns, "attempts": c.Relay.MaxAttempts,
	}
	want := map[string]any{
		"grace": time.Second, "horizon": 24 * time.Hour, "pay time": 30 * time.Minute, "min": time.Second, "max": 90 * 24 * time.Hour,
		"group": 256, "create linger": 2 * time.Millisecond, "batch": 500, "close linger": 20 * time.Millisecond,
		"sweep": time.Minute, "overdue": 30 * time.Second, "limit": 200, "conns": 16, "attempts": 16,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestTheStrongerSourceWins(t *testing.T) {
	path := file(t, "sweep:\n  interval: 11s\n  limit: 11\n  pause: 11ms\n")
	t.Setenv("LAPSE_SWEEP_LIMIT", "22")
	t.Setenv("LAPSE_SWEEP_PAUSE", "22ms")
	c := load(t, Source{File: path, Set: map[string]string{"sweep.pause": "33ms"}})
	if c.Sweep.Interval != 11*time.Second || c.Sweep.Limit != 22 || c.Sweep.Pause != 33*time.Millisecond || c.Sweep.Overdue != 30*time.Second {
		t.Errorf("want 11s from the file, 22 from the environment, 33ms from the flag and 30s by default, got %+v", c.Sweep)
	}
}

// sample is a value other than the default that each setting accepts, as text.
func sample(t *testing.T, k Key) string {
	t.Helper()
	candidates := []string{"2h", "2m", "2s", "500ms", "5", "7", "1000", "true", "false", "[{name: a, token: t, scopes: [order]}]", "levels", "local", "sqlite", "debug", "console", "refund", "remind", "hold", "auto", "[{name: a, late: refund}]", "a,b", "/some/where"}
	for _, s := range candidates {
		if s != k.Default && k.value.set(s) == nil {
			return s
		}
	}
	t.Fatalf("no sample fits %s", k.Name)
	return ""
}

func TestEverySettingCanBeSetByFileEnvironmentAndFlag(t *testing.T) {
	for i, k := range new(Config).Keys() {
		text := sample(t, k)
		want := k.value.String()
		read := func(s Source) string {
			p := newParser(s)
			if err := p.readFiles(); err != nil {
				t.Error(err)
			}
			p.readAll()
			return p.keys[i].value.String()
		}
		t.Run(k.Name, func(t *testing.T) {
			path := strings.Split(k.Name, ".")
			yaml := ""
			for depth, name := range path {
				yaml += strings.Repeat("  ", depth) + name + ":"
				if depth < len(path)-1 {
					yaml += "\n"
				}
			}
			if got := read(Source{File: file(t, yaml+" "+want+"\n")}); got != want {
				t.Errorf("from the file: got %s, want %s", got, want)
			}
			if got := read(Source{Set: map[string]string{k.Name: text}}); got != want {
				t.Errorf("from a flag: got %s, want %s", got, want)
			}
			t.Setenv(k.Env(), text)
			if got := read(Source{}); got != want {
				t.Errorf("from %s: got %s, want %s", k.Env(), got, want)
			}
		})
	}
}

func TestEverySecretCanBeReadFromAFile(t *testing.T) {
	for i, k := range new(Config).Keys() {
		if !k.Secret {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			content := sample(t, k)
			want := k.value.String()
			secret := filepath.Join(t.TempDir(), "secret")
			write(t, secret, content+"\n")

			t.Setenv(k.Env()+"_FILE", secret)
			p := newParser(Source{})
			p.readAll()
			if got := p.keys[i].value.String(); got != want || len(p.bad) > 0 {
				t.Errorf("got %s, want %s; refused: %v", got, want, p.bad)
			}

			t.Setenv(k.Env(), content)
			if reason := refused(t, Source{})[k.Name]; !strings.Contains(reason, "not both") {
				t.Errorf("given twice: got %q", reason)
			}

			t.Setenv(k.Env(), "")
			t.Setenv(k.Env()+"_FILE", secret+".missing")
			if reason := refused(t, Source{})[k.Name]; !strings.Contains(reason, "no such file") {
				t.Errorf("missing file: got %q", reason)
			}
		})
	}
}

func TestABadValueIsRefusedWithItsNameAndWhatWouldBeRight(t *testing.T) {
	cases := []struct{ name, yaml, setting, says string }{
		{"a duration without unit", "sweep: {interval: 60}", "sweep.interval", `like "1s"`},
		{"a duration out of range", "delay: {horizon: 73h}", "delay.horizon", "1m to 72h"},
		{"a word where a number belongs", "database: {max_conns: many}", "database.max_conns", "whole number from 1 to 1000"},
		{"a broken number", "database: {max_conns: 1.5}", "database.max_conns", "whole number"},
		{"a huge number", "sweep: {limit: 99999999999999999999}", "sweep.limit", "from 1 to 2000"},
		{"not one of the choices", "delay: {mode: wheel}", "delay.mode", "timer, levels"},
		{"neither true nor false", "broker: {create_topics: maybe}", "broker.create_topics", "neither true nor false"},
		{"a list where a text belongs", "server: {addr: [a]}", "server.addr", "write a text"},
		{"a map where a list belongs", "payment: {secrets: {a: b}}", "payment.secrets.a", "no such setting"},
		{"a map in a list of texts", "broker: {name_servers: [{a: b}]}", "broker.name_servers", "list of texts"},
		{"a topic with a space", "broker: {group: my group}", "broker.group", "letters, digits"},
		{"an empty value", `delay: {mode: ""}`, "delay.mode", "leave it out"},
		{"a scalar for a section", "sweep: 3s", "sweep", "no such setting"},
		{"a misspelt name", "sweep: {intervall: 3s}", "sweep.intervall", "did you mean sweep.interval?"},
		{"a name like no other", "frobnicate: {everything: now}", "frobnicate.everything", "lapse config docs"},
		{"a misspelt section without settings", "databse: {}", "databse", "did you mean database?"},
		{"a misspelt section within another", "broker: {tsl: }", "broker.tsl", "did you mean broker.tls?"},
		{"tokens that are a text", "auth: {tokens: abc}", "auth.tokens", "write a list like"},
		{"a token with an unknown scope", "auth: {tokens: [{name: a, token: b, scopes: [root]}]}", "auth.tokens", "order, payment, operator"},
		{"a token without a name", "auth: {tokens: [{token: b, scopes: [order]}]}", "auth.tokens", "all needed"},
		{"a token with an unknown field", "auth: {tokens: [{name: a, token: b, role: x, scopes: [order]}]}", "auth.tokens", "role: unknown"},
		{"two tokens of one secret", "auth: {tokens: [{name: a, token: b, scopes: [order]}, {name: c, token: b, scopes: [order]}]}", "auth.tokens", "[1]: another token"},
		{"a token given twice", "auth: {tokens: [{name: a, token: b, token_file: c, scopes: [order]}]}", "auth.tokens", "not both"},
		{"a default below the minimum", "order: {timeout: {default: 2s, min: 3s}}", "order.timeout.default", "order.timeout.min"},
		{"a default above the maximum", "order: {timeout: {default: 2h, max: 1h}}", "order.timeout.default", "order.timeout.max"},
		{"a stop that cuts off the gateway", "gateway: {url: 'http://g'}\nshutdown: {timeout: 18s}", "shutdown.timeout", "more than 18s"},
		{"a stop that cuts off the hook", "hook: {url: 'http://h', secret: " + goodToken + ", timeout: 20s}", "shutdown.timeout", "more than 1m"},
		{"a name server without port", "broker: {name_servers: ['http://10.0.0.5:9876', '10.0.0.6']}", "broker.name_servers", `"10.0.0.6" is not host:port`},
		{"a certificate without key", "server: {tls: {cert_file: a}}", "server.tls.cert_file", "or neither"},
		{"TLS settings without TLS", "broker: {tls: {ca_file: a}}", "broker.tls.enabled", "true"},
		{"half a credential", "broker: {access_key: a}", "broker.access_key", "broker.secret_key"},
		{"one topic for two things", "broker: {event_topic: order-timeout}", "broker.event_topic", "differ"},
		{"a lease that ends during a send", "relay: {lease: 6s}", "relay.lease", "7s to 1h"},
		{"a breaker that takes no payments at all for normal", "breaker: {floor: 0}", "breaker.floor", "from 1 to 99"},
		{"a rest as long as half of the lease", "sweep: {pause: 2s, lease: 4s}", "sweep.pause", "sweep.lease"},
		{"a token whose name is too long", "auth: {tokens: [{name: " + strings.Repeat("a", 65) + ", token: b, scopes: [order]}]}", "auth.tokens", "1 to 64 bytes"},
		{"a token whose name breaks the line", `auth: {tokens: [{name: "a\nb", token: b, scopes: [order]}]}`, "auth.tokens", "control"},
		{"a replica of SQLite", "database: {driver: sqlite, replica_dsn: x}", "database.replica_dsn", "no replicas"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := file(t, c.yaml+"\n")
			if reason := refused(t, Source{File: path})[c.setting]; !strings.Contains(reason, c.says) {
				t.Errorf("want %s refused with %q, got %v", c.setting, c.says, refused(t, Source{File: path}))
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnceAndSayWhereTheyAre(t *testing.T) {
	path := file(t, "sweep: {interval: 1}\ndelay: {mode: x}\n")
	t.Setenv("LAPSE_LOG_LEVEL", "loud")
	got := refused(t, Source{File: path, Set: map[string]string{"ops.pprof": "perhaps"}})
	want := map[string]string{"sweep.interval": path, "delay.mode": path, "log.level": "LAPSE_LOG_LEVEL", "ops.pprof": "command line"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, where := range want {
		if !strings.Contains(got[name], where) {
			t.Errorf("%s: want %q named, got %q", name, where, got[name])
		}
	}
}

func TestAStopNeedsNoTimeForWhoIsNotAsked(t *testing.T) {
	load(t, Source{File: file(t, "shutdown: {timeout: 1s}\n")})
	load(t, Source{File: file(t, "gateway: {url: 'http://g'}\nshutdown: {timeout: 19s}\n")})
}

func TestAnEmptySectionIsNoMistake(t *testing.T) {
	load(t, Source{File: file(t, "sweep:\nbroker:\n  tls:\nlog: {}\n")})
	load(t, Source{File: file(t, "# nothing yet\n")})
}

func TestAFileThatIsMissingOrNoYAMLIsRefused(t *testing.T) {
	for name, path := range map[string]string{"missing": "/does/not/exist.yaml", "no YAML": file(t, "a: b: c"), "twice": file(t, "log: {}\nlog: {}\n"), "a list": file(t, "- log\n")} {
		if _, err := Load(Source{File: path}); order.KindOf(err) != order.Invalid || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestADataDirectoryThatDevDidNotMakeIsRefusedWithTheHint(t *testing.T) {
	data := filepath.Join(t.TempDir(), "nowhere")
	_, err := Load(Source{Data: data})
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != order.Invalid || !strings.Contains(e.Hint, "`lapse dev` first") || strings.Count(err.Error(), data) != 1 {
		t.Errorf("got %v", err)
	}
}

func TestDevGivesStaffEveryScope(t *testing.T) {
	data := t.TempDir()
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	tokens := load(t, Source{Data: data}).Auth.Tokens
	if staff := tokens[len(tokens)-1]; staff.Name != "staff" || !slices.Equal(staff.Scopes, scopes) {
		t.Errorf("got %s of %v", staff.Name, staff.Scopes)
	}
}

func TestAMisspeltVariableIsRefusedAndAForeignOneIsNot(t *testing.T) {
	t.Setenv("LAPSE_SERVICE_HOST", "10.0.0.1") // what Kubernetes sets for a service named lapse
	t.Setenv("LAPSE_PORT_8080_TCP_PROTO", "tcp")
	load(t, Source{})
	t.Setenv("LAPSE_DATABSE_DSN", "x")
	if got := refused(t, Source{})["LAPSE_DATABSE_DSN"]; !strings.Contains(got, "LAPSE_DATABASE_DSN?") {
		t.Errorf("got %q", got)
	}
	if got := refused(t, Source{Set: map[string]string{"log.levle": "info"}})["log.levle"]; !strings.Contains(got, "log.level?") {
		t.Errorf("got %q", got)
	}
}

func TestSecretsThatAnybodyCanGuessAreRefusedButForExamplesInDev(t *testing.T) {
	const short = "short"
	for _, secret := range []string{short, "change-me-change-me", "this-is-an-example-token", "supersecretsupersecret", "12345678901234567890"} {
		yaml := "auth: {tokens: [{name: a, token: \"" + secret + "\", scopes: [order]}]}\npayment: {secrets: [\"" + secret + "\"]}\n"
		data := t.TempDir()
		if err := PrepareData(data); err != nil {
			t.Fatal(err)
		}
		sources := []Source{{File: file(t, yaml)}, {File: file(t, yaml), Data: data}}
		if secret != short {
			load(t, sources[1])
			sources = sources[:1]
		}
		for _, src := range sources {
			got := refused(t, src)
			for _, name := range []string{"auth.tokens[0].token", "payment.secrets[0]"} {
				if reason := got[name]; !strings.Contains(reason, "openssl") || strings.Contains(reason, secret) {
					t.Errorf("%s %q: got %q", name, secret, reason)
				}
			}
		}
	}
}

func TestWhatARoleNeedsIsNamed(t *testing.T) {
	cases := []struct {
		role  Role
		yaml  string
		needs []string
	}{
		{RoleProducer, "", []string{"auth.tokens", "broker.name_servers", "database.dsn", "payment.secrets"}},
		{RoleConsumer, "", []string{"broker.name_servers", "database.dsn"}},
		{RoleProducer, full + "server: {tls: {cert_file: /none, key_file: /none}}", []string{"server.tls.cert_file"}},
		{RoleCompensator, "database: {dsn: x}\nbroker: {driver: local}", []string{"broker.driver"}},
	}
	for _, c := range cases {
		got := refusedBy(t, load(t, Source{File: file(t, c.yaml)}).CheckFor(c.role))
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, c.needs) {
			t.Errorf("%s: got %v, want %v", c.role, names, c.needs)
		}
	}
	full := load(t, Source{File: file(t, full)})
	for _, role := range []Role{RoleProducer, RoleConsumer, RoleCompensator} {
		if err := full.CheckFor(role); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// full has everything that a producer needs, and secrets of all kinds.
const full = `
database: {dsn: "shop:hunter2hunter2@tcp(db:3306)/lapse", replica_dsn: "shop:hunter2hunter2@tcp(replica:3306)/lapse"}
broker: {name_servers: ["127.0.0.1:9876"], access_key: hunter2user, secret_key: hunter2hunter2}
auth: {tokens: [{name: shop, token: ` + goodToken + `, scopes: [order, operator]}]}
payment: {secrets: [` + goodSecret + `]}
`

func TestAPrintedConfigurationHasNoSecretAndCanBeReadAgain(t *testing.T) {
	c := load(t, Source{File: file(t, full+"sweep: {interval: 90s}\n")})
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", goodToken, goodSecret} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("printed %s:\n%s", secret, out.String())
		}
	}
	var withoutSecrets strings.Builder
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, redacted) {
			withoutSecrets.WriteString(line)
		}
	}
	again := load(t, Source{File: file(t, withoutSecrets.String())})
	for i, k := range again.Keys() {
		if want := c.Keys()[i].value.String(); !k.Secret && k.value.String() != want {
			t.Errorf("%s: read again %s, want %s", k.Name, k.value.String(), want)
		}
	}
}

func TestAnErrorNeverShowsASecret(t *testing.T) {
	path := file(t, "payment: {secrets: {hunter2: hunter2}}\nauth: {tokens: hunter2}\nbroker: {secret_key: [hunter2hunter2]}\n")
	_, err := Load(Source{File: path})
	if err == nil || strings.Contains(err.Error(), "hunter2hunter2") || strings.Contains(refusedBy(t, err)["auth.tokens"], "hunter2") {
		t.Errorf("got %v", err)
	}
}

func TestTheReferenceIsUpToDate(t *testing.T) {
	var want strings.Builder
	if err := Reference(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/configuration.md")
	if err != nil || string(got) != want.String() {
		t.Errorf("not up to date (%v): run go generate ./pkg/app", err)
	}
	for _, k := range new(Config).Keys() {
		if !strings.Contains(want.String(), "| `"+k.Name+"` |") {
			t.Errorf("%s is missing", k.Name)
		}
	}
}

func TestExampleFilesAreValid(t *testing.T) {
	examples, err := filepath.Glob("../../deploy/config/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range examples {
		t.Run(filepath.Base(path), func(t *testing.T) {
			// What the examples leave to the environment.
			t.Setenv("LAPSE_DATABASE_DSN", "shop:pw@tcp(db:3306)/lapse")
			t.Setenv("LAPSE_PAYMENT_SECRETS", goodSecret)
			t.Setenv("LAPSE_AUTH_TOKENS", `[{"name":"shop","token":"`+goodToken+`","scopes":["order"]}]`)
			if err := load(t, Source{File: path}).CheckFor(RoleProducer); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDevKeepsTheCredentialsItMade(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	first := load(t, Source{Data: data})
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	second := load(t, Source{Data: data})
	if err := second.CheckFor(RoleDev); err != nil {
		t.Error(err)
	}
	if printTokens(first.Auth.Tokens) != printTokens(second.Auth.Tokens) || len(first.Auth.Tokens) != 3 {
		t.Error("the tokens changed")
	}
	if info, err := os.Stat(credentialsFile(data)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the credentials can be read by others: %v %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(data, "*")); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func FuzzConfiguration(f *testing.F) {
	for _, seed := range []string{
		"", "sweep: {limit: 20}\n", "auth: {tokens: [{name: shop, token: " + goodToken + ", scopes: [order]}]}", "order: {biz_types: [{name: ticket, late: refund}]}",
		"a: &a [*a]", "sweep: 1", "? [x]: y", "sweep: {limit: 99999999999999999999}", "hook: {url: \"http://[::1\"}", "broker: {name_servers: [\":\"]}", "\xff", "- x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		c, err := Load(Source{File: file(t, content)})
		if err == nil {
			_ = c.CheckFor(RoleProducer)
			return
		}
		if order.KindOf(err) != order.Invalid {
			t.Errorf("not refused as a mistake: %v", err)
		}
		said := err.Error()
		var e *order.Error
		if errors.As(err, &e) && len(e.Fields) > 0 {
			said = ""
			for _, field := range e.Fields {
				said += field.Reason + "\n" // a name that nobody knows has to be told, whatever it is
			}
		}
		if strings.Contains(said, goodToken) || strings.Contains(said, goodSecret) {
			t.Errorf("the error tells a secret: %v", err)
		}
	})
}
