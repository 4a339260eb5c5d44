package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/stream"
)

// A guest is a connection that came in and has not said HELLO. It has a goroutine, which reads it.
type guest struct {
	socket
	d      *domain
	in     *stream.In
	since  time.Time
	shown  bool // out, and its goroutine has not come back; guarded by lobby.mu
	taken  bool
	locked *engine.Endpoint // that of the context which it asks for
	then   func()           // what its goroutine does once the connection is the context's
}

// silence is how long a guest may say nothing where others wait: then the oldest makes room.
const silence = 100 * time.Millisecond

// A lobby is where guests wait, within MaxHalfOpen. When it is full the next waits until one has said HELLO, or until the oldest has
// been silent for long enough and is shown out.
type lobby struct {
	left chan struct{} // a guest has left; holds one

	mu     sync.Mutex // guards guests; the last lock
	guests []*guest   // in the order in which they came
}

// enter takes g in, or returns how long to wait before it is asked again.
func (l *lobby) enter(g *guest) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.guests) < g.d.opts.MaxHalfOpen {
		l.guests = append(l.guests, g)
		return 0
	}
	i := slices.IndexFunc(l.guests, func(other *guest) bool { return !other.shown })
	if i < 0 {
		return silence
	}
	oldest := l.guests[i]
	if wait = silence - time.Since(oldest.since); wait > 0 {
		return wait
	}
	oldest.shown = true
	_ = oldest.tcp.Close()
	return silence
}

// leave takes g out, and reports false when it has been shown out. It may be called again.
func (l *lobby) leave(g *guest) bool {
	l.mu.Lock()
	l.guests = slices.DeleteFunc(l.guests, func(other *guest) bool { return other == g })
	shown := g.shown
	l.mu.Unlock()
	select {
	case l.left <- struct{}{}:
	default:
	}
	return !shown
}

// clear ends every guest.
func (l *lobby) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guests {
		_ = g.tcp.Close()
	}
}

// newGuest takes in a connection, and waits until the lobby has room for it; it is closed when functions of the user's keep those who
// were shown out, or when the listener is closed.
func (d *domain) newGuest(nc *net.TCPConn, done chan struct{}) {
	g := &guest{socket: socket{ReadWriter: nc, tcp: nc}, d: d, in: &stream.In{}, since: time.Now()}
	g.in.Greet = g.greet
	for wait := d.door.guests.enter(g); wait > 0; wait = d.door.guests.enter(g) {
		if time.Since(g.since) > 3*silence || !d.door.guests.await(wait, done) {
			_ = nc.Close()
			return
		}
	}
	g.since = time.Now()
	go g.serve()
}

// await waits until a guest has left, or for d, and reports false when done was closed meanwhile.
func (l *lobby) await(d time.Duration, done chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-l.left:
	case <-timer.C:
	}
	return true
}

// serve reads the HELLO, after the handshake of TLS if that is asked for, within HandshakeTimeout.
func (g *guest) serve() {
	defer func() { // also when a function of the user's ends the goroutine
		g.d.door.guests.leave(g)
		if !g.taken {
			_ = g.tcp.Close()
		}
	}()
	defer g.d.eng.Rescue(func(error) { _ = g.tcp.Close() })
	due := time.Now().Add(g.d.opts.HandshakeTimeout)
	_ = g.tcp.SetDeadline(due)
	err := g.begin(due)
	if err == nil {
		err = g.hear()
	}
	if err != nil {
		_ = g.tcp.SetDeadline(time.Now().Add(lastGrace))
		g.refuse(err)
		return
	}
	g.then()
}

// begin has the peer begin TLS, if that is asked for.
func (g *guest) begin(due time.Time) (err error) {
	if g.d.sec == nil {
		return nil
	}
	if g.tls, err = g.d.sec.serve(g.tcp, due); err == nil {
		g.ReadWriter = g.tls
		return nil
	}
	if _, silent := errors.AsType[errSilent](err); !silent { // who connects and says nothing, as a probe of a load balancer does, has begun none
		g.d.eng.HandshakeFailed(g.tcp.RemoteAddr().String(), secure.Reason(err))
	}
	return err
}

// hear reads until the HELLO is complete. An error that is an na.Code says what is wrong with it, others are those of reading.
func (g *guest) hear() error {
	var head []byte // the first bytes, as many as tell TLS from a HELLO
	late := false
	for !g.taken {
		b := g.in.Wait()
		n, err := g.Read(b)
		g.in.Got(n)
		failpoint.Read(b[:n])
		if g.tls == nil && len(head) < tlsHead {
			head = append(head, b[:min(n, tlsHead-len(head))]...)
			if beginsTLS(head) {
				return errWantsPlain
			}
		}
		if err := g.parse(); err != nil {
			return err
		}
		switch {
		case err == nil || g.taken:
		case errors.Is(err, os.ErrDeadlineExceeded) && !late: // this process may have been frozen: what has come is read first
			late = true
			_ = g.tcp.SetDeadline(time.Now().Add(lastGrace))
		default:
			return err
		}
	}
	return nil
}

// parse looks at what has been read, with the endpoint locked from the HELLO on.
func (g *guest) parse() (err error) {
	defer func() {
		if g.locked != nil {
			g.locked.UnlockAfter(recover())
		}
	}()
	if err = g.in.Parse(); g.taken && err != nil {
		g.in.Link.Fail(err)
		err = nil
	}
	return err
}

// greet hands the connection over to the context that the HELLO names.
func (g *guest) greet(hello *frame.Greeting) (err error) {
	g.d.spread(hello)
	to := g.d.carrier(int(hello.Target))
	if to == nil {
		return na.WithText(na.ErrNoEntry, fmt.Sprintf("there is no context %d", hello.Target))
	}
	if !g.d.door.guests.leave(g) { // just before
		return net.ErrClosed
	}
	_ = g.tcp.SetDeadline(time.Time{})
	same := g.d.names.Verified(hello.Listen, ipOf(g.tcp.LocalAddr()), ipOf(g.tcp.RemoteAddr())) &&
		(g.tls == nil || g.tls.proof.SpeaksFor(scheme, hello.Listen))
	g.locked = to.endpoint()
	g.locked.Lock()
	g.then, err = to.adopt(g, hello, same)
	if g.taken = err == nil; g.taken {
		g.in.Greet = nil // or else the connection would keep g
	}
	return err
}

// refuse tells the peer why it is not let in, and lets it have the time to hear that. The connection has a deadline.
func (g *guest) refuse(err error) {
	_, ours := errors.AsType[na.Code](err)
	switch {
	case errors.Is(err, errNotTLS):
		_, _ = g.tcp.Write(frame.ByeOf(errWantsTLS).Frame())
	case ours && (g.d.sec == nil || g.tls != nil): // it has said something, and not what it should
		_, _ = g.Write(frame.ByeOf(err).Frame())
		if g.tls != nil {
			_ = g.tls.CloseWrite()
		}
	case g.d.sec == nil:
		return // it has not said anything that could be answered
	}
	// Closing with bytes unread would reset the connection, and the peer might not hear it.
	_ = g.tcp.CloseWrite()
	_, _ = io.CopyN(io.Discard, g.tcp, secure.MaxServerProof)
}
