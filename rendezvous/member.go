package rendezvous

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
	"github.com/quicksilver-rpc/quicksilver/request"
)

// A Config says who a member is and where its server is. Addr and Auth must be set.
type Config struct {
	Form   protocol.Form
	Addr   string // host:port of the server
	Rank   int
	Size   int // how many members there should be; zero: the server decides
	Auth   protocol.Auth
	Limits protocol.Limits
	// TLS is what the connection begins with; nil: nothing.
	TLS *tls.Config
	// Timeout bounds the time until all have joined. Zero means a minute.
	Timeout time.Duration
}

// ErrClosed is the error of what was under way when a member was closed.
var ErrClosed = errors.New("rendezvous: closed")

// errGone is the error if the server ends the connection and the form has no way to say why.
var errGone = errors.New("rendezvous: the server has ended the startup")

// sendTimeout bounds the time in which the server takes nothing.
const sendTimeout = 10 * time.Second

// A Member is one of the processes that start together. Any number of goroutines may use it.
//
// It is a request.Progressor: Progress moves bytes, Trigger runs callbacks. What waits with a context does both.
type Member struct {
	cfg   Config
	conn  net.Conn
	born  time.Time
	waits *request.Class
	stop  func() // of the server, if this process runs it

	reading sync.Mutex // held in Progress
	buf     []byte
	writing sync.Mutex // held from the machine's word to its last byte, so that bytes leave in order; before mu

	mu      sync.Mutex // guards the rest
	machine *protocol.Client
	asked   []collect // ascending by label
	done    func(error)
	ready   []func()
	err     error // has ended
}

// A collect is a label whose set has not arrived.
type collect struct {
	label protocol.Label
	done  func(protocol.Set, error)
}

// Join connects to the server and returns when all members have joined. A server that is not there yet is tried again.
func Join(ctx context.Context, cfg Config) (*Member, error) {
	machine, err := protocol.NewClient(protocol.ClientConfig{
		Form: cfg.Form, Rank: cfg.Rank, Size: cfg.Size, Auth: cfg.Auth, Limits: cfg.Limits, Nonce: random,
	})
	if err != nil {
		return nil, err
	}
	timeout := cmp.Or(cfg.Timeout, time.Minute)
	ctx, stop := context.WithTimeoutCause(ctx, timeout, &joinTimeout{timeout})
	defer stop()
	nc, err := dial(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("rendezvous: join %s as rank %d: %w", cfg.Addr, cfg.Rank, err)
	}
	m := &Member{cfg: cfg, conn: nc, born: time.Now(), buf: make([]byte, 32<<10), machine: machine, stop: func() {}}
	m.waits = request.NewClass(m)
	stopCancel := context.AfterFunc(ctx, func() { m.fail(context.Cause(ctx)) })
	defer stopCancel()
	err = m.act(func() error { return nil })
	for err == nil && m.Size() == 0 {
		err = m.Progress(-1)
	}
	if err != nil {
		m.fail(err)
		return nil, fmt.Errorf("rendezvous: join %s as rank %d: %w", cfg.Addr, cfg.Rank, err)
	}
	return m, nil
}

type joinTimeout struct{ after time.Duration }

func (e *joinTimeout) Error() string { return fmt.Sprintf("not all have joined within %v", e.after) }

func (e *joinTimeout) Is(err error) bool {
	return err == os.ErrDeadlineExceeded || err == context.DeadlineExceeded
}

// dial connects, again and again until the server is there.
func dial(ctx context.Context, cfg Config) (net.Conn, error) {
	var d net.Dialer
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		nc, err := d.DialContext(ctx, "tcp", cfg.Addr)
		if err == nil && cfg.TLS == nil {
			return nc, nil
		}
		if err == nil {
			return secure(ctx, nc, cfg)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

func secure(ctx context.Context, nc net.Conn, cfg Config) (net.Conn, error) {
	config := cfg.TLS.Clone()
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(cfg.Addr)
		if err != nil {
			return nil, errors.Join(err, nc.Close())
		}
		config.ServerName = host
	}
	tc := tls.Client(nc, config)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return tc, nil
}

// Rank returns the member's rank, from 0 to Size-1.
func (m *Member) Rank() int { return m.cfg.Rank }

// Size returns how many members there are.
func (m *Member) Size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Size()
}

// Collect submits a part, and calls done, in Trigger, with the parts of all members once every one of them has submitted
// the label, has submitted a higher one, or is done. Labels must ascend. It keeps no reference to part. It may block for
// as long as the server takes no bytes, up to 10 seconds. If it returns an error, done is not called.
//
// An error given to done is the end of the member: there is no part of a set without all of it.
func (m *Member) Collect(label protocol.Label, part []byte, done func(protocol.Set, error)) error {
	return m.act(func() error {
		if err := m.machine.Submit(label, part); err != nil {
			return err
		}
		m.asked = append(m.asked, collect{label, done})
		return nil
	})
}

