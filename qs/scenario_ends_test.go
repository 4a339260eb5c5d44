package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestGoexitInStreams checks that a Read or a Write of the user's that ends its goroutine, as
// t.FailNow does, ends the call at once, with an error that states it; with no deadline, too.
func TestGoexitInStreams(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	for _, after := range []int{0, 3 << 20} {
		left := after
		_, err := put.Call(context.Background(), to, putIn{"copy", qs.Reader(readerFunc(func(b []byte) (int, error) {
			if left -= len(b); left < 0 {
				runtime.Goexit()
			}
			return len(b), nil
		}))})
		require.ErrorContains(t, err, "called runtime.Goexit")
		require.ErrorIs(t, err, qs.ErrAborted)
		left = after
		_, err = get.Call(context.Background(), to, getIn{"copy", 9 << 20, qs.Writer(writerFunc(func(b []byte) (int, error) {
			if left -= len(b); left < 0 {
				runtime.Goexit()
			}
			return len(b), nil
		}))})
		require.ErrorContains(t, err, "called runtime.Goexit")
		require.ErrorIs(t, err, qs.ErrAborted)
	}
}

// TestInterceptorFates checks that when an interceptor of a server ends before the handler has
// begun, in any way, the fate is NotRun. After that it is Ran.
func TestInterceptorFates(t *testing.T) {
	t.Parallel()
	m := qs.Define[string, int]("test/fates")
	_, to := pair(t, qs.Config{ServerInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		how := *c.In.(*string)
		if how[0] == '+' {
			if err := next(ctx); err != nil {
				return err
			}
		}
		switch how[1:] {
		case "panic":
			panic("oh")
		case "goexit":
			runtime.Goexit()
		}
		return qs.Errorf(qs.ErrDenied, "not you")
	}}}, func(n *qs.Node) {
		m.Handle(n, func(context.Context, string) (int, error) { return 1, nil })
	})
	for _, h := range []string{"-panic", "-goexit", "-error", "+panic", "+goexit", "+error"} {
		_, err := m.Call(testContext(t), to, h)
		want, code := qs.NotRun, error(qs.ErrDenied)
		if h[0] == '+' {
			want = qs.Ran
		}
		if h[1:] != "error" {
			code = hg.ErrPanic
		}
		require.ErrorIs(t, err, code, h)
		require.Equal(t, want, qs.FateOf(err), h)
	}
}

type endless struct {
	N    int
	Next *endless
}

// TestTooDeep checks that an argument that is cyclic, or nested too deeply, is an error of the
// caller: nothing is sent. Such a result is an error of the target, and the caller's error states
// that it could not be encoded.
func TestTooDeep(t *testing.T) {
	t.Parallel()
	var ran atomic.Bool
	m := qs.Define[*endless, *endless]("test/deep")
	make := func(n int) (e *endless) {
		for range n {
			e = &endless{Next: e}
		}
		return e
	}
	self := &endless{}
	self.Next = self
	results := map[int]*endless{1: self, 2: make(codec.MaxDepth + 1), 3: make(codec.MaxDepth)}
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(_ context.Context, in *endless) (*endless, error) { ran.Store(true); return results[in.N], nil })
	})
	for _, in := range []*endless{self, make(codec.MaxDepth + 1)} {
		_, err := m.Call(testContext(t), to, in)
		require.ErrorIs(t, err, codec.ErrDepth)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
		require.ErrorContains(t, err, "qs_test.endless")
		require.ErrorContains(t, err, fmt.Sprint(codec.MaxDepth))
	}
	require.False(t, ran.Load())
	for n := 1; n <= 2; n++ {
		_, err := m.Call(testContext(t), to, &endless{N: n})
		require.ErrorIs(t, err, hg.ErrRemote)
		require.ErrorContains(t, err, "encode response")
		require.Equal(t, qs.Ran, qs.FateOf(err))
	}
	out, err := m.Call(testContext(t), to, &endless{N: 3})
	require.NoError(t, err)
	require.Equal(t, results[3], out)
}

