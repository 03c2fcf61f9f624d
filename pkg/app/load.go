package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"lapse/pkg/gateway"
	"lapse/pkg/hook"
	"lapse/pkg/order"
)

// Source is where settings come from. Later ones win: defaults, the file, the environment, Set.
type Source struct {
	File string            // YAML; "" for none
	Data string            // the data directory of `lapse dev`; "" outside dev
	Set  map[string]string // single settings, from flags
}

// envPrefix starts the environment variables of all settings.
const envPrefix = "LAPSE_"

// envName is the environment variable of a setting: database.dsn ⇒ LAPSE_DATABASE_DSN.
func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, ".", "_"))
}

// Load reads and checks all settings. The error is of kind order.Invalid and names every setting that is
// wrong, where it comes from, and what would be right.
func Load(src Source) (*Config, error) {
	p := newParser(src)
	if err := p.readFiles(); err != nil {
		return nil, err
	}
	p.refuseUnknown()
	p.readAll()
	if len(p.bad) == 0 {
		p.bad = p.config.check()
	}
	if len(p.bad) > 0 {
		return nil, &order.Error{Kind: order.Invalid, Code: "invalid_config", Message: "the configuration is not valid", Fields: p.bad}
	}
	return p.config, nil
}

// files are the files to read, the weakest first.
func (s Source) files() []string {
	var paths []string
	if s.Data != "" {
		paths = append(paths, credentialsFile(s.Data))
	}
	if s.File != "" {
		paths = append(paths, s.File)
	}
	return paths
}

// parser turns what viper has gathered into a Config.
type parser struct {
	src    Source
	v      *viper.Viper
	config *Config
	keys   []Key  // bound to config
	given  []leaf // what the files name
	bad    []order.Field
}

func newParser(src Source) *parser {
	c := &Config{Dev: src.Data != ""}
	return &parser{src: src, v: viper.New(), config: c, keys: c.Keys()}
}

func (p *parser) readFiles() error {
	for _, path := range p.src.files() {
		tree, err := readYAML(path)
		if err != nil {
			return p.unreadable(path, err)
		}
		if err := p.v.MergeConfigMap(tree); err != nil {
			return p.unreadable(path, err)
		}
		p.given = append(p.given, leaves("", tree)...)
	}
	return nil
}

func readYAML(path string) (tree map[string]any, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return nil, mistake(err)
	}
	return tree, nil
}

var atLine = regexp.MustCompile(`line \d+`)

// mistake says where a file is wrong and not how: the parser quotes what stands there, which may be a secret.
func mistake(err error) error {
	if at := atLine.FindString(err.Error()); at != "" {
		return errors.New("it is no YAML of names and values at " + at)
	}
	return errors.New("it is no YAML of names and values")
}

func (p *parser) unreadable(path string, err error) error {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		err = at.Err // without the path once more
	}
	e := order.Errorf(order.Invalid, "invalid_config", "%s cannot be read", path).Wrap(err)
	if p.src.Data != "" && path == credentialsFile(p.src.Data) && errors.Is(err, fs.ErrNotExist) {
		e.Hint = "Run `lapse dev` first, which makes the data directory, or give its directory with --data."
	}
	return e
}

// leaf is a name in a file below which there are no others.
type leaf struct {
	name  string
	empty bool // there is no value either, as in "sweep:" and "sweep: {}"
}

func leaves(prefix string, tree map[string]any) []leaf {
	var all []leaf
	for key, v := range tree {
		name := prefix + strings.ToLower(key)
		below, section := v.(map[string]any)
		if section && len(below) > 0 {
			all = append(all, leaves(name+".", below)...)
			continue
		}
		all = append(all, leaf{name, section || v == nil})
	}
	return all
}

func (p *parser) refuse(name, format string, args ...any) {
	p.bad = append(p.bad, order.Field{Name: name, Reason: fmt.Sprintf(format, args...)})
}

// names are all names that may be given.
func (p *parser) names() []string {
	var names []string
	for _, k := range p.keys {
		names = append(names, k.Name)
		if k.Secret {
			names = append(names, k.fileName())
		}
	}
	return names
}

// refuseUnknown refuses names that do not exist: a misspelt setting would else be a default in silence.
// In the environment only near misses are, since others (an orchestrator, say) may use the prefix too.
func (p *parser) refuseUnknown() {
	known := p.names()
	sections := sectionsOf(known)
	slices.SortFunc(p.given, func(a, b leaf) int { return strings.Compare(a.name, b.name) })
	for _, l := range p.given {
		switch {
		case slices.Contains(known, l.name), l.empty && slices.Contains(sections, l.name):
		case l.empty:
			p.refuse(l.name, "there is no such setting or section%s", suggest(l.name, append(sections, known...)))
		default:
			p.refuse(l.name, "there is no such setting%s", suggest(l.name, known))
		}
	}
	for name := range p.src.Set {
		if !slices.Contains(known, name) {
			p.refuse(name, "there is no such setting%s", suggest(name, known))
		}
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if near := nearMiss(name, known); near != "" {
			p.refuse(name, "there is no such setting; did you mean %s?", near)
		}
	}
}

