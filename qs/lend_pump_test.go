package qs_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type mixedIn struct {
	From qs.Source // blocks
	Into qs.Sink   // blocks
	Lent qs.Source
	Fill qs.Sink
}

// A stuckStream is a reader and a writer that block until they are released, and count the calls that
// begin.
type stuckStream struct {
	begun, release chan struct{}
}

func newStuckStream() *stuckStream { return &stuckStream{make(chan struct{}, 10), make(chan struct{})} }

func (s *stuckStream) wait() {
	s.begun <- struct{}{}
	<-s.release
}

func (s *stuckStream) Read(b []byte) (int, error) {
	s.wait()
	return copy(b, "late"), nil
}

func (s *stuckStream) Write(b []byte) (int, error) {
	s.wait()
	return len(b), nil
}

// TestBlockedStreamEndsAtDeadline checks that a call ends at its deadline although a Read, or a
// Write, of the program is blocked, and the memory that it also lends is not used any more. No
// other Read begins, and the bytes of the blocked one are dropped.
func TestBlockedStreamEndsAtDeadline(t *testing.T) {
	t.Parallel()
	mixed := qs.Define[mixedIn, int]("test/mixed")
	stop, ended := make(chan struct{}), make(chan struct{})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		mixed.Handle(n, func(ctx context.Context, in mixedIn) (int, error) {
			defer close(ended)
			b := bytes.Repeat([]byte{1}, 100_000)
			for { // it does not look at its context
				if _, err := in.Fill.WriteAt(b, 0); err != nil {
					<-stop
				}
				_, _ = in.Lent.ReadAt(b[:10], 0)
				if _, err := in.Into.Writer(ctx).Write(b); err != nil {
					return 0, err
				}
				if _, err := in.From.Reader(ctx).Read(b); err != nil && err != io.EOF {
					return 0, err
				}
			}
		})
	})
	deadline := 100 * time.Millisecond
	for i := 0; i < 2; {
		which := []string{"read", "write"}[i]
		ended, stop = make(chan struct{}), make(chan struct{})
		close(stop)
		from, into := newStuckStream(), newStuckStream()
		fill := make([]byte, 100_000)
		in := mixedIn{From: qs.Reader(from), Into: qs.Writer(io.Discard), Lent: qs.Bytes(make([]byte, 100_000)), Fill: qs.Buffer(fill)}
		if which == "write" {
			in.From, in.Into = qs.Source{}, qs.Writer(into)
		}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		_, err := mixed.Call(ctx, to, in) // it returns although the Read is not released
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, qs.ErrTimeout)
		clear(fill)
		select {
		case <-ended:
		case <-time.NewTimer(10 * time.Second).C: // the request arrived too late to run
		}
		require.Equal(t, make([]byte, len(fill)), fill, "memory that was lent to a call that has ended is written")
		close(from.release)
		close(into.release)
		blocked := from.begun
		if which == "write" {
			blocked = into.begun
			require.Zero(t, in.Into.Filled())
		}
		if len(blocked) == 0 { // the machine is busy: nothing has begun yet
			deadline *= 2
			continue
		}
		<-blocked
		require.Empty(t, blocked, "another one has begun")
		i++
	}
}

// TestBlockedConnIsInterrupted checks that a blocked Read of a connection is interrupted: when the
// call has returned no Read is running, and nothing is lost.
func TestBlockedConnIsInterrupted(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := put.Call(ctx, to, putIn{"copy", qs.Reader(here)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = get.Call(ctx, to, getIn{"copy", 1000, qs.Writer(here)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go func() { _, _ = there.Write([]byte("mine")) }()
	b := make([]byte, 4)
	_, err = io.ReadFull(here, b)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
	go func() { _, _ = here.Write([]byte("yours")) }()
	b = make([]byte, 5)
	_, err = io.ReadFull(there, b)
	require.NoError(t, err)
	require.Equal(t, "yours", string(b))
}

// TestBlockedReadIsNotRepeated checks that a call whose Read was left behind is not repeated: two
// would read at once.
func TestBlockedReadIsNotRepeated(t *testing.T) {
	t.Parallel()
	from := newStuckStream()
	s := server(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			go func() { _, _ = in.Body.Reader(ctx).Read(make([]byte, 1)) }()
			for len(from.begun) == 0 {
				runtime.Gosched()
			}
			return nil, qs.Refuse(qs.Errorf(qs.ErrUnavailable, "not now"))
		})
	})
	var again error
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1}), func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		again = next(ctx)
		return err
	}}})
	_, err := put.Call(testContext(t), peer(t, c, s.Addr().String()), putIn{"copy", qs.Reader(from)})
	require.ErrorIs(t, err, qs.ErrUnavailable)
	require.ErrorIs(t, again, qs.ErrInvalid)
	require.ErrorContains(t, again, "still running")
	close(from.release)
	<-from.begun
	require.Empty(t, from.begun)
}

