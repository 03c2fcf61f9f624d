package rocketmq

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the protocol signs with it
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Request codes of RocketMQ's remoting protocol (org.apache.rocketmq.remoting.protocol.RequestCode).
const (
	reqQueryOffset = 14
	reqCreateTopic = 17
	reqBrokerInfo  = 28
	reqMaxOffset   = 30
	reqMinOffset   = 31
	reqSendBack    = 36
	reqRoute       = 105
	reqClusterInfo = 106
)

// Response codes (org.apache.rocketmq.remoting.protocol.ResponseCode, …common.protocol in 4.x).
const (
	resOK             = 0
	resMessageIllegal = 13
	resNoPermission   = 16
	resNoTopic        = 17
	resNoOffset       = 22
)

const (
	// callTimeout bounds one request and its answer.
	callTimeout = 5 * time.Second
	// maxFrame bounds an answer; the largest are routes, some KiB.
	maxFrame = 16 << 20
	// protocolVersion is what the Go client says of itself (4.x's V4_7_0).
	protocolVersion = 317
)

// remoting speaks just enough of RocketMQ's protocol for what the client library cannot do: tell a refusal
// to create a topic from success, read versions, offsets and clocks.
type remoting struct {
	accessKey, secretKey string
	tls                  *tls.Config // nil: plain
}

// remotingConn is one connection, for one caller at a time.
type remotingConn struct {
	net.Conn
	r      *remoting
	opaque int32
}

// header is the JSON part of a frame.
type header struct {
	Code      int               `json:"code"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int32             `json:"opaque"`
	Flag      int               `json:"flag"`
	Remark    string            `json:"remark"`
	ExtFields map[string]string `json:"extFields"`
}

// answer is a whole response.
type answer struct {
	header
	body []byte
}

// codeError is an answer other than OK.
type codeError struct {
	Code   int
	Remark string
}

func (e *codeError) Error() string {
	return fmt.Sprintf("response code %d: %s", e.Code, firstLine(e.Remark))
}

// firstLine cuts the stack traces that brokers put into remarks.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// dial connects to a name server or broker.
func (r *remoting) dial(ctx context.Context, addr string) (*remotingConn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if r.tls != nil {
		conn, err = (&tls.Dialer{Config: r.tls}).DialContext(ctx, "tcp", addr)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	return &remotingConn{Conn: conn, r: r}, nil
}

// call sends one request on a connection of its own.
func (r *remoting) call(ctx context.Context, addr string, code int, fields map[string]string) (answer, error) {
	conn, err := r.dial(ctx, addr)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	return conn.call(ctx, code, fields)
}

// call sends one request and waits for its answer; any code but OK is a *codeError.
func (c *remotingConn) call(ctx context.Context, code int, fields map[string]string) (answer, error) {
	deadline := time.Now().Add(callTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.SetDeadline(deadline); err != nil {
		return answer{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	c.opaque++
	if err := c.write(header{
		Code: code, Language: "GO", Version: protocolVersion, Opaque: c.opaque, ExtFields: c.r.sign(fields),
	}); err != nil {
		return answer{}, err
	}
	for {
		a, err := c.read()
		if err != nil {
			return answer{}, err
		}
		if a.Opaque != c.opaque {
			continue // something that the server says on its own
		}
		if a.Code != resOK {
			return a, &codeError{a.Code, a.Remark}
		}
		return a, nil
	}
}

// write sends a frame: its length, the header's length (whose high byte 0 says JSON), the header.
func (c *remotingConn) write(h header) error {
	raw, err := json.Marshal(h)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(raw)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(raw)))
	_, err = c.Write(append(frame, raw...))
	return err
}

func (c *remotingConn) read() (answer, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(c, sizes[:]); err != nil {
		return answer{}, err
	}
	frame, head := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if kind := head >> 24; kind != 0 {
		return answer{}, fmt.Errorf("the answer's header is of kind %d, not JSON", kind)
	}
	if frame > maxFrame || frame < 4 || head > frame-4 {
		return answer{}, fmt.Errorf("the answer is no RocketMQ frame (lengths %d, %d)", frame, head)
	}
	raw := make([]byte, frame-4)
	if _, err := io.ReadFull(c, raw); err != nil {
		return answer{}, err
	}
	a := answer{body: raw[head:]}
	return a, json.Unmarshal(raw[:head], &a.header)
}

// sign adds the ACL signature: HMAC-SHA1 over the values in the order of their names.
func (r *remoting) sign(fields map[string]string) map[string]string {
	if r.accessKey == "" {
		return fields
	}
	signed := map[string]string{"AccessKey": r.accessKey}
	maps.Copy(signed, fields)
	mac := hmac.New(sha1.New, []byte(r.secretKey))
	for _, name := range slices.Sorted(maps.Keys(signed)) {
		mac.Write([]byte(signed[name]))
	}
	signed["Signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return signed
}

// bareKey is a number used as a key: RocketMQ's JSON leaves out its quotes.
var bareKey = regexp.MustCompile(`([{,])(\d+):`)

// unmarshal decodes RocketMQ's JSON.
func unmarshal(raw []byte, into any) error {
	return json.Unmarshal(bareKey.ReplaceAll(raw, []byte(`$1"$2":`)), into)
}
