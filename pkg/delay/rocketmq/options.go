package rocketmq

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"lapse/pkg/order"
)

// Mode is how a broker is asked to wait.
type Mode string

const (
	ModeTimer  Mode = "timer"  // to the tenth of a second, up to three days; RocketMQ 5.0 and later
	ModeLevels Mode = "levels" // in steps of the 18 delay levels; every RocketMQ
)

// defaultGroup is the consumer group of the closers.
const defaultGroup = "lapse-closer"

// Options of a driver. The zero value of each but NameServers is safe.
type Options struct {
	NameServers []string // host:port of each name server; required

	AccessKey string // ACL access key; "" when the brokers have no ACL
	SecretKey string // ACL secret key

	// TLS encrypts all connections. The client library cannot verify who answers, so it alone does not
	// protect from an active attacker; it is one setting for the whole process.
	TLS bool
	// TLSCAFile names a PEM file: every name server and broker must show a certificate signed by it when
	// the driver starts and whenever it asks for offsets. "" verifies nobody.
	TLSCAFile     string
	TLSServerName string // name in those certificates; "" means the address that is dialled

	TimeoutTopic string // topic of time-out messages; "" means order-timeout
	EventTopic   string // topic of events; "" means order-event
	CreateTopics bool   // make topics that are missing; false only says how to
	Queues       int    // queues of a topic that is made, per broker; 0 means 8

	Mode        Mode          // "" means timer
	SendTimeout time.Duration // for the answer to a send; 0 means 3 s

	Group       string        // consumer group; "" means lapse-closer, which is for time-outs only
	Concurrency int           // handler calls at a time, with up to 32 messages each; 0 means 32
	MaxRetries  int           // deliveries after the first before a message becomes a dead letter; 0 means 16
	Drain       time.Duration // how long a stop waits for running handlers; 0 means 10 s

	Trace bool // record the message trace of both ends in RMQ_SYS_TRACE_TOPIC
}

const (
	// batch is how many messages one handler call gets at most: what a broker returns to one pull.
	batch = 32
	// Messages and MiB of bodies that a consumer holds at most, over all queues. A decoded message costs
	// about 2 KiB beside its body, so this is some 50 MB with nothing being handled.
	maxHeldMessages = 8192
	maxHeldMiB      = 32
)

var (
	topicName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,127}$`)
	groupName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,120}$`)
)

// withDefaults fills in the documented defaults and refuses what cannot work.
func (o Options) withDefaults() (Options, error) {
	setDefault(&o.TimeoutTopic, "order-timeout")
	setDefault(&o.EventTopic, "order-event")
	setDefault(&o.Queues, 8)
	setDefault(&o.Mode, ModeTimer)
	setDefault(&o.SendTimeout, 3*time.Second)
	setDefault(&o.Group, defaultGroup)
	setDefault(&o.Concurrency, 32)
	setDefault(&o.MaxRetries, 16)
	setDefault(&o.Drain, 10*time.Second)
	return o, o.check()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) check() error {
	var bad []order.Field
	refuse := func(wrong bool, name, reason string) {
		if wrong {
			bad = append(bad, order.Field{Name: name, Reason: reason})
		}
	}
	refuse(len(o.NameServers) == 0, "name_servers", "at least one host:port")
	for _, addr := range o.NameServers {
		_, _, err := net.SplitHostPort(addr)
		refuse(err != nil, "name_servers", fmt.Sprintf("host:port, not %q", addr))
	}
	refuse((o.AccessKey == "") != (o.SecretKey == ""), "access_key", "both keys or none")
	refuse(!topicName.MatchString(o.TimeoutTopic), "timeout_topic", "1 to 127 letters, digits, _ or -")
	refuse(!topicName.MatchString(o.EventTopic), "event_topic", "1 to 127 letters, digits, _ or -")
	refuse(o.TimeoutTopic == o.EventTopic, "event_topic", "another topic than that of the time-outs")
	refuse(!groupName.MatchString(o.Group), "group", "1 to 120 letters, digits, _ or -")
	refuse(o.Mode != ModeTimer && o.Mode != ModeLevels, "mode", "timer or levels")
	refuse(o.Queues < 0 || o.Queues > 1024, "queues", "1 to 1024")
	refuse(o.SendTimeout < 0, "send_timeout", "more than 0")
	refuse(o.Concurrency < 0 || o.Concurrency > 1024, "concurrency", "1 to 1024")
	refuse(o.MaxRetries < 0 || o.MaxRetries > 16, "max_retries", "1 to 16")
	refuse(o.Drain < 0, "drain", "more than 0")
	if bad != nil {
		return &order.Error{Kind: order.Invalid, Code: "invalid_broker_options", Message: "the broker's configuration is not valid", Fields: bad}
	}
	return nil
}

// topic is where messages of a kind go.
func (o Options) topic(kind order.MessageKind) string {
	if kind == order.Timeout {
		return o.TimeoutTopic
	}
	return o.EventTopic
}

// nameServers is NameServers as the client library wants it: it takes a host name only as a URL.
func (o Options) nameServers() []string {
	addrs := make([]string, len(o.NameServers))
	for i, addr := range o.NameServers {
		addrs[i] = addr
		if host, _, _ := net.SplitHostPort(addr); net.ParseIP(host) == nil {
			addrs[i] = "http://" + addr
		}
	}
	return addrs
}

// remoting makes the connection settings of our own requests.
func (o Options) remoting() (*remoting, error) {
	r := &remoting{accessKey: o.AccessKey, secretKey: o.SecretKey}
	if !o.TLS {
		return r, nil
	}
	r.tls = &tls.Config{ServerName: o.TLSServerName, InsecureSkipVerify: o.TLSCAFile == ""} //nolint:gosec // as the setting says, and as the client does
	if o.TLSCAFile == "" {
		return r, nil
	}
	pem, err := os.ReadFile(o.TLSCAFile)
	if err != nil {
		return nil, order.Errorf(order.Invalid, "invalid_broker_options", "the broker's CA file cannot be read").Wrap(err)
	}
	r.tls.RootCAs = x509.NewCertPool()
	if !r.tls.RootCAs.AppendCertsFromPEM(pem) {
		return nil, order.Errorf(order.Invalid, "invalid_broker_options", "%s holds no certificate in PEM form", o.TLSCAFile)
	}
	return r, nil
}

// instance is a name that no other client has: two clients of one name and address would share a
// connection, and a second consumer of the group could not start.
func instance(role string) string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return strings.Join([]string{"lapse", role, hex.EncodeToString(b[:])}, "-")
}
