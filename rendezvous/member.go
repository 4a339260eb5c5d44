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

// A Config configures Join. Addr and Auth must be set.
type Config struct {
	Form   protocol.Form
	Addr   string // host:port of the server
	Rank   int
	Size   int // expected number of members; zero to accept the server's number
	Auth   protocol.Auth
	Limits protocol.Limits
	// TLS is the configuration of the connection to the server. If nil, TLS is not used.
	TLS *tls.Config
	// Timeout is how long Join waits for all members to join. Zero means one minute.
	Timeout time.Duration
}

// ErrClosed is returned by operations that are in flight when their member is closed.
var ErrClosed = errors.New("rendezvous: closed")

// errServerClosed is returned when the server has closed the connection without sending ABRT, the command that
// reports a failed startup.
var errServerClosed = errors.New("rendezvous: connection closed by server")

// sendTimeout is how long a write to the server may block.
const sendTimeout = 10 * time.Second

// A Member represents this process among the processes that are started together. It is safe for concurrent use.
//
// A Member implements request.Progressor: Progress moves bytes and Trigger runs callbacks. Methods that take a
// context do both.
type Member struct {
	cfg        Config
	conn       net.Conn
	startedAt  time.Time // time at which Now is zero
	requests   *request.Class
	stopServer func() // stops the server that runs in this process, if any

	readMu  sync.Mutex // held in Progress
	buf     []byte     // guarded by readMu
	writeMu sync.Mutex // held while an output of the machine is sent, to keep outputs in order; acquired before mu

	mu          sync.Mutex // guards the fields below
	machine     *protocol.Client
	pendingSets []pendingSet // ascending by label
	onStarted   func(error)  // callback of Done; nil if none is pending
	callbacks   []func()     // callbacks to be run by Trigger
	err         error        // reason why the member has ended; nil if it has not
}

// A pendingSet is a submitted label whose set has not arrived.
type pendingSet struct {
	label protocol.Label
	done  func(protocol.Set, error)
}

