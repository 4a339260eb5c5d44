package rendezvous

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A ServerConfig says what a server waits for. Size and Auth must be set.
type ServerConfig struct {
	Form   protocol.Form
	Size   int // how many members
	Auth   protocol.Auth
	Limits protocol.Limits
	// TLS is what connections begin with; nil: nothing.
	TLS *tls.Config
	// Startup bounds the time until all are done. Zero means a minute.
	Startup time.Duration
	// Handshake bounds the time until a connection has joined. Zero means 5 seconds.
	Handshake time.Duration
	// Write bounds the time in which a member takes nothing of what there is for it. Zero means 10 seconds.
	Write time.Duration
	// OnEvent is called with what happens, one call at a time. It must return soon; nil: nobody is told.
	OnEvent func(protocol.Event)
}

// A server runs the state machine of package protocol over sockets.
type server struct {
	cfg      ServerConfig
	over     chan struct{} // closed when the machine has ended
	running  sync.WaitGroup
	mu       sync.Mutex // guards the machine, and conns with their queues
	machine  *protocol.Server
	conns    map[int]*conn
	last     int // the number of the newest connection
	finished bool
	broken   error // a panic of the machine, which nobody uses any more; nil: there was none
}

// Serve collects and sends until every member has left, the startup has failed, or ctx ends. It closes l. The error is nil
// only if every member has left in good order; a *protocol.MissingError says who was missing when the time was up.
func Serve(ctx context.Context, l net.Listener, cfg ServerConfig) error {
	defer func() { _ = l.Close() }()
	machine, err := protocol.NewServer(protocol.ServerConfig{
		Form: cfg.Form, Size: cfg.Size, Auth: cfg.Auth, Limits: cfg.Limits, Nonce: random,
	})
	if err != nil {
		return err
	}
	cfg.Startup = cmp.Or(cfg.Startup, time.Minute)
	cfg.Handshake = cmp.Or(cfg.Handshake, 5*time.Second)
	cfg.Write = cmp.Or(cfg.Write, 10*time.Second)
	s := &server{cfg: cfg, over: make(chan struct{}), machine: machine, conns: map[int]*conn{}}
	if cfg.TLS != nil {
		l = tls.NewListener(l, cfg.TLS)
	}
	deadline := time.AfterFunc(cfg.Startup, func() { s.do(machine.Expire) })
	defer deadline.Stop()
	stop := context.AfterFunc(ctx, func() { s.do(func() { machine.Stop(context.Cause(ctx)) }) })
	defer stop()
	s.running.Go(func() { s.accept(l) })
	<-s.over
	_ = l.Close()
	s.running.Wait()
	if s.broken != nil {
		return s.broken
	}
	_, err = machine.Over()
	return err
}

// random never fails: package rand sees to it.
func random(b []byte) { _, _ = rand.Read(b) }

func (s *server) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err == nil {
			s.connect(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			s.do(func() { s.machine.Stop(err) })
			return
		}
		select { // no descriptors, for instance: connections that end give some back
		case <-s.over:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) connect(nc net.Conn) {
	c := &conn{Conn: nc, server: s, wake: make(chan struct{}, 1), read: make(chan struct{})}
	s.do(func() {
		s.last++
		c.id = s.last
		s.conns[c.id] = c
		s.machine.Connect(c.id)
	})
	s.mu.Lock()
	broken := s.broken != nil
	s.mu.Unlock()
	if broken { // nobody would wake c.send
		_ = nc.Close()
		return
	}
	s.running.Go(c.receive)
	s.running.Go(c.send)
}

// do calls a method of the machine and does what it says.
func (s *server) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.call(f)
	}
	if s.broken != nil {
		return
	}
	out, events := s.machine.Take()
	for _, o := range out {
		if c := s.conns[o.Conn]; c != nil {
			c.enqueueLocked(o)
		}
	}
	if s.cfg.OnEvent != nil {
		for _, e := range events {
			s.cfg.OnEvent(e)
		}
	}
	if over, _ := s.machine.Over(); over && !s.finished {
		s.finished = true
		close(s.over)
	}
}

// call calls f. A panic of the machine, over what a member has sent, ends the server: what it knows of all may be half changed. mu is held.
func (s *server) call(f func()) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		s.broken = fmt.Errorf("rendezvous: a defect of the server: it panicked while it handled what a member had sent, please report it: %v\n%s", v, debug.Stack())
		for _, c := range s.conns {
			c.enqueueLocked(protocol.Output{Close: true})
			_ = c.Close()
		}
		if !s.finished {
			s.finished = true
			close(s.over)
		}
	}()
	f()
}

// failpoint, if not nil, is called with what a member has sent. Only tests set it.
var failpoint atomic.Pointer[func(b []byte)]
