package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestReaderServesOneAttempt checks that two attempts at once do not share a Reader: the second is refused, and
// the first gets all of it.
func TestReaderServesOneAttempt(t *testing.T) {
	t.Parallel()
	begun, second := make(chan struct{}), make(chan struct{})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			close(begun)
			<-second
			b, err := io.ReadAll(in.Body.Reader(ctx))
			return hashOf(b), err
		})
	})
	var refused error
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
		first := make(chan error, 1)
		go func() { first <- next(ctx) }()
		<-begun
		refused = next(ctx)
		close(second)
		return <-first
	}}})
	src := qs.Reader(bytes.NewReader(randomBytes(1, 100_000)))
	got, err := put.Call(testContext(t), peer(t, n, to.String()), putIn{"x", src})
	require.NoError(t, err)
	require.Equal(t, hashOf(randomBytes(1, 100_000)), got)
	require.ErrorIs(t, refused, qs.ErrInvalid)
	require.ErrorContains(t, refused, "in use by another attempt or call")
	require.Equal(t, qs.NotRun, qs.FateOf(refused))
}

// TestSinkServesOneAttempt checks that two attempts at once do not share room, whose bytes would be
// of both: the second is refused, and so is another call; when the first has ended the Sink serves
// the next. An interceptor gets that a call lends.
func TestSinkServesOneAttempt(t *testing.T) {
	fill := qs.Define[qs.Sink, int64]("test/fillonce")
	for _, kind := range []string{"Buffer", "FileBuffer", "FileBuffer of a file that is not mapped", "Writer"} {
		begun, second := make(chan struct{}), make(chan struct{})
		_, to := pair(t, qs.Config{}, func(n *qs.Node) {
			fill.Handle(n, func(ctx context.Context, room qs.Sink) (int64, error) {
				begun <- struct{}{}
				<-second
				n, err := room.Writer(ctx).Write(randomBytes(1, 1000))
				return int64(n), err
			})
		})
		var refused error
		var lends bool
		n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			lends = c.Lends()
			first := make(chan error, 1)
			go func() { first <- next(ctx) }()
			<-begun
			refused = next(ctx)
			close(second)
			return <-first
		}}})
		plain := open(t, "tcp://", qs.Config{})
		file, err := os.Create(filepath.Join(t.TempDir(), "room"))
		require.NoError(t, err)
		var into bytes.Buffer
		sink := map[string]qs.Sink{"Buffer": qs.Buffer(make([]byte, 1000)), "Writer": qs.Writer(&into)}[kind]
		mapping := func(f func()) { f() }
		if strings.HasPrefix(kind, "FileBuffer") {
			sink = qs.FileBuffer(file, 1000)
		}
		if strings.HasSuffix(kind, "not mapped") {
			mapping = qs.WithoutMapping
		}
		mapping(func() {
			_, err = fill.Call(testContext(t), peer(t, n, to.String()), sink)
			require.NoError(t, err, kind)
			require.True(t, lends)
			require.ErrorIs(t, refused, qs.ErrInvalid, kind)
			require.ErrorContains(t, refused, "in use by another attempt or call", kind)
			require.Equal(t, qs.NotRun, qs.FateOf(refused), kind)
			require.EqualValues(t, 1000, sink.Filled(), kind)
			go func() { <-begun }()
			_, err = fill.Call(testContext(t), peer(t, plain, to.String()), sink)
			require.NoError(t, err, "%s: the next call", kind)
		})
		require.NoError(t, file.Close())
	}
}