// sectionsOf are the names of which others are parts: broker and broker.tls of broker.tls.enabled.
func sectionsOf(names []string) []string {
	var sections []string
	for _, name := range names {
		for i, r := range name {
			if r == '.' {
				sections = append(sections, name[:i])
			}
		}
	}
	slices.Sort(sections)
	return slices.Compact(sections)
}

// nearEnough is by how many characters a variable may differ from a setting's to be taken for a misspelt one.
const nearEnough = 2

// nearMiss returns the variable that name seems to be meant for, if it is none itself.
func nearMiss(name string, known []string) string {
	if !strings.HasPrefix(name, envPrefix) {
		return ""
	}
	vars := make([]string, len(known))
	for i, k := range known {
		vars[i] = envName(k)
	}
	if slices.Contains(vars, name) {
		return ""
	}
	if near := nearest(name, vars); distance(name, near) <= nearEnough {
		return near
	}
	return ""
}

func (p *parser) readAll() {
	defaults := p.src.devDefaults()
	for _, k := range p.keys {
		p.v.SetDefault(k.Name, k.Default)
		if d, ok := defaults[k.Name]; ok {
			p.v.SetDefault(k.Name, d)
		}
		p.bind(k.Name)
		if k.Secret {
			p.bind(k.fileName())
		}
	}
	for _, k := range p.keys {
		if err := p.read(k); err != nil {
			p.refuse(k.Name, "%v%s", err, p.origin(k.Name))
		}
	}
}

// bind adds the environment and the flags to a name.
func (p *parser) bind(name string) {
	_ = p.v.BindEnv(name, envName(name)) // fails only without a name
	if s, ok := p.src.Set[name]; ok {
		p.v.Set(name, s)
	}
}

func (p *parser) read(k Key) error {
	raw := p.v.Get(k.Name)
	if raw == "" {
		raw = nil
	}
	if k.Secret && p.v.GetString(k.fileName()) != "" {
		if raw != nil {
			return fmt.Errorf("give %s or %s, not both", k.Name, k.fileName())
		}
		secret, err := readSecret(p.v.GetString(k.fileName()))
		if err != nil {
			return err
		}
		raw = secret
	}
	if raw == nil && k.Default != "" {
		return errors.New("it is empty; leave it out to have the default")
	}
	return k.value.set(raw)
}

// origin says where a refused value came from, unless it is obvious.
func (p *parser) origin(name string) string {
	switch {
	case p.src.Set[name] != "":
		return " (from the command line)"
	case os.Getenv(envName(name)) != "":
		return " (from " + envName(name) + ")"
	case p.src.File != "":
		return " (in " + p.src.File + ")"
	}
	return ""
}

// check looks at what single settings cannot tell.
func (c *Config) check() []order.Field {
	var bad []order.Field
	refuse := func(wrong bool, name, reason string) {
		if wrong {
			bad = append(bad, order.Field{Name: name, Reason: reason})
		}
	}
	t, tls, api := c.Order.Timeout, c.Broker.TLS, c.Server.TLS
	refuse(t.Default < t.Min, "order.timeout.default", "it is less than order.timeout.min")
	refuse(t.Default > t.Max, "order.timeout.default", "it is more than order.timeout.max")
	refuse(c.Attempt.Default > c.Attempt.Longest, "attempt.default", "it is more than attempt.longest")
	refuse(c.Gateway.URL == "" && c.Gateway.Token != "", "gateway.url", "give it, or take out gateway.token")
	refuse((c.Hook.URL == "") != (c.Hook.Secret == ""), "hook.url", "give it and hook.secret, or neither")
	refuse(!tls.Enabled && tls.CAFile+tls.ServerName != "", "broker.tls.enabled", "set it to true, or take out the other broker.tls settings")
	refuse((c.Broker.AccessKey == "") != (c.Broker.SecretKey == ""), "broker.access_key", "give it and broker.secret_key, or neither")
	refuse((api.CertFile == "") != (api.KeyFile == ""), "server.tls.cert_file", "give it and server.tls.key_file, or neither")
	refuse(c.Broker.TimeoutTopic == c.Broker.EventTopic, "broker.event_topic", "it must differ from broker.timeout_topic")
	refuse(c.Database.Driver == "sqlite" && c.Database.ReplicaDSN != "", "database.replica_dsn", "sqlite has no replicas")
	refuse(c.Sweep.Pause >= c.Sweep.Lease/2, "sweep.pause", "it must be less than half of sweep.lease, or the shard is lost while it rests")
	open := c.openAtStop()
	refuse(c.Shutdown.Timeout/stopShare <= open, "shutdown.timeout", fmt.Sprintf(
		"it must be more than %s, or a stop cuts off the gateway and the hook, which may take %s (twice gateway.timeout, and hook.timeout)", short(stopShare*open), short(open)))
	for _, addr := range c.Broker.nameServers() {
		_, _, err := net.SplitHostPort(addr)
		refuse(err != nil, "broker.name_servers", fmt.Sprintf("%q is not host:port", addr))
	}
	return slices.Concat(bad, c.unreachable(), c.weakSecrets())
}

