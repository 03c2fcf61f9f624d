package server

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
)

// trace is the W3C trace context of one call (https://www.w3.org/TR/trace-context/).
type trace struct {
	id     string // trace id, answered to the caller and logged
	parent string // traceparent to hand on
}

const traceParentLen = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-00")

// traceOf reads a traceparent; without a valid one it starts a trace, so that every call has an id.
func traceOf(traceparent string) trace {
	if validTraceParent(traceparent) {
		return trace{id: traceparent[3:35], parent: "00" + traceparent[2:traceParentLen]}
	}
	var b [24]byte
	binary.BigEndian.PutUint64(b[0:], rand.Uint64()|1) // an id of zeros only is not valid
	binary.BigEndian.PutUint64(b[8:], rand.Uint64())
	binary.BigEndian.PutUint64(b[16:], rand.Uint64()|1)
	id := hex.EncodeToString(b[:16])
	return trace{id: id, parent: "00-" + id + "-" + hex.EncodeToString(b[16:]) + "-00"}
}

// validTraceParent accepts version 00 and, as the standard asks, longer ones of later versions.
func validTraceParent(s string) bool {
	if len(s) < traceParentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, id, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	if !isHex(version) || !isHex(id) || !isHex(span) || !isHex(flags) {
		return false
	}
	if version == "ff" || strings.Trim(id, "0") == "" || strings.Trim(span, "0") == "" {
		return false
	}
	return len(s) == traceParentLen || version != "00" && s[traceParentLen] == '-'
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
