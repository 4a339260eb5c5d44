package netconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// acceptPause is how long to wait after Accept fails, most likely because no file descriptors are
// left.
const acceptPause = 100 * time.Millisecond

const (
	defaultHalfOpen  = 256
	defaultHandshake = 5 * time.Second
)

// A Server accepts a class's connections and passes each one to the context named in its HELLO. The
// exported fields must be set before the first Join.
type Server struct {
	Class carrier.Class
	Log   *slog.Logger
	// MaxHalfOpen is the maximum number of half-open connections; 0 means 256. While the maximum is
	// reached and another connection is waiting, the oldest one is closed once it is 0.1 s old.
	MaxHalfOpen int
	// HandshakeTimeout limits the total time for Begin and the HELLO of a connection; 0 means 5 s.
	HandshakeTimeout time.Duration
	// Spread is the number of contexts among which peers that name no context are distributed; 0
	// means that they all go to the first context. The server accepts connections once that many
	// contexts exist.
	Spread int
	// Sibling binds an additional listening socket at the same address. It is called for each
	// context after the first. If Sibling is nil, all contexts share the first socket.
	Sibling func() (net.Listener, error)
	// Shared means that other processes may also accept connections from the first socket. A
	// draining server then stops accepting, so that those processes receive the new connections.
	Shared bool
	// Begin performs the handshake that precedes the HELLO on an accepted connection and returns
	// the connection to use in its place. due is its deadline. If Begin returns an error, the
	// accepted connection is closed. Begin may be nil.
	Begin func(nc net.Conn, due time.Time) (net.Conn, error)
	// Verify reports whether nc's peer is on the machine of the canonical name. If Verify is nil,
	// no peer is verified.
	Verify func(nc net.Conn, name string) bool

	slotFreed chan struct{} // capacity 1; receives a value when a half-open connection is removed
	pending   pendingList

	mu       sync.Mutex  // guards the fields below and all listeners; may be taken while a context's lock is held
	shared   *Listener   // the socket passed to Listen, or nil
	adopters []Adopter   // carriers that have joined and not left, in order of their IDs
	draining []Adopter   // adopters that accept no new peers
	deferred []*Listener // sockets on which to start accepting once there are Spread contexts
}

// An Adopter is a carrier that can adopt accepted connections.
type Adopter interface {
	carrier.Carrier
	Core() carrier.Core
	// Adopt makes nc, whose peer has sent hello, one of the carrier's connections. in holds the
	// bytes that were read after the HELLO. The caller must hold the context's lock. If Adopt
	// succeeds, the connection's goroutine calls then, without the lock; then may run for any
	// length of time. If Adopt returns an error, the caller still owns nc.
	Adopt(nc net.Conn, in *framing.In, hello *carrier.Greeting, verified bool) (then func(), err error)
}

// A Listener is a listening socket. Its goroutine accepts connections once a context exists.
type Listener struct {
	l       net.Listener
	done    chan struct{} // closed by the close method
	started bool
	closed  bool
}

func newListener(l net.Listener) *Listener { return &Listener{l: l, done: make(chan struct{})} }

// close closes the socket, which makes the accepting goroutine return. Server.mu must be held.
func (l *Listener) close() {
	if !l.closed {
		l.closed = true
		close(l.done)
		_ = l.l.Close()
	}
}

// Listen makes s accept connections from l. s closes l when it is no longer needed. Listen may be
// called once, before the first Join.
func (s *Server) Listen(l net.Listener) { s.shared = newListener(l) }

// Close closes the listening socket if the class's contexts have not done so.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared != nil {
		s.shared.close()
	}
	return nil
}