// Done says that this member submits no more, and calls done, in Trigger, when all members have said so: the startup is
// complete then. If it returns an error, done is not called.
func (m *Member) Done(done func(error)) error {
	return m.act(func() error {
		if err := m.machine.Done(); err != nil {
			return err
		}
		m.done = done
		return nil
	})
}

// CollectWait is Collect, and waits. If ctx ends first the member is closed.
func (m *Member) CollectWait(ctx context.Context, label protocol.Label, part []byte) (set protocol.Set, err error) {
	r := m.waits.Create(m.Close)
	err = m.Collect(label, part, func(s protocol.Set, err error) {
		set = s
		r.Complete(err)
	})
	if err == nil {
		err = r.WaitContext(ctx)
	}
	if err != nil {
		return protocol.Set{}, fmt.Errorf("rendezvous: collect label %v: %w", label, err)
	}
	return set, nil
}

// DoneWait is Done, and waits. If ctx ends first the member is closed.
func (m *Member) DoneWait(ctx context.Context) error {
	r := m.waits.Create(m.Close)
	err := m.Done(r.Complete)
	if err == nil {
		err = r.WaitContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("rendezvous: done: %w", err)
	}
	return nil
}

// Leave tells the server that this process has ended in good order, and closes the member. It is for after Done. If this
// process runs the server, that ends too: the others need it no more, and for them it is no error that it is gone.
func (m *Member) Leave() error {
	err := m.act(m.machine.Fini)
	m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(err, errGone) && m.machine.Started() {
		return nil
	}
	return err
}

// Close ends the member at once. Before Done this fails the startup for everybody; after it, without Leave, the server
// reports this member as failed.
func (m *Member) Close() {
	m.fail(ErrClosed)
	m.stop()
}

// act calls the machine and sends what it has to say.
func (m *Member) act(f func() error) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	err := m.err
	if err == nil {
		err = f()
	}
	out, _ := m.machine.Take()
	m.mu.Unlock()
	if err == nil && len(out) > 0 {
		m.send(out)
	}
	return err
}

// send writes b. If the server has closed the connection, what it said before that matters more than that we cannot
// write: Progress reads it.
func (m *Member) send(b []byte) {
	_ = m.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := m.conn.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		m.fail(err)
	}
}

// Progress reads from the server; see request.Progressor. A timeout of zero waits for a millisecond.
func (m *Member) Progress(timeout time.Duration) error {
	m.reading.Lock()
	defer m.reading.Unlock()
	if ready, err := m.state(); ready || err != nil {
		return err
	}
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(max(timeout, time.Millisecond))
	}
	_ = m.conn.SetReadDeadline(deadline)
	n, err := m.conn.Read(m.buf)
	if n > 0 {
		m.receive(m.buf[:n])
	}
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		if ready, err := m.state(); ready || err != nil {
			return err
		}
		return os.ErrDeadlineExceeded
	case errors.Is(err, io.EOF):
		m.fail(errGone)
	default:
		m.fail(fmt.Errorf("%w: %w", errGone, err))
	}
	_, err = m.state()
	return err
}

// state reports whether callbacks are ready to run; if none are and the member has ended, the error says why.
func (m *Member) state() (ready bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ready) > 0 {
		return true, nil
	}
	return false, m.err
}

func (m *Member) receive(b []byte) {
	m.mu.Lock()
	err := m.machine.Receive(b)
	out, sets := m.machine.Take()
	for _, set := range sets {
		m.deliverLocked(set)
	}
	if m.machine.Started() && m.done != nil {
		done := m.done
		m.done = nil
		m.ready = append(m.ready, func() { done(nil) })
	}
	m.mu.Unlock()
	if err != nil {
		m.fail(err)
		return
	}
	if len(out) > 0 { // only while the two sides authenticate: nothing else is being written
		m.send(out)
	}
}

// deliverLocked queues the callback of a set, if it was asked for. Others belong to labels that this member does not know.
func (m *Member) deliverLocked(set protocol.Set) {
	i := slices.IndexFunc(m.asked, func(c collect) bool { return c.label == set.Label })
	if i < 0 {
		return
	}
	done := m.asked[i].done
	m.asked = slices.Delete(m.asked, i, i+1)
	m.ready = append(m.ready, func() { done(set, nil) })
}

// fail ends the member: what waits ends with err.
func (m *Member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	m.err = err
	for _, c := range m.asked {
		m.ready = append(m.ready, func() { c.done(protocol.Set{}, err) })
	}
	if done := m.done; done != nil {
		m.ready = append(m.ready, func() { done(err) })
	}
	m.asked, m.done = nil, nil
	_ = m.conn.Close()
}

// Trigger runs at most max callbacks, all of them if max <= 0, and returns how many.
func (m *Member) Trigger(max int) (ran int) {
	for max <= 0 || ran < max {
		m.mu.Lock()
		if len(m.ready) == 0 {
			m.mu.Unlock()
			return ran
		}
		f := m.ready[0]
		m.ready = m.ready[1:]
		m.mu.Unlock()
		f()
		ran++
	}
	return ran
}

// Now reads a monotonic clock.
func (m *Member) Now() time.Duration { return time.Since(m.born) }

var _ request.Progressor = (*Member)(nil)