// openAtStop is how long a stop may have to wait for others: for the gateway to answer and to close a bill, and for the hook.
func (c *Config) openAtStop() (open time.Duration) {
	if c.Gateway.URL != "" {
		open += 2 * c.Gateway.Timeout
	}
	if c.Hook.URL != "" {
		open += c.Hook.Timeout
	}
	return open
}

// nameServers are the name servers as the driver wants them, host:port.
func (b Broker) nameServers() []string {
	addrs := make([]string, len(b.NameServers))
	for i, addr := range b.NameServers {
		addrs[i] = strings.TrimPrefix(addr, "http://")
	}
	return addrs
}

// unreachable refuses what nobody could be called by.
func (c *Config) unreachable() []order.Field {
	var bad []order.Field
	note := func(name string, err error) {
		var e *order.Error
		if errors.As(err, &e) {
			bad = append(bad, order.Field{Name: name, Reason: strings.TrimSpace(e.Message + ". " + e.Hint)})
		}
	}
	if c.Gateway.URL != "" {
		_, err := gateway.New(c.Gateway.URL, c.Gateway.Token)
		note("gateway.url", err)
	}
	if c.Hook.URL != "" && c.Hook.Secret != "" {
		_, err := hook.New(c.Hook.URL, c.Hook.Secret)
		note("hook.url", err)
	}
	return bad
}

// leastSecret is the shortest secret that is taken for one.
const leastSecret = 16

// weakSecrets refuses secrets that can be guessed: short ones, and outside dev those that stand in examples everywhere.
func (c *Config) weakSecrets() []order.Field {
	var bad []order.Field
	weak := func(name, secret string) {
		if len(secret) < leastSecret || !c.Dev && looksLikeExample(secret) {
			bad = append(bad, order.Field{Name: name, Reason: fmt.Sprintf("looks like an example or has fewer than %d characters; make one with: openssl rand -hex 32", leastSecret)})
		}
	}
	for i, t := range c.Auth.Tokens {
		weak(fmt.Sprintf("auth.tokens[%d].token", i), t.Token)
	}
	for i, s := range c.Payment.Secrets {
		weak(fmt.Sprintf("payment.secrets[%d]", i), s)
	}
	if c.Hook.Secret != "" {
		weak("hook.secret", c.Hook.Secret)
	}
	return bad
}

// looksLikeExample knows the words that stand where a secret should be put.
func looksLikeExample(secret string) bool {
	s := strings.ToLower(secret)
	for _, word := range []string{"change", "example", "secret", "password", "default", "1234567", "xxxxx"} {
		if strings.Contains(s, word) {
			return true
		}
	}
	return false
}

// Role is one of the processes.
type Role string

const (
	RoleProducer    Role = "producer"
	RoleConsumer    Role = "consumer"
	RoleCompensator Role = "compensator"
	RoleDev         Role = "dev" // all of them
)

// CheckFor refuses a configuration with which a role cannot run.
func (c *Config) CheckFor(role Role) error {
	var bad []order.Field
	need := func(given bool, name, reason string) {
		if !given {
			bad = append(bad, order.Field{Name: name, Reason: reason})
		}
	}
	need(c.Database.DSN != "", "database.dsn", "needed: where the database is, like user:password@tcp(host:3306)/lapse")
	need(c.Broker.Driver != "rocketmq" || len(c.Broker.NameServers) > 0, "broker.name_servers", "needed: the name servers' addresses, like 10.0.0.5:9876")
	need(c.Broker.Driver != "local" || role == RoleDev, "broker.driver", "local works only in `lapse dev`; use rocketmq")
	if role.serves() {
		need(len(c.Auth.Tokens) > 0, "auth.tokens", "needed: without a token nobody may call the API")
		need(len(c.Payment.Secrets) > 0, "payment.secrets", "needed: without a secret no payment can be trusted")
		if _, err := c.Server.TLS.config(); err != nil {
			bad = append(bad, order.Field{Name: "server.tls.cert_file", Reason: "it is of no use with server.tls.key_file: " + err.Error()})
		}
	}
	if len(bad) > 0 {
		return &order.Error{Kind: order.Invalid, Code: "invalid_config", Message: fmt.Sprintf("the %s cannot run with this configuration", role), Fields: bad}
	}
	return nil
}

// devDefaults are the defaults that `lapse dev` has instead of the documented ones.
func (s Source) devDefaults() map[string]string {
	if s.Data == "" {
		return nil
	}
	return map[string]string{
		"database.driver": "sqlite",
		"database.dsn":    filepath.Join(s.Data, "lapse.db"),
		"broker.driver":   "local",
		"server.addr":     "127.0.0.1:8080",
		"ops.addr":        "127.0.0.1:9090",
		"log.format":      "console",
	}
}

// suggest ends the refusal of an unknown name.
func suggest(name string, known []string) string {
	if near := nearest(name, known); distance(name, near) <= max(2, len(name)/3) {
		return "; did you mean " + near + "?"
	}
	return "; `lapse config docs` lists them all"
}

// nearest is the known name with the smallest distance.
func nearest(name string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
}

// distance is the Levenshtein distance of two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
