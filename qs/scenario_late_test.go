package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

type lateIn struct {
	How  int
	Body qs.Sink
	From qs.Source
}

var lateMethod = qs.Define[lateIn, int]("test/late")

// zeroReader reads as zeros, without end.
type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestLateGoroutines checks that goroutines that a handler has left behind may use its Sources and
// Sinks, and get ErrClosed, at whatever moment the handler returns; the call is answered all the
// same, with the bytes written until then.
func TestLateGoroutines(t *testing.T) {
	t.Parallel()
	uses := []func(ctx context.Context, in lateIn, b []byte, begun func()) error{
		func(ctx context.Context, in lateIn, b []byte, begun func()) error {
			w := in.Body.Writer(ctx)
			for {
				if _, err := w.Write(b); err != nil {
					return err
				}
				begun()
			}
		},
		func(ctx context.Context, in lateIn, _ []byte, begun func()) error {
			_, err := in.Body.Writer(ctx).(io.ReaderFrom).ReadFrom(readerFunc(func(b []byte) (int, error) {
				begun()
				return zeroReader{}.Read(b)
			}))
			return err
		},
		func(_ context.Context, in lateIn, b []byte, begun func()) error {
			for {
				if _, err := in.Body.WriteAt(b, 1<<20); err != nil {
					return err
				}
				begun()
			}
		},
		func(ctx context.Context, in lateIn, b []byte, begun func()) error {
			for {
				r := in.From.Reader(ctx)
				for {
					if _, err := r.Read(b); err == io.EOF {
						break
					} else if err != nil {
						return err
					}
					begun()
				}
			}
		},
		func(_ context.Context, in lateIn, b []byte, begun func()) error {
			for {
				if _, err := in.From.ReadAt(b, 1<<20); err != nil {
					return err
				}
				begun()
			}
		},
	}
	var late sync.WaitGroup
	var mu sync.Mutex
	var got []error
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		lateMethod.Handle(n, func(ctx context.Context, in lateIn) (int, error) {
			begun := make(chan struct{})
			late.Go(func() {
				var once sync.Once
				err := uses[in.How%10](ctx, in, make([]byte, 300_000), func() { once.Do(func() { close(begun) }) })
				once.Do(func() { close(begun) })
				mu.Lock()
				got = append(got, err)
				mu.Unlock()
			})
			<-begun
			if in.How >= 10 {
				return 0, errors.New("fails")
			}
			return 0, nil
		})
	})
	room, lent := make([]byte, 32<<20), make([]byte, 4<<20)
	for round := range long.Or(20, 400) {
		for how := range uses {
			sink, source := qs.Buffer(room), qs.Bytes(lent)
			if round%2 == 1 && how != 2 && how != 4 {
				sink, source = qs.Writer(io.Discard), qs.Reader(zeroReader{})
			}
			in := lateIn{how, sink, source}
			if round%4 >= 2 {
				in.How += 10
			}
			_, err := lateMethod.Call(testContext(t), to, in)
			if in.How < 10 {
				require.NoError(t, err, "use %d, round %d", how, round)
			} else {
				require.ErrorContains(t, err, "fails")
			}
		}
	}
	late.Wait()
	for _, err := range got {
		if !errors.Is(err, hg.ErrOverflow) { // a quick one has filled the room
			require.ErrorIs(t, err, qs.ErrClosed)
		}
	}
}

// TestLateReadFromBlocksNothing checks that a ReadFrom that a handler has left behind, whose reader blocks
// for ever, delays nothing.
func TestLateReadFromBlocksNothing(t *testing.T) {
	gave, wait, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		lateMethod.Handle(n, func(ctx context.Context, in lateIn) (int, error) {
			reads := 0
			go func() {
				_, err := in.Body.Writer(ctx).(io.ReaderFrom).ReadFrom(readerFunc(func(b []byte) (int, error) {
					if reads++; reads == 2 {
						close(gave)
						<-wait
						return copy(b, "late"), nil
					}
					return copy(b, "early"), nil
				}))
				ended <- err
			}()
			<-gave
			return 0, nil
		})
	})
	sink := qs.Buffer(make([]byte, 100))
	_, err := lateMethod.Call(testContext(t), to, lateIn{Body: sink})
	require.NoError(t, err)
	require.EqualValues(t, len("early"), sink.Filled())
	close(wait)
	require.ErrorIs(t, <-ended, qs.ErrClosed)
}

// TestFlushedWhenContextHasEnded checks that bytes that a handler has written arrive although the
// context that it gave Writer ends when it returns, as that of an interceptor or a deferred cancel
// does. A Write after that end fails.
func TestFlushedWhenContextHasEnded(t *testing.T) {
	t.Parallel()
	type in struct {
		How  string
		N    int
		Body qs.Sink
	}
	method := qs.Define[in, int]("test/flushed")
	cfg := qs.Config{ServerInterceptors: []qs.Interceptor{func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error { return next(ctx) }}}
	_, to := pair(t, cfg, func(n *qs.Node) {
		method.Handle(n, func(ctx context.Context, in in) (int, error) {
			data := randomBytes(3, in.N)
			switch in.How {
			case "cancel":
				c, cancel := context.WithCancel(ctx)
				defer cancel()
				return in.Body.Writer(c).Write(data)
			case "copy":
				c, cancel := context.WithCancel(ctx)
				defer cancel()
				n, err := io.Copy(in.Body.Writer(c), bytes.NewReader(data))
				return int(n), err
			case "late":
				c, cancel := context.WithTimeoutCause(ctx, time.Hour, errors.New("never"))
				defer cancel()
				w := in.Body.Writer(c)
				n, err := w.Write(data)
				if err != nil {
					return n, err
				}
				cancel()
				if _, err := w.Write(data); !errors.Is(err, qs.ErrCanceled) || !errors.Is(err, context.Canceled) {
					return n, fmt.Errorf("a Write after the end of its context: %w", err)
				}
				return n, nil
			}
			return in.Body.Writer(ctx).Write(data)
		})
	})
	for _, how := range []string{"", "cancel", "copy", "late"} {
		for _, n := range []int{1, 5000, 3<<20 + 1} {
			room := make([]byte, n+1)
			_, err := method.Call(testContext(t), to, in{how, n, qs.Buffer(room)})
			require.NoError(t, err, "%q, %d bytes", how, n)
			require.True(t, bytes.Equal(randomBytes(3, n), room[:n]), "%q, %d bytes", how, n)
			var b bytes.Buffer
			_, err = method.Call(testContext(t), to, in{how, n, qs.Writer(&b)})
			require.NoError(t, err, "%q, Into, %d bytes", how, n)
			require.True(t, bytes.Equal(randomBytes(3, n), b.Bytes()), "%q, Into, %d bytes", how, n)
		}
	}
}
