package app

import "time"

// Config is every setting, validated. It is never changed: a reload makes a new one. What each setting
// means, its default and whether it is reloaded stands in Keys, next to its name.
type Config struct {
	Database  Database
	Broker    Broker
	Delay     Delay
	Order     Order
	Limit     Limit
	Resource  Resource
	Attempt   Attempt
	Gateway   Gateway
	Confirm   Confirm
	Hook      Hook
	Create    Create
	Close     Close
	Relay     Relay
	Sweep     Sweep
	Breaker   Breaker
	Reconcile Reconcile
	House     House
	Server    Server
	Ops       Ops
	Auth      Auth
	Payment   Payment
	Log       Log
	Shutdown  Shutdown

	// Dev is set for `lapse dev`: secrets that look like examples are fine there.
	Dev bool
}

type Database struct {
	Driver        string
	DSN           string
	ReplicaDSN    string
	ReplicaMaxLag time.Duration
	MaxConns      int
}

type Broker struct {
	Driver       string
	NameServers  []string
	AccessKey    string
	SecretKey    string
	TLS          BrokerTLS
	TimeoutTopic string
	EventTopic   string
	Group        string
	Queues       int
	CreateTopics bool
	Trace        bool
}

type BrokerTLS struct {
	Enabled    bool
	CAFile     string
	ServerName string
}

type Delay struct {
	Mode    string
	Grace   time.Duration
	Horizon time.Duration
}

type Order struct {
	Timeout  OrderTimeout
	Rule     Rule
	BizTypes []BizType
}

type Resource struct {
	RemoteKinds []string
}

type Limit struct {
	CallerRate  int
	UserPending int
	UserMinute  int
}

type Attempt struct {
	Default time.Duration
	Longest time.Duration
}

type Gateway struct {
	URL     string
	Token   string
	Timeout time.Duration
}

type Confirm struct {
	For time.Duration
	End string
}

type Hook struct {
	URL      string
	Secret   string
	Timeout  time.Duration
	Interval time.Duration
}

type OrderTimeout struct {
	Default time.Duration
	Min     time.Duration
	Max     time.Duration
}

type Create struct {
	GroupSize int
	Linger    time.Duration
}

type Close struct {
	BatchSize int
	Linger    time.Duration
}

type Relay struct {
	PollInterval time.Duration
	Lease        time.Duration
	MaxAttempts  int
}

type Sweep struct {
	Interval time.Duration
	Overdue  time.Duration
	Limit    int
	Pause    time.Duration
	Cap      int
	Rate     int
	Lease    time.Duration
}

type Reconcile struct {
	Interval time.Duration
	Rate     int
	Overdue  time.Duration
	Ack      time.Duration
	Case     time.Duration
}

type House struct {
	Interval     time.Duration
	ArchiveAfter time.Duration
	Retention    time.Duration
}

type Breaker struct {
	Enabled  bool
	Interval time.Duration
	Settle   time.Duration
	Attempts int
	Drop     int
	Floor    int
	Resume   string
}

type Server struct {
	Addr string
	TLS  ServerTLS
}

type ServerTLS struct {
	CertFile string
	KeyFile  string
}

type Ops struct {
	Addr  string
	Pprof bool
}

type Auth struct {
	Tokens []Token
}

// Token is one bearer token of the API.
type Token struct {
	Name   string   // who it belongs to; stands on the orders it makes
	Token  string   // the secret itself
	Scopes []string // order, payment, operator
}

type Payment struct {
	Secrets   []string
	Tolerance time.Duration
}

type Log struct {
	Level  string
	Format string
}

type Shutdown struct {
	Timeout time.Duration
}
