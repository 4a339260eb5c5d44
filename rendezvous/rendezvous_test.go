package rendezvous_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

const patience = 30 * time.Second

var secret = protocol.Auth{Secret: []byte("between us")}

// A testServer is a server that a test runs.
type testServer struct {
	addr   string
	ended  chan struct{}
	err    error
	mu     sync.Mutex
	events []protocol.Event
}

func startServer(t *testing.T, cfg rendezvous.ServerConfig) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &testServer{addr: l.Addr().String(), ended: make(chan struct{})}
	cfg.OnEvent = func(e protocol.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, e)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(h.ended)
		h.err = rendezvous.Serve(ctx, l, cfg)
	}()
	t.Cleanup(func() {
		stop()
		<-h.ended
	})
	return h
}

func (h *testServer) count(kind protocol.EventKind) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// end waits until the server has ended.
func (h *testServer) end(t *testing.T) error {
	t.Helper()
	select {
	case <-h.ended:
		return h.err
	case <-time.After(patience):
		t.Fatal("the server does not end")
		return nil
	}
}

// eachRank runs f for every rank at once and returns the errors.
func eachRank(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() { errs[rank] = f(rank) })
	}
	all.Wait()
	return errs
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	t.Cleanup(stop)
	return ctx
}

// runMember is a startup of one member from the beginning to the end.
func runMember(ctx context.Context, cfg rendezvous.Config) error {
	m, err := rendezvous.Join(ctx, cfg)
	if err != nil {
		return err
	}
	defer m.Close()
	for _, label := range []protocol.Label{0x10, 0x20} {
		set, err := m.CollectWait(ctx, label, []byte{byte(m.Rank())})
		if err != nil {
			return err
		}
		for rank, b := range set.Data {
			if b != byte(rank) || len(set.Data) != m.Size() {
				return fmt.Errorf("rank %d of %d: got %v", m.Rank(), m.Size(), set.Data)
			}
		}
	}
	if err := m.DoneWait(ctx); err != nil {
		return err
	}
	return m.Leave()
}

func TestStartup(t *testing.T) {
	theKey := uint64(42)
	for name, c := range map[string]struct {
		form     protocol.Form
		auth     protocol.Auth
		size     int
		tls, has *tls.Config
	}{
		"native, secret": {auth: secret, size: long.Or(64, 1024)},
		"native, TLS":    {auth: protocol.Auth{None: true}, size: 8, tls: serverTLS(t), has: clientTLS(t)},
		"strict, none":   {form: protocol.Strict, auth: protocol.Auth{None: true}, size: 32},
		"strict, key":    {form: protocol.Strict, auth: protocol.Auth{Key: &theKey}, size: 3},
		"strict, bare":   {form: protocol.Strict, auth: protocol.Auth{Key: &theKey, Bare: true}, size: 3},
	} {
		t.Run(name, func(t *testing.T) {
			h := startServer(t, rendezvous.ServerConfig{Form: c.form, Size: c.size, Auth: c.auth, TLS: c.tls})
			for rank, err := range eachRank(c.size, func(rank int) error {
				return runMember(testContext(t), rendezvous.Config{Form: c.form, Addr: h.addr, Rank: rank, Auth: c.auth, TLS: c.has})
			}) {
				require.NoError(t, err, "rank %d", rank)
			}
			require.NoError(t, h.end(t))
			require.Equal(t, c.size, h.count(protocol.Left))
		})
	}
}