// TestBlockedStreamInSimulator checks the same in the simulator, where a Read that blocks ends
// later than its call.
func TestBlockedStreamInSimulator(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{})
		serveBulk(t, n)
		_ = n.Serve(context.Background())
	})
	over := false
	w.Go("client", func() {
		n := simulated(t, w, "sim://", qs.Config{})
		w.Sleep(time.Millisecond)
		to, err := n.Peer(context.Background(), "sim://server")
		require.NoError(t, err)
		ctx, cancel := n.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		begun := w.Now()
		_, err = put.Call(ctx, to, putIn{"copy", qs.Reader(readerFunc(func(b []byte) (int, error) {
			w.Sleep(4 * time.Second)
			over = true
			return len(b), nil
		}))})
		require.ErrorIs(t, err, qs.ErrTimeout)
		require.LessOrEqual(t, w.Now()-begun, 200*time.Millisecond)
		require.False(t, over)
		w.Sleep(5 * time.Second)
		require.True(t, over)
		w.Node("server").Crash()
		_ = n.Close()
	})
	require.NoError(t, w.Run(time.Minute))
}

// A deadlineReader is a reader whose Read blocks until a deadline interrupts it, and which records that.
type deadlineReader struct {
	w         *sim.World
	broken    bool
	deadlines []time.Time
}

func (d *deadlineReader) Read([]byte) (int, error) {
	for !d.broken {
		d.w.Sleep(time.Millisecond)
	}
	return 0, os.ErrDeadlineExceeded
}

func (d *deadlineReader) SetReadDeadline(at time.Time) error {
	d.broken = !at.IsZero()
	d.deadlines = append(d.deadlines, at)
	return nil
}

// TestBlockedReadIsInterruptedAtOnce checks that a blocked Read that can be interrupted delays its
// call no longer than that takes, and its reader serves the next call. One that is not in a Read is
// not interrupted.
func TestBlockedReadIsInterruptedAtOnce(t *testing.T) {
	t.Parallel()
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	w.Go("server", func() {
		n := simulated(t, w, "sim://server", qs.Config{ShutdownTimeout: -1})
		serveBulk(t, n)
		_ = n.Serve(serving)
	})
	w.Go("client", func() {
		defer stop()
		n := simulated(t, w, "sim://", qs.Config{})
		defer n.Close()
		w.Sleep(time.Millisecond)
		to, err := n.Peer(context.Background(), "sim://server")
		require.NoError(t, err)
		d := &deadlineReader{w: w}
		in := putIn{"copy", qs.Reader(d)}
		for range 2 {
			ctx, cancel := n.WithTimeout(context.Background(), 100*time.Millisecond)
			begun := w.Now()
			_, err = put.Call(ctx, to, in)
			cancel()
			require.ErrorIs(t, err, qs.ErrTimeout)
			require.NotErrorIs(t, err, qs.ErrInvalid)
			require.LessOrEqual(t, w.Now()-begun, 110*time.Millisecond)
		}
		require.Len(t, d.deadlines, 4, "interrupted, and taken back, twice")
		require.True(t, d.deadlines[3].IsZero())
		quick := &unblockedReader{deadlineReader: d}
		_, err = put.Call(context.Background(), to, putIn{"some", qs.Reader(quick)})
		require.NoError(t, err)
		require.Len(t, d.deadlines, 4, "no Read was under way")
	})
	require.NoError(t, w.Run(time.Minute))
}

// An unblockedReader is a dialogue whose Read does not block.
type unblockedReader struct{ *deadlineReader }

func (*unblockedReader) Read(b []byte) (int, error) { return len(b), nil }

// A halfConn reads and writes by itself, and takes its deadlines from a net.Conn that is nil: they panic.
type halfConn struct {
	net.Conn
	s *stuckStream
}

func (c halfConn) Read(b []byte) (int, error)  { return c.s.Read(b) }
func (c halfConn) Write(b []byte) (int, error) { return c.s.Write(b) }

// TestDeadlineOfReaderPanics checks that a SetReadDeadline or SetWriteDeadline that panics counts
// as none: the call ends at its deadline, with its error, and everything is given back.
func TestDeadlineOfReaderPanics(t *testing.T) {
	t.Parallel()
	mixed := qs.Define[mixedIn, int]("test/halfconn")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		mixed.Handle(n, func(ctx context.Context, in mixedIn) (int, error) {
			b := make([]byte, 1000)
			if in.From.Len() < 0 {
				return in.From.Reader(ctx).Read(b)
			}
			_, _ = in.Into.Writer(ctx).Write(b)
			return 0, nil
		})
	})
	c := open(t, "tcp://", quietConfig())
	to := peer(t, c, s.Addr().String())
	for _, which := range []string{"read", "write"} {
		end := newStuckStream()
		lent := make([]byte, 1000)
		in := mixedIn{From: qs.Reader(halfConn{s: end}), Lent: qs.Bytes(lent), Fill: qs.Buffer(lent)}
		if which == "write" {
			in.From, in.Into = qs.Source{}, qs.Writer(halfConn{s: end})
		}
		ctx, cancel := context.WithCancel(testContext(t))
		go func() { <-end.begun; cancel() }()
		_, err := mixed.Call(ctx, to, in)
		require.ErrorIs(t, err, qs.ErrCanceled, which)
		require.Zero(t, c.HG().Stats().NA.Regions, "%s: memory is still lent", which)
		close(end.release)
	}
}