// Join connects to the server and blocks until all members have joined, ctx is done, or Config.Timeout has expired.
// It retries until the server accepts the connection.
func Join(ctx context.Context, cfg Config) (*Member, error) {
	machine, err := protocol.NewClient(protocol.ClientConfig{
		Form: cfg.Form, Rank: cfg.Rank, Size: cfg.Size, Auth: cfg.Auth, Limits: cfg.Limits, Nonce: fillRandom,
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
	m := &Member{cfg: cfg, conn: nc, startedAt: time.Now(), buf: make([]byte, 32<<10), machine: machine, stopServer: func() {}}
	m.requests = request.NewClass(m)
	stopCancel := context.AfterFunc(ctx, func() { m.fail(context.Cause(ctx)) })
	defer stopCancel()
	err = m.runMachine(func() error { return nil })
	for err == nil && m.Size() == 0 {
		err = m.Progress(-1)
	}
	if err != nil {
		m.fail(err)
		return nil, fmt.Errorf("rendezvous: join %s as rank %d: %w", cfg.Addr, cfg.Rank, err)
	}
	return m, nil
}

// A joinTimeout is the cause with which Join cancels its context when Config.Timeout has expired.
type joinTimeout struct{ after time.Duration }

func (e *joinTimeout) Error() string {
	return fmt.Sprintf("members missing after %v", e.after)
}

func (e *joinTimeout) Is(err error) bool {
	return err == os.ErrDeadlineExceeded || err == context.DeadlineExceeded
}

// dial connects to the server. It retries with backoff until the server accepts the connection or ctx is done.
func dial(ctx context.Context, cfg Config) (net.Conn, error) {
	var d net.Dialer
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		nc, err := d.DialContext(ctx, "tcp", cfg.Addr)
		if err == nil && cfg.TLS == nil {
			return nc, nil
		}
		if err == nil {
			return startTLS(ctx, nc, cfg)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// startTLS performs the TLS handshake. If it fails, startTLS closes nc.
func startTLS(ctx context.Context, nc net.Conn, cfg Config) (net.Conn, error) {
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

// Rank returns the rank of the member, from 0 to Size-1.
func (m *Member) Rank() int { return m.cfg.Rank }

// Size returns the number of members.
func (m *Member) Size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Size()
}

// Collect submits a part under a label, which must be greater than all labels submitted before. Once each member has
// submitted the label or a higher one, or is done, Trigger calls done with the parts of all members.
//
//   - Collect does not retain part.
//   - Collect blocks while the server does not accept bytes, for at most 10 seconds.
//   - If Collect returns an error, done is not called. If done is called with an error, the member has ended.
func (m *Member) Collect(label protocol.Label, part []byte, done func(protocol.Set, error)) error {
	return m.runMachine(func() error {
		if err := m.machine.Submit(label, part); err != nil {
			return err
		}
		m.pendingSets = append(m.pendingSets, pendingSet{label, done})
		return nil
	})
}

// Done announces that this member will not submit further parts. When all members have called Done, the startup is
// complete and Trigger calls done. If Done returns an error, done is not called.
func (m *Member) Done(done func(error)) error {
	return m.runMachine(func() error {
		if err := m.machine.Done(); err != nil {
			return err
		}
		m.onStarted = done
		return nil
	})
}

// CollectWait is like Collect but blocks until the set has arrived. If ctx is done first, it closes the member.
func (m *Member) CollectWait(ctx context.Context, label protocol.Label, part []byte) (set protocol.Set, err error) {
	r := m.requests.Create(m.Close)
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

// DoneWait is like Done but blocks until the startup is complete. If ctx is done first, it closes the member.
func (m *Member) DoneWait(ctx context.Context) error {
	r := m.requests.Create(m.Close)
	err := m.Done(r.Complete)
	if err == nil {
		err = r.WaitContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("rendezvous: done: %w", err)
	}
	return nil
}

// Leave notifies the server that this process is exiting normally, and closes the member. It must be called after the
// startup is complete. If this process runs the server, Leave also stops the server. The other members no longer need
// the server then, and do not report an error when it stops.
func (m *Member) Leave() error {
	err := m.runMachine(m.machine.Fini)
	m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(err, errServerClosed) && m.machine.Started() {
		return nil
	}
	return err
}

// Close closes the member immediately. If the startup is not yet complete, the startup fails for all members. If it
// is complete and Leave has not been called, the server reports this member as failed.
func (m *Member) Close() {
	m.fail(ErrClosed)
	m.stopServer()
}

// runMachine calls f with m.mu held and then sends the state machine's output. It returns the error of f, or the
// error with which the member has already ended, in which case f is not called.
func (m *Member) runMachine(f func() error) error {
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
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

// send writes b. It ignores errors other than timeouts: if the server has closed the connection, Progress reads the
// reason.
func (m *Member) send(b []byte) {
	_ = m.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := m.conn.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		m.fail(err)
	}
}

// Progress reads from the server, as specified by request.Progressor. With a timeout of 0 it waits for one
// millisecond.
func (m *Member) Progress(timeout time.Duration) error {
	m.readMu.Lock()
	defer m.readMu.Unlock()
	if ready, err := m.checkState(); ready || err != nil {
		return err
	}
	var deadline time.Time
	if timeout >= 0 {
		deadline = time.Now().Add(max(timeout, time.Millisecond))
	}
	_ = m.conn.SetReadDeadline(deadline)
	n, err := m.conn.Read(m.buf)
	if n > 0 {
		m.handleInput(m.buf[:n])
	}
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		if ready, err := m.checkState(); ready || err != nil {
			return err
		}
		return os.ErrDeadlineExceeded
	case errors.Is(err, io.EOF):
		m.fail(errServerClosed)
	default:
		m.fail(fmt.Errorf("%w: %w", errServerClosed, err))
	}
	_, err = m.checkState()
	return err
}

// checkState reports whether callbacks are ready to run. If none are, it returns the error with which the member has
// ended, if any.
func (m *Member) checkState() (ready bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.callbacks) > 0 {
		return true, nil
	}
	return false, m.err
}

// handleInput passes bytes received from the server to the state machine, and queues the resulting callbacks.
func (m *Member) handleInput(b []byte) {
	m.mu.Lock()
	err := m.machine.Receive(b)
	out, sets := m.machine.Take()
	for _, set := range sets {
		m.deliverLocked(set)
	}
	if m.machine.Started() && m.onStarted != nil {
		done := m.onStarted
		m.onStarted = nil
		m.callbacks = append(m.callbacks, func() { done(nil) })
	}
	m.mu.Unlock()
	if err != nil {
		m.fail(err)
		return
	}
	if len(out) > 0 { // Only during authentication, when nothing else is written, so writeMu is not needed.
		m.send(out)
	}
}

// deliverLocked queues the callback for set if this member has submitted its label. m.mu must be held.
func (m *Member) deliverLocked(set protocol.Set) {
	i := slices.IndexFunc(m.pendingSets, func(c pendingSet) bool { return c.label == set.Label })
	if i < 0 {
		return
	}
	done := m.pendingSets[i].done
	m.pendingSets = slices.Delete(m.pendingSets, i, i+1)
	m.callbacks = append(m.callbacks, func() { done(set, nil) })
}

// fail ends the member with err and queues all pending callbacks with it. Only the first call has an effect.
func (m *Member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	m.err = err
	for _, c := range m.pendingSets {
		m.callbacks = append(m.callbacks, func() { c.done(protocol.Set{}, err) })
	}
	if done := m.onStarted; done != nil {
		m.callbacks = append(m.callbacks, func() { done(err) })
	}
	m.pendingSets, m.onStarted = nil, nil
	_ = m.conn.Close()
}

// Trigger runs up to max callbacks, or all of them if max <= 0, and returns the number it ran.
func (m *Member) Trigger(max int) (ran int) {
	for max <= 0 || ran < max {
		m.mu.Lock()
		if len(m.callbacks) == 0 {
			m.mu.Unlock()
			return ran
		}
		f := m.callbacks[0]
		m.callbacks = m.callbacks[1:]
		m.mu.Unlock()
		f()
		ran++
	}
	return ran
}

// Now returns the current time of a monotonic clock.
func (m *Member) Now() time.Duration { return time.Since(m.startedAt) }

var _ request.Progressor = (*Member)(nil)