// TestCallbacks checks that the callbacks of a member run in Trigger, on the goroutine that calls
// it, in the order of the labels.
func TestCallbacks(t *testing.T) {
	h := startServer(t, rendezvous.ServerConfig{Size: 1, Auth: secret})
	m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Auth: secret})
	require.NoError(t, err)
	defer m.Close()
	var order []protocol.Label
	started := false
	for _, label := range []protocol.Label{1, 2, 3} {
		require.NoError(t, m.Collect(label, nil, func(s protocol.Set, err error) {
			require.NoError(t, err)
			order = append(order, s.Label)
		}))
	}
	require.Error(t, m.Collect(3, nil, nil))
	require.NoError(t, m.Done(func(err error) {
		require.NoError(t, err)
		started = true
	}))
	for !started {
		require.NoError(t, m.Progress(patience))
		m.Trigger(1)
	}
	require.Equal(t, []protocol.Label{1, 2, 3}, order)
	require.ErrorIs(t, m.Progress(0), os.ErrDeadlineExceeded)
	require.NoError(t, m.Leave())
	require.ErrorIs(t, m.Progress(0), rendezvous.ErrClosed)
	require.NoError(t, h.end(t))
}

// TestMissingMember (L31, L-T31) checks that the error of the server and of waiting members names
// the missing members.
func TestMissingMember(t *testing.T) {
	t.Parallel()
	h := startServer(t, rendezvous.ServerConfig{Size: 3, Auth: secret, Startup: time.Second})
	for rank, err := range eachRank(2, func(rank int) error {
		return runMember(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Auth: secret})
	}) {
		var abort *protocol.AbortError
		require.ErrorAs(t, err, &abort, "rank %d", rank)
		require.Equal(t, 2, abort.Rank)
		require.ErrorContains(t, err, "missing rank 2")
	}
	var missing *protocol.MissingError
	require.ErrorAs(t, h.end(t), &missing)
	require.Equal(t, []int{2}, missing.Ranks)
	require.ErrorIs(t, h.err, os.ErrDeadlineExceeded)
}

// TestCollectTimesOut (L-T41) checks that a collect that takes too long is an error, without a part
// of the set, and the other members get the reason.
func TestCollectTimesOut(t *testing.T) {
	t.Parallel()
	h := startServer(t, rendezvous.ServerConfig{Size: 2, Auth: secret})
	why := errors.New("no more time")
	errs := eachRank(2, func(rank int) error {
		m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Auth: secret})
		if err != nil {
			return err
		}
		defer m.Close()
		if rank == 1 { // never submits
			return m.Progress(patience)
		}
		ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
		defer stop()
		set, err := m.CollectWait(ctx, 7, []byte("mine"))
		require.Empty(t, set)
		return err
	})
	require.ErrorIs(t, errs[0], why)
	require.ErrorIs(t, errs[0], rendezvous.ErrClosed)
	require.EqualError(t, errs[1], "startup aborted: rank 0: connection closed: unexpected EOF")
	require.ErrorContains(t, h.end(t), "rank 0: ")
}

// TestMemberDies (L25, L-T26) checks that a member that dies ends the startup for all, at once.
func TestMemberDies(t *testing.T) {
	h := startServer(t, rendezvous.ServerConfig{Form: protocol.Strict, Size: 3, Auth: protocol.Auth{None: true}})
	errs := eachRank(3, func(rank int) error {
		m, err := rendezvous.Join(testContext(t), rendezvous.Config{
			Form: protocol.Strict, Addr: h.addr, Rank: rank, Auth: protocol.Auth{None: true},
		})
		if err != nil {
			return err
		}
		defer m.Close()
		if rank == 2 {
			return nil
		}
		_, err = m.CollectWait(testContext(t), 7, nil)
		return err
	})
	require.ErrorContains(t, errs[0], "connection closed by server")
	require.ErrorContains(t, errs[1], "connection closed by server")
	require.ErrorContains(t, h.end(t), "rank 2: connection closed")
}

// TestServerStartsLate checks that a server that starts late is found, and one that does not start
// is an error that states it.
func TestServerStartsLate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	_, err = rendezvous.Join(testContext(t), rendezvous.Config{Addr: addr, Auth: secret, Timeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "join "+addr+" as rank 0: members missing after 50ms")

	joined := make(chan error, 1)
	go func() { joined <- runMember(testContext(t), rendezvous.Config{Addr: addr, Auth: secret}) }()
	l, err = net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, rendezvous.Serve(testContext(t), l, rendezvous.ServerConfig{Size: 1, Auth: secret}))
	require.NoError(t, <-joined)
}