// exitingCodec ends the goroutine that encodes a bye.
type (
	exitingCodec struct{ codec.Codec }
	byeValue     struct{}
)

func (e exitingCodec) Append(dst []byte, v any) ([]byte, error) {
	switch v.(type) {
	case byeValue, *byeValue:
		runtime.Goexit()
	}
	return e.Codec.Append(dst, v)
}

// TestGoexitInCodec checks that a codec that ends the goroutine at the output, or at the detail of
// an error, leaves no call without an answer.
func TestGoexitInCodec(t *testing.T) {
	t.Parallel()
	m := qs.Define[bool, byeValue]("test/exits", qs.WithCodec(exitingCodec{codec.Msgpack}))
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(_ context.Context, detail bool) (byeValue, error) {
			if detail {
				return byeValue{}, hg.WithDetail(qs.Errorf(qs.ErrDenied, "see the detail"), byeValue{})
			}
			return byeValue{}, nil
		})
	})
	_, err := m.Call(testContext(t), to, false)
	require.ErrorIs(t, err, hg.ErrPanic)
	require.ErrorContains(t, err, "called runtime.Goexit")
	_, err = m.Call(testContext(t), to, true)
	require.ErrorIs(t, err, qs.ErrDenied)
	require.ErrorContains(t, err, "see the detail")
}

// TestServerNextLate checks the attempts that an interceptor of a server leaves in flight when it
// returns: the context of a handler that has begun ends, and it is waited for; one that has not
// never begins, since the caller got NotRun. A second next is refused.
func TestServerNextLate(t *testing.T) {
	t.Parallel()
	m := qs.Define[string, int]("test/next-late")
	began, late := make(chan struct{}), make(chan error, 1)
	var answered chan struct{}
	var ran, saw atomic.Int32
	_, to := pair(t, qs.Config{ServerInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		switch *c.In.(*string) {
		case "before":
			go func() {
				<-answered
				late <- next(ctx)
			}()
		case "during":
			go func() { late <- next(ctx) }()
			<-began
		case "twice":
			if err := next(ctx); err != nil {
				return err
			}
			late <- next(ctx)
		}
		return qs.Errorf(qs.ErrAborted, "too slow")
	}}}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in string) (int, error) {
			ran.Add(1)
			if in == "during" {
				close(began)
				<-ctx.Done()
				saw.Add(1)
			}
			return 1, nil
		})
	})
	for _, x := range []struct {
		in    string
		fate  hg.Fate
		ran   int32
		other error
	}{{"before", qs.NotRun, 0, qs.ErrInvalid}, {"during", qs.Ran, 1, nil}, {"twice", qs.Ran, 1, qs.ErrInvalid}} {
		answered = make(chan struct{})
		ran.Store(0)
		_, err := m.Call(testContext(t), to, x.in)
		close(answered)
		require.ErrorIs(t, err, qs.ErrAborted, x.in)
		require.Equal(t, x.fate, qs.FateOf(err), x.in)
		require.ErrorIs(t, <-late, x.other, x.in)
		require.Equal(t, x.ran, ran.Load(), x.in)
	}
	require.EqualValues(t, 1, saw.Load(), "the handler was not waited for")
}

// A slowContext ends before its children do.
type slowContext struct {
	context.Context
	done chan struct{}
	over atomic.Bool
}

func (c *slowContext) Done() <-chan struct{} { return c.done }