// TestReaderIsLentOnce checks that a Reader of which a handler has got bytes, and one whose Read was
// left running, serves no other call, which would lack them; one of which no handler has got bytes
// does.
func TestReaderIsLentOnce(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	want := randomBytes(1, 100_000)
	refused := func(src qs.Source) {
		t.Helper()
		_, err := put.Call(testContext(t), to, putIn{"copy", src})
		require.ErrorIs(t, err, qs.ErrInvalid)
		require.ErrorContains(t, err, "use a new one")
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}

	src := qs.Reader(bytes.NewReader(want))
	for range 2 { // whose handler takes nothing
		_, err := put.Call(testContext(t), to, putIn{"", src})
		require.ErrorIs(t, err, qs.ErrBadInput)
	}
	got, err := put.Call(testContext(t), to, putIn{"copy", src})
	require.NoError(t, err)
	require.Equal(t, hashOf(want), got)
	refused(src)

	src = qs.Reader(bytes.NewReader(want))
	got, err = put.Call(testContext(t), to, putIn{"some", src})
	require.NoError(t, err)
	require.Equal(t, want[:10], got)
	refused(src)

	stuck := newStuckStream()
	_, to = pair(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			_, err := in.Body.Reader(ctx).Read(make([]byte, 1))
			<-stuck.begun
			return nil, err
		})
	})
	src = qs.Reader(io.MultiReader(bytes.NewReader(want), stuck))
	_, err = put.Call(testContext(t), to, putIn{"", src})
	require.NoError(t, err)
	close(stuck.release)
	require.Eventually(t, func() bool {
		_, err = put.Call(testContext(t), to, putIn{"copy", src})
		require.ErrorIs(t, err, qs.ErrInvalid)
		return !strings.Contains(err.Error(), "in use by another attempt or call")
	}, 30*time.Second, time.Millisecond)
	refused(src)
}

// TestWaitEndsFirst checks that the error of a Wait that its ctx has ended has the fate that the
// request may have run, also in a join.
func TestWaitEndsFirst(t *testing.T) {
	t.Parallel()
	m := qs.Define[int, int]("test/wait")
	hold := make(chan struct{})
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(context.Context, int) (int, error) { <-hold; return 1, nil })
	})
	f := m.Go(testContext(t), to, 1)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := f.Wait(ctx)
	require.ErrorIs(t, err, why)
	require.Equal(t, qs.MaybeRan, qs.FateOf(errors.Join(err, &hg.Error{Op: "forward", Fate: qs.NotRun, Err: qs.ErrUnreachable})))
	close(hold)
	_, err = f.Wait(testContext(t))
	require.NoError(t, err)
}

