package server

import (
	"net"
	"net/http"
	"sync"
)

// silent are the connections on which nothing was ever asked: browsers and load balancers open some ahead.
// net/http counts them as busy for five seconds, which is longer than a stop may take.
type silent struct {
	mu      sync.Mutex
	conns   map[net.Conn]bool
	closing bool
}

// track is the http.Server's ConnState.
func (s *silent) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.closing:
		c.Close()
	default:
		s.conns[c] = true
	}
}

// close closes them, and those that still come.
func (s *silent) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for c := range s.conns {
		c.Close()
	}
}