func (c *slowContext) Err() error {
	if c.over.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *slowContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// TestEndedContextIsTheError checks that a call whose context has ended returns its error: also if its
// Future was canceled a moment later, if the library's clock was faster than the context's, and
// with whatever an interceptor has joined to it.
func TestEndedContextIsTheError(t *testing.T) {
	t.Parallel()
	m := qs.Define[int, int]("test/hang")
	stop := func() {}
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		switch *c.In.(*int) {
		case 1:
			stop()
			return errors.Join(err, next(ctx))
		case 2:
			stop()
			return errors.Join(next(ctx), context.DeadlineExceeded)
		}
		return err
	}}})
	s := server(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in int) (int, error) {
			if in > 0 {
				return 0, qs.Errorf(qs.ErrNotFound, "nothing")
			}
			<-ctx.Done()
			return 0, ctx.Err()
		})
	})
	to := peer(t, n, s.Addr().String())
	for range 100 {
		ctx := &slowContext{Context: context.Background(), done: make(chan struct{})}
		f := m.Go(ctx, to, 0)
		ctx.over.Store(true)
		f.Cancel()
		close(ctx.done)
		_, err := f.Wait(testContext(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
	}
	my := errors.New("my time is up")
	for range 30 {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 2*time.Millisecond, my)
		_, err := m.Call(ctx, to, 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, my)
		cancel()
	}
	for in := 1; in <= 2; in++ {
		ctx, cancel := context.WithCancel(context.Background())
		stop = cancel
		defer cancel()
		_, err := m.Call(ctx, to, in)
		require.ErrorIs(t, err, context.Canceled)
		for _, other := range []error{context.DeadlineExceeded, hg.ErrRemote, qs.ErrNotFound} {
			require.NotErrorIs(t, err, other, "%v", err)
		}
		require.Equal(t, qs.Ran, qs.FateOf(err), "%v", err)
	}
}

// TestNothingAfterTheEnd checks that a call that an interceptor begins when the caller's context
// has ended is not sent, whatever context it gives next.
func TestNothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	ran := atomic.Int64{}
	server := server(t, qs.Config{}, func(n *qs.Node) {
		repeat.Handle(n, func(context.Context, string) (string, error) { ran.Add(1); return "", nil })
	})
	client := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		func(_ context.Context, _ *qs.Call, next func(context.Context) error) error {
			return next(context.Background())
		},
	}})
	to := peer(t, client, server.Addr().String())
	_, err := repeat.Call(testContext(t), to, "")
	require.NoError(t, err)
	over, end := context.WithCancel(context.Background())
	end()
	for range 100 {
		_, err := repeat.Call(over, to, "")
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, qs.NotRun, qs.FateOf(err))
	}
	require.EqualValues(t, 1, ran.Load())
}

// TestDetachedAttemptEnds checks that a call ends when its caller's context does, also if an
// interceptor has made its attempt with another one.
func TestDetachedAttemptEnds(t *testing.T) {
	t.Parallel()
	m := qs.Define[int, int]("test/detached")
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		return next(context.WithoutCancel(ctx))
	}}})
	began, ended := make(chan struct{}), make(chan struct{})
	s := server(t, qs.Config{}, func(n *qs.Node) {
		m.Handle(n, func(ctx context.Context, in int) (int, error) {
			close(began)
			defer close(ended)
			<-ctx.Done()
			return 0, ctx.Err()
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-began
		cancel()
	}()
	_, err := m.Call(ctx, peer(t, n, s.Addr().String()), 0)
	require.ErrorIs(t, err, context.Canceled)
	<-ended // the target was notified
}

// TestBytesMoved checks that Call.BytesMoved counts each byte once, whatever is lent.
func TestBytesMoved(t *testing.T) {
	t.Parallel()
	var moved int64
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		moved = c.BytesMoved
		return err
	}}})
	s := server(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	to := peer(t, n, s.Addr().String())
	b := make([]byte, 1<<20)
	for _, in := range []qs.Source{qs.Bytes(b), qs.Reader(bytes.NewReader(b))} {
		_, err := put.Call(testContext(t), to, putIn{"copy", in})
		require.NoError(t, err)
		require.EqualValues(t, len(b), moved)
	}
	for _, out := range []qs.Sink{qs.Buffer(b), qs.Writer(io.Discard)} {
		_, err := get.Call(testContext(t), to, getIn{"copy", len(b), out})
		require.NoError(t, err)
		require.EqualValues(t, len(b), moved)
	}
}
