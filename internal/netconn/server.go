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

// acceptPause is how long nothing is accepted after the process ran out of descriptors.
const acceptPause = 100 * time.Millisecond

const (
	defaultHalfOpen  = 256
	defaultHandshake = 5 * time.Second
)

// A Server accepts the connections of a class and hands each to the context that its HELLO names. Its exported fields are set before
// the first Join; the zero value of each optional one is given.
type Server struct {
	Class carrier.Class
	Log   *slog.Logger
	// MaxHalfOpen bounds the connections whose HELLO has not come; 0 means 256. At the bound the oldest is closed after 0.1 s.
	MaxHalfOpen int
	// HandshakeTimeout is how long the HELLO of a connection may take, with what Begin does before it; 0 means 5 s.
	HandshakeTimeout time.Duration
	// Spread is the number of contexts over which peers are spread that name none; 0 sends them to the first. Connections are
	// accepted once there are as many.
	Spread int
	// Sibling binds one more listening socket at the same address, one for each context after the first. Nil: they share the first.
	Sibling func() (net.Listener, error)
	// Begin does what precedes the HELLO on an accepted connection, which has the deadline due, and returns the connection to go
	// on with. After an error the accepted connection is closed. Nil for nothing.
	Begin func(nc net.Conn, due time.Time) (net.Conn, error)
	// Verify reports whether the peer of nc is on the machine that the canonical name names. Nil: no peer is.
	Verify func(nc net.Conn, name string) bool

	left    chan struct{} // a half-open connection has ended; holds one
	pending pendingList

	mu       sync.Mutex  // guards the fields below, and the listeners; taken inside a context's lock
	main     *Listener   // nil when there is none
	open     []Adopter   // that have not been shut, in the order of their ids
	deferred []*Listener // that accept once there are Spread contexts
}

// An Adopter is the carrier of a context, to peers that connect.
type Adopter interface {
	carrier.Carrier
	Core() carrier.Core
	// Adopt makes nc, whose peer has sent hello, a connection of the carrier; in holds what has been read after that. then is
	// called without the lock, by the goroutine of the connection, which it may keep. An error leaves nc to the caller. Locked.
	Adopt(nc net.Conn, in *framing.In, hello *carrier.Greeting, verified bool) (then func(), err error)
}

// A Listener is a listening socket, with a goroutine that accepts once a context exists.
type Listener struct {
	l       net.Listener
	done    chan struct{}
	started bool
	closed  bool
}

func newListener(l net.Listener) *Listener { return &Listener{l: l, done: make(chan struct{})} }

func (l *Listener) close() {
	if !l.closed {
		l.closed = true
		close(l.done)
		_ = l.l.Close()
	}
}

// Listen has s accept from l, which it owns from now on. It is called once at most, before the first Join.
func (s *Server) Listen(l net.Listener) { s.main = newListener(l) }

// Close closes the listening socket if no context ever did.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.main != nil {
		s.main.close()
	}
	return nil
}

// Join admits peers to a new carrier. With Sibling each has a listening socket of its own, which is returned for Leave.
func (s *Server) Join(ca Adopter) (own *Listener, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = make(chan struct{}, 1)
		s.setDefaults()
	}
	starts := s.main
	switch {
	case s.main == nil:
	case !s.main.started:
		if s.Sibling != nil {
			own = s.main
		}
	case s.Sibling != nil:
		l, err := s.Sibling()
		if err != nil {
			return nil, err
		}
		own = newListener(l)
		starts = own
	case s.main.closed:
		return nil, codes.WithText(codes.ErrClosed, "the listening socket was closed with the last context")
	}
	s.open = append(s.open, ca)
	if starts != nil && !starts.started {
		starts.started = true
		s.deferred = append(s.deferred, starts)
	}
	if len(s.open) >= s.Spread {
		for _, l := range s.deferred {
			go s.accept(l)
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

// Leave admits no peer to ca any more, and to no context when it was the last.
func (s *Server) Leave(ca Adopter, own *Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(other Adopter) bool { return other == ca })
	if own != nil {
		own.close()
	}
	if len(s.open) > 0 {
		return
	}
	if s.main != nil {
		s.main.close()
	}
	s.pending.clear()
}

// spread chooses the context for a peer that does not name one.
func (s *Server) spread(hello *frame.Greeting) {
	if n := uint64(s.Spread); n > 0 && hello.Target == 0 {
		hello.Any = true
		hello.Target = uint16((binary.LittleEndian.Uint64(hello.Incarnation[:]) + uint64(hello.Context)) % n)
	}
}

// adopterOf returns the open carrier of a target id.
func (s *Server) adopterOf(target int) (Adopter, error) {
	if core := s.Class.Context(target); core != nil { // nil until package na knows its carrier
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, ca := range s.open {
			if ca.Core() == core {
				return ca, nil
			}
		}
	}
	return nil, codes.WithText(codes.ErrNoEntry, fmt.Sprintf("there is no context %d", target))
}

// errAcceptedNothing is the error of a listener that breaks the contract of net.Listener.
var errAcceptedNothing = errors.New("the listener of the program accepted nil without an error: that is a defect of it")

// accept accepts until the socket is closed.
func (s *Server) accept(l *Listener) {
	var toldOnce sync.Once
	for {
		nc, err := l.l.Accept()
		if err == nil && nc == nil {
			err = errAcceptedNothing
			toldOnce.Do(func() { s.Log.Error(err.Error(), "addr", text(l.l.Addr())) })
		}
		switch {
		case err == nil:
			s.take(nc, l.done)
		case errors.Is(err, net.ErrClosed):
			select {
			case <-l.done:
			default: // it is a socket of the program's
				s.Log.Error("the listening socket was closed beneath the node: nobody can connect any more", "addr", text(l.l.Addr()))
			}
			return
		default: // out of descriptors, most likely
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
