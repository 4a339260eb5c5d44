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

// A ServerConfig configures Serve. Size and Auth must be set.
type ServerConfig struct {
	Form   protocol.Form
	Size   int // number of members
	Auth   protocol.Auth
	Limits protocol.Limits
	// TLS is the configuration of the connections. If nil, TLS is not used.
	TLS *tls.Config
	// Startup is the time limit for the startup, which ends when all members are done. Zero means one minute.
	Startup time.Duration
	// Handshake is how long a connection may take to join. Zero means 5 seconds.
	Handshake time.Duration
	// Write is how long a member may accept no bytes while there are bytes to send to it. The member is then
	// disconnected. Zero means 10 seconds.
	Write time.Duration
	// OnEvent, if not nil, is called for each event. Calls are serialized. OnEvent is called with the server's lock
	// held and must return promptly.
	OnEvent func(protocol.Event)
}

// A server runs the state machine of package protocol over sockets.
type server struct {
	cfg         ServerConfig
	machineOver chan struct{} // closed when the machine has ended
	goroutines  sync.WaitGroup
	mu          sync.Mutex // guards the machine, conns, and the fields below
	machine     *protocol.Server
	conns       map[int]*conn
	lastConn    int   // id of the newest connection
	overClosed  bool  // machineOver is closed
	panicErr    error // panic of the machine, after which it is no longer used; nil if there was none
}

// Serve runs a server on l until every member has left, the startup has failed, or ctx is done. It then closes l and
// returns. The error is nil only if every member has called Leave. If members were missing when ServerConfig.Startup
// expired, the error is a *protocol.MissingError that lists them.
func Serve(ctx context.Context, l net.Listener, cfg ServerConfig) error {
	defer func() { _ = l.Close() }()
	machine, err := protocol.NewServer(protocol.ServerConfig{
		Form: cfg.Form, Size: cfg.Size, Auth: cfg.Auth, Limits: cfg.Limits, Nonce: fillRandom,
	})
	if err != nil {
		return err
	}
	cfg.Startup = cmp.Or(cfg.Startup, time.Minute)
	cfg.Handshake = cmp.Or(cfg.Handshake, 5*time.Second)
	cfg.Write = cmp.Or(cfg.Write, 10*time.Second)
	s := &server{cfg: cfg, machineOver: make(chan struct{}), machine: machine, conns: map[int]*conn{}}
	if cfg.TLS != nil {
		l = tls.NewListener(l, cfg.TLS)
	}
	deadline := time.AfterFunc(cfg.Startup, func() { s.runMachine(machine.Expire) })
	defer deadline.Stop()
	stop := context.AfterFunc(ctx, func() { s.runMachine(func() { machine.Stop(context.Cause(ctx)) }) })
	defer stop()
	s.goroutines.Go(func() { s.acceptLoop(l) })
	<-s.machineOver
	_ = l.Close()
	s.goroutines.Wait()
	if s.panicErr != nil {
		return s.panicErr
	}
	_, err = machine.Over()
	return err
}

// fillRandom fills b with random bytes. It relies on rand.Read never returning an error.
func fillRandom(b []byte) { _, _ = rand.Read(b) }

// acceptLoop accepts connections until l is closed.
func (s *server) acceptLoop(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err == nil {
			s.addConn(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			s.runMachine(func() { s.machine.Stop(err) })
			return
		}
		select { // for example, out of file descriptors: retry when connections may have closed
		case <-s.machineOver:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// addConn adds an accepted connection and starts its goroutines.
func (s *server) addConn(nc net.Conn) {
	c := &conn{Conn: nc, server: s, wake: make(chan struct{}, 1), readDone: make(chan struct{})}
	s.runMachine(func() {
		s.lastConn++
		c.id = s.lastConn
		s.conns[c.id] = c
		s.machine.Connect(c.id)
	})
	s.mu.Lock()
	broken := s.panicErr != nil
	s.mu.Unlock()
	if broken { // writeLoop would never be woken
		_ = nc.Close()
		return
	}
	s.goroutines.Go(c.readLoop)
	s.goroutines.Go(c.writeLoop)
}

// runMachine calls f with the server's lock held, and then handles the outputs and events of the state machine.
func (s *server) runMachine(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panicErr == nil {
		s.recoverMachineLocked(f)
	}
	if s.panicErr != nil {
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
	if over, _ := s.machine.Over(); over && !s.overClosed {
		s.overClosed = true
		close(s.machineOver)
	}
}

// recoverMachineLocked calls f, and recovers if the state machine panics, for instance on bytes received from a
// member. The server then ends, because the state may be inconsistent. s.mu must be held.
func (s *server) recoverMachineLocked(f func()) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		s.panicErr = fmt.Errorf("rendezvous: panic while handling data from a member, please report it: %v\n%s",
			v, debug.Stack())
		for _, c := range s.conns {
			c.enqueueLocked(protocol.Output{Close: true})
			_ = c.Close()
		}
		if !s.overClosed {
			s.overClosed = true
			close(s.machineOver)
		}
	}()
	f()
}

// failpoint, if not nil, is called with the bytes of each read. It is set only by tests.
var failpoint atomic.Pointer[func(b []byte)]