// Join adds a carrier, which can then receive connections. With Sibling, each carrier has its own
// listening socket, which Join returns for use with Leave.
func (s *Server) Join(ca Adopter) (own *Listener, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slotFreed == nil {
		s.slotFreed = make(chan struct{}, 1)
		s.setDefaults()
	}
	starts := s.shared
	switch {
	case s.shared == nil:
	case !s.shared.started:
		if s.Sibling != nil {
			own = s.shared
		}
	case s.Sibling != nil:
		l, err := s.Sibling()
		if err != nil {
			return nil, err
		}
		own = newListener(l)
		starts = own
	case s.shared.closed:
		return nil, codes.WithText(codes.ErrClosed, "listener closed")
	}
	s.adopters = append(s.adopters, ca)
	if starts != nil && !starts.started {
		starts.started = true
		s.deferred = append(s.deferred, starts)
	}
	if len(s.adopters) >= s.Spread {
		for _, l := range s.deferred {
			go s.acceptLoop(l)
		}
		s.deferred = nil
	}
	return own, nil
}

func (s *Server) setDefaults() {
	if s.MaxHalfOpen == 0 {
		s.MaxHalfOpen = defaultHalfOpen
	}
	if s.HandshakeTimeout == 0 {
		s.HandshakeTimeout = defaultHandshake
	}
}

// Leave removes ca, which then receives no more connections, and closes its listening socket. After
// the last carrier has left, s accepts no connections.
func (s *Server) Leave(ca Adopter, own *Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isLeaving := func(other Adopter) bool { return other == ca }
	s.adopters = slices.DeleteFunc(s.adopters, isLeaving)
	s.draining = slices.DeleteFunc(s.draining, isLeaving)
	if own != nil {
		own.close()
	}
	if len(s.adopters) > 0 {
		s.closeIfDrainingLocked()
		return
	}
	if s.shared != nil {
		s.shared.close()
	}
	s.pending.closeAll()
}

// Drain stops new peers from being passed to ca. It must be called at most once per carrier. Once
// all carriers are draining, it closes a Shared socket, so that other processes accept the
// connections.
func (s *Server) Drain(ca Adopter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = append(s.draining, ca)
	s.closeIfDrainingLocked()
}

func (s *Server) closeIfDrainingLocked() {
	if s.Shared && s.shared != nil && len(s.draining) == len(s.adopters) {
		s.shared.close()
	}
}

// chooseContext selects the context for a peer that does not name one. The choice is always the
// same for a given context of the peer.
func (s *Server) chooseContext(hello *frame.Greeting) {
	if n := uint64(s.Spread); n > 0 && hello.Target == 0 {
		hello.Any = true
		hello.Target = uint16((binary.LittleEndian.Uint64(hello.Incarnation[:]) + uint64(hello.Context)) % n)
	}
}

// adopterOf returns the carrier of the context with ID target.
func (s *Server) adopterOf(target int) (Adopter, error) {
	if core := s.Class.Context(target); core != nil { // nil until package na has the context's carrier
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, ca := range s.adopters {
			if ca.Core() == core {
				return ca, nil
			}
		}
	}
	return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("no such context: %d", target))
}

// errAcceptedNothing is logged when the Accept method of a program's net.Listener violates its
// contract.
var errAcceptedNothing = errors.New("net.Listener returned a nil connection and a nil error")

// acceptLoop accepts connections until the socket is closed.
func (s *Server) acceptLoop(l *Listener) {
	var logOnce sync.Once
	for {
		nc, err := l.l.Accept()
		if err == nil && nc == nil {
			err = errAcceptedNothing
			logOnce.Do(func() { s.Log.Error(err.Error(), "addr", addrText(l.l.Addr())) })
		}
		switch {
		case err == nil:
			s.addHalfOpen(nc, l.done)
		case errors.Is(err, net.ErrClosed):
			select {
			case <-l.done:
			default: // the program closed its own socket
				s.Log.Error("listener closed by the program", "addr", addrText(l.l.Addr()))
			}
			return
		default: // most likely the process has no file descriptors left
			pause := time.NewTimer(acceptPause)
			select {
			case <-pause.C:
			case <-l.done:
				pause.Stop()
				return
			}
		}
	}
}