// TestHostileClients (L4, L5, L22, L-T18, L-T21, L-T25) checks that unknown connections of every
// kind do not keep the members from starting.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	const size = 4
	key := uint64(1)
	auth := protocol.Auth{Key: &key}
	h := startServer(t, rendezvous.ServerConfig{Form: protocol.Strict, Size: size, Auth: auth, Handshake: 2 * time.Second})
	var strangers sync.WaitGroup
	defer strangers.Wait()
	for _, words := range []string{
		"COLL\x00\x00\x00\x04\x00\x00\x00\x07",                                 // wrong order
		"AUTH\x7f\xff\xff\xff", "AUTH\xff\xff\xff\xff", "IMPI\x7f\xff\xff\xff", // huge lengths
		"AU", "", "AUTH\x00\x00\x00\x08\x00\x00", "AUTH\x00\x00\x00\x04\x00\x00\x00\x02", // half a command, then nothing
		"AUTH\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x02",                     // wrong key
		"AUTH\x00\x00\x00\x04\x80\x00\x00\x00",                                     // mask bit 31
		"AUTH\x00\x00\x00\x04\x00\x00\x00\x01", "\x16\x03\x01\x02\x00\x01\x00\x01", // no common mechanism; TLS
	} {
		nc, err := net.Dial("tcp", h.addr)
		require.NoError(t, err)
		defer func() { _ = nc.Close() }()
		_, err = io.WriteString(nc, words)
		require.NoError(t, err)
	}
	slow, err := net.Dial("tcp", h.addr)
	require.NoError(t, err)
	strangers.Go(func() { // a byte now and then, of commands without an end
		for range time.Tick(20 * time.Millisecond) {
			if _, err := slow.Write([]byte("A")); err != nil {
				return
			}
		}
	})
	defer func() { _ = slow.Close() }()
	for rank, err := range eachRank(size, func(rank int) error {
		return runMember(testContext(t), rendezvous.Config{Form: protocol.Strict, Addr: h.addr, Rank: rank, Auth: auth})
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
	require.NoError(t, h.end(t))
}

// TestLateConnections (L5) checks that a connection that has not joined in time is closed, and so
// is one that sends a byte now and then.
func TestLateConnections(t *testing.T) {
	t.Parallel()
	h := startServer(t, rendezvous.ServerConfig{Size: 1, Auth: secret, Handshake: 100 * time.Millisecond})
	nc, err := net.Dial("tcp", h.addr)
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	_, err = io.WriteString(nc, "A")
	require.NoError(t, err)
	_ = nc.SetReadDeadline(time.Now().Add(patience))
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.ErrorIs(t, h.events[0].Err, protocol.ErrLate)
}

// TestMemberThatDoesNotRead (L32, L-T25) checks that a member that does not read delays no other
// one until its write timeout; then the startup fails, and the error names it.
func TestMemberThatDoesNotRead(t *testing.T) {
	t.Parallel()
	limits := protocol.Limits{Part: 24 << 20}
	h := startServer(t, rendezvous.ServerConfig{Size: 2, Auth: protocol.Auth{None: true}, Limits: limits, Write: time.Second})
	nc, err := net.Dial("tcp", h.addr)
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	_, err = io.WriteString(nc, "JOIN\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02")
	require.NoError(t, err)
	m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Size: 2, Auth: protocol.Auth{None: true}, Limits: limits})
	require.NoError(t, err)
	defer m.Close()
	_, err = io.WriteString(nc, "COLL\x00\x00\x00\x04\x00\x01\x00\x00") // skips earlier lines
	require.NoError(t, err)
	set, err := m.CollectWait(testContext(t), 7, make([]byte, limits.Part)) // more than sockets hold
	require.NoError(t, err)
	require.Len(t, set.Data, limits.Part)
	require.ErrorContains(t, m.Progress(patience), "rank 1: write timeout")
	require.ErrorContains(t, h.end(t), "rank 1: ")
}