// TestGoexitOnServe checks that an Inline handler and an authorizer that end the goroutine leave
// the node as it was.
func TestGoexitOnServe(t *testing.T) {
	t.Parallel()
	m := qs.Define[int, int]("test/goexit", qs.Inline())
	ctx, cancel := context.WithCancel(t.Context())
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	m.Handle(n, func(_ context.Context, in int) (int, error) {
		if in == 0 {
			runtime.Goexit()
		}
		return in, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	to := peer(t, open(t, "tcp://", qs.Config{}), n.Addr().String())
	for range 3 {
		_, err = m.Call(testContext(t), to, 0)
		require.ErrorIs(t, err, hg.ErrRemote)
		got, err := m.Call(testContext(t), to, 7)
		require.NoError(t, err)
		require.Equal(t, 7, got)
	}
	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Serve has not returned")
	}
}

// TestErrorsOfReaders checks that the error of the program's reader is no code of the call.
func TestErrorsOfReaders(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	for _, why := range []error{qs.ErrTimeout, qs.ErrPeerLost, context.Canceled, context.DeadlineExceeded, io.ErrUnexpectedEOF} {
		_, err := put.Call(testContext(t), to, putIn{"copy", qs.Reader(readerFunc(func([]byte) (int, error) { return 0, why }))})
		require.ErrorIs(t, err, hg.ErrRemote)
		require.Equal(t, hg.ErrRemote, qs.CodeOf(err))
		require.Equal(t, qs.Ran, qs.FateOf(err))
		require.ErrorContains(t, err, why.Error())
		require.Equal(t, why == io.ErrUnexpectedEOF, errors.Is(err, why), "%v matches %v", err, why)
		for _, code := range []error{qs.ErrTimeout, qs.ErrCanceled, qs.ErrPeerLost, qs.ErrRefused, context.Canceled, context.DeadlineExceeded} {
			require.NotErrorIs(t, err, code)
		}
	}
}

// TestErrorsBeforeTheRequest checks that a value that cannot be lent or encoded is ErrInvalid.
func TestErrorsBeforeTheRequest(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = put.Call(testContext(t), to, putIn{"copy", qs.File(f)})
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.ErrorIs(t, err, os.ErrClosed)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	for _, size := range []int64{-1, 1 << 62} {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		require.NoError(t, err)
		_, err = get.Call(testContext(t), to, getIn{"copy", 10, qs.FileBuffer(f, size)})
		require.ErrorIs(t, err, qs.ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprint(size))
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		require.NoError(t, f.Close())
	}
	_, err = qs.Define[any, int]("test/chan").Call(testContext(t), to, make(chan int))
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
}

// TestDrainLetsHandlersCall checks that a handler that has begun may call another server, also one
// that was not called before, while its node drains.
func TestDrainLetsHandlersCall(t *testing.T) {
	t.Parallel()
	front, back := qs.Define[string, int]("test/front"), qs.Define[int, int]("test/back")
	behind := server(t, qs.Config{}, func(n *qs.Node) {
		back.Handle(n, func(_ context.Context, in int) (int, error) { return in + 1, nil })
	})
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	begun, drains := make(chan struct{}), make(chan struct{})
	front.Handle(n, func(ctx context.Context, addr string) (int, error) {
		close(begun)
		<-drains
		to, err := n.Peer(ctx, addr)
		if err != nil {
			return 0, err
		}
		return back.Call(ctx, to, 1)
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Serve(ctx) }()
	f := front.Go(testContext(t), peer(t, open(t, "tcp://", qs.Config{}), n.Addr().String()), behind.Addr().String())
	<-begun
	stop()
	for !n.HG().NA().Draining() {
		runtime.Gosched()
	}
	close(drains)
	got, err := f.Wait(testContext(t))
	require.NoError(t, err)
	require.Equal(t, 2, got)
	require.NoError(t, <-ended)
}

// TestNothingIsReadAhead checks that nothing of a Reader is read before a handler reads it: an
// attempt that does not run neither keeps Retry from the second address nor loses a byte, and a
// handler that refuses before it reads does not either.
func TestNothingIsReadAhead(t *testing.T) {
	t.Parallel()
	refused := 0
	busy := server(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(context.Context, putIn) ([]byte, error) {
			refused++
			return nil, qs.Refuse(qs.Errorf(qs.ErrUnavailable, "not now"))
		})
	})
	s := server(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	want := randomBytes(3, 100_000)
	rest, reads := bytes.NewReader(want), 0
	read := readerFunc(func(b []byte) (int, error) {
		reads++
		return rest.Read(b)
	})
	var moved, readBy []int64
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1}), func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		moved, readBy = append(moved, c.BytesMoved), append(readBy, int64(reads))
		return err
	}}})
	to := peer(t, n, "tcp://127.0.0.1:1", busy.Addr().String(), s.Addr().String())
	got, err := put.Call(testContext(t), to, putIn{"copy", qs.Reader(read)})
	require.NoError(t, err)
	require.Equal(t, hashOf(want), got)
	require.Equal(t, 1, refused)
	require.Equal(t, []int64{0, 0, int64(len(want))}, moved)
	require.Equal(t, []int64{0, 0}, readBy[:2])
}

// TestWithdrawTooLate checks that a call that it was too late to withdraw continues as if it was
// not withdrawn: Retry makes it at the second address.
func TestWithdrawTooLate(t *testing.T) {
	t.Parallel()
	running, refuse := make(chan struct{}), make(chan struct{})
	full := server(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) {
			close(running)
			<-refuse
			return p, qs.Refuse(qs.ErrNotReady)
		})
	})
	free := server(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { return p, nil })
	})
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{})}})
	f := double.Go(testContext(t), peer(t, c, full.Addr().String(), free.Addr().String()), point{1, 2})
	<-running
	require.Equal(t, hg.TooLate, f.Withdraw(testContext(t)))
	close(refuse)
	got, err := f.Wait(testContext(t))
	require.NoError(t, err)
	require.Equal(t, point{1, 2}, got)
}
