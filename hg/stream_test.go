package hg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

var (
	up   = hg.StreamSpec{Up: true}
	down = hg.StreamSpec{}
)

// newStreamHandle is a handle for calls of a new RPC with streams.
func (p *pair) newStreamHandle(handler hg.Handler, specs ...hg.StreamSpec) *hg.Handle {
	p.t.Helper()
	h := p.handle(p.rpc("stream", handler))
	require.NoError(p.t, h.SetStreams(specs...))
	return h
}

// writeStream writes data to a stream with callbacks, and calls done then.
func writeStream(s *hg.Stream, data []byte, done func()) {
	step := func() {
		for len(data) > 0 {
			n, err := s.Write(data)
			if err != nil {
				return
			}
			data = data[n:]
		}
		s.OnReady(nil)
		done()
	}
	s.OnReady(step)
	step()
}

// readStream reads a stream with callbacks, and calls done with the bytes that have arrived, and the
// error that has ended it.
func readStream(s *hg.Stream, done func(data []byte, err error)) {
	var data []byte
	step := func() {
		for {
			b, err := s.Next()
			switch {
			case err == nil:
				data = append(data, b...)
				s.Release(len(b))
			case errors.Is(err, hg.ErrAgain):
				return
			default:
				s.OnReady(nil)
				done(data, err)
				return
			}
		}
	}
	s.OnReady(step)
	step()
}

// readAll reads a stream until it ends.
func (p *pair) readAll(s *hg.Stream) (data []byte, err error) {
	p.t.Helper()
	readStream(s, func(b []byte, e error) { data, err = b, e })
	p.Until(func() bool { return err != nil })
	return data, err
}

func testBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8 ^ i)
	}
	return b
}

// requireNoStreams requires that neither side keeps a stream.
func (p *pair) requireNoStreams() {
	p.t.Helper()
	for _, hctx := range []*hg.Context{p.octx, p.tctx} {
		p.Until(func() bool { return hctx.Stats().NA.Streams == 0 })
	}
}

// TestStreamsEcho checks that a handler that has detached echoes a stream in callbacks.
func TestStreamsEcho(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.newStreamHandle(func(r hg.Request) error {
			r = detach(r)
			in, out := r.Stream(0), r.Stream(1)
			require.Equal(t, []hg.StreamSpec{up, down}, r.Streams())
			require.Nil(t, r.Stream(2))
			readStream(in, func(got []byte, err error) {
				require.ErrorIs(t, err, io.EOF)
				writeStream(out, got, func() { require.NoError(t, r.RespondRaw([]byte("answer"), nil)) })
			})
			return nil
		}, up, down)
		for _, size := range []int{0, 1, 70_000, 500_000} {
			var o outcome
			meta, err := hg.Metadata{}.With("a", string(testBytes(size%1000)))
			require.NoError(t, err)
			require.NoError(t, h.SetMeta(meta))
			require.NoError(t, h.ForwardRaw(testBytes(size/3), o.cb))
			data, s := testBytes(size), h.Stream(0)
			writeStream(s, data, s.CloseWrite)
			back, err := p.readAll(h.Stream(1))
			require.ErrorIs(t, err, io.EOF)
			require.True(t, bytes.Equal(data, back))
			n.Until(func() bool { return o.calls == 1 })
			require.NoError(t, o.err)
			out, err := h.OutputRaw()
			require.NoError(t, err)
			require.Equal(t, "answer", string(out))
			require.EqualValues(t, size, h.Stream(0).Moved())
		}
		s := h.Stream(1)
		require.NoError(t, h.Close())
		require.Nil(t, h.Stream(0))
		_, err := s.Next()
		require.ErrorIs(t, err, hg.ErrInvalid)
		p.requireNoStreams()
		p.requireClean(0)
	})
}

// TestStreamsBlocking checks that goroutines read and write, and each is woken separately.
func TestStreamsBlocking(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.newStreamHandle(func(r hg.Request) error {
			for buf := make([]byte, 1000); ; {
				k, err := r.Stream(0).ReadContext(r.Context(), buf)
				if errors.Is(err, io.EOF) {
					return r.RespondRaw(nil, nil)
				}
				if err == nil {
					_, err = r.Stream(1).WriteContext(r.Context(), buf[:k])
				}
				if err != nil {
					return err
				}
			}
		}, up, down)
		defer h.Close()
		n.Serve(p.tctx, 1)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		data, ctx := testBytes(200_000), t.Context()
		wrote := make(chan error)
		go func() {
			_, err := h.Stream(0).WriteContext(ctx, data)
			h.Stream(0).CloseWrite()
			wrote <- err
		}()
		var back []byte
		for buf := make([]byte, 3000); ; {
			k, err := h.Stream(1).ReadContext(ctx, buf)
			back = append(back, buf[:k]...)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
		}
		require.NoError(t, <-wrote)
		require.True(t, bytes.Equal(data, back))
		n.Until(func() bool { return o.calls == 1 })
		require.NoError(t, o.err)

		require.NoError(t, h.ForwardRaw(nil, o.cb)) // no goroutine writes
		short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
		defer stop()
		_, err := h.Stream(1).ReadContext(short, make([]byte, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		h.Stream(0).CloseWrite()
		n.Until(func() bool { return o.calls == 2 })
	})
}

// TestStreamsEndWithTheHandler checks that bytes written before a handler answers arrive, whatever
// the answer is; bytes to the target are refused then.
func TestStreamsEndWithTheHandler(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, says := range []error{nil, hg.Errorf(hg.ErrNotFound, "no such row")} {
			p := newPair(t, n, hg.Config{})
			var kept [2]*hg.Stream
			h := p.newStreamHandle(func(r hg.Request) error {
				kept = [2]*hg.Stream{r.Stream(0), r.Stream(1)}
				_, err := r.Stream(1).Write([]byte("row"))
				require.NoError(t, err)
				if says == nil {
					require.NoError(t, r.RespondRaw(nil, nil))
					_, err = r.Stream(1).Write([]byte("s")) // it has not returned
					require.NoError(t, err)
				}
				return says
			}, up, down)
			var o outcome
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return o.calls == 1 })
			require.Equal(t, says == nil, o.err == nil, "%v", o.err)
			data, err := p.readAll(h.Stream(1))
			require.ErrorIs(t, err, io.EOF)
			require.Equal(t, map[bool]string{true: "rows", false: "row"}[says == nil], string(data))
			n.Until(func() bool {
				_, err = h.Stream(0).Write([]byte("late"))
				return err != nil && !errors.Is(err, hg.ErrAgain)
			})
			require.ErrorIs(t, err, hg.ErrCanceled)
			require.ErrorContains(t, err, "the handler has returned")
			_, err = kept[0].Next()
			require.ErrorContains(t, err, "the handler has returned")
			_, err = kept[1].Write([]byte("late"))
			require.ErrorContains(t, err, "the handler has returned")
			require.NoError(t, h.Close())
			p.requireNoStreams()
			p.requireClean(0)
		}
	})
}

// TestStreamsEndWithTheCall checks that a call that ends before its answer ends its streams, at
// both sides, with its own cause. The streams of a handler whose context had ended are reset.
func TestStreamsEndWithTheCall(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		for _, c := range []struct {
			name string
			end  func(h *hg.Handle)
			code hg.Code
		}{
			{"Cancel", (*hg.Handle).Cancel, hg.ErrCanceled},
			{"Abandon", (*hg.Handle).Abandon, hg.ErrCanceled},
			{"Timeout", func(*hg.Handle) {}, hg.ErrTimeout},
		} {
			p := newPair(t, n, hg.Config{})
			var r hg.Request
			var said error
			var there [2]*hg.Stream
			h := p.newStreamHandle(func(q hg.Request) error {
				r, there = detach(q), [2]*hg.Stream{q.Stream(0), q.Stream(1)}
				readStream(there[0], func(_ []byte, err error) { said = err })
				return nil
			}, up, down)
			if c.name == "Timeout" {
				h.SetTimeout(100 * time.Millisecond)
			}
			var o outcome
			var here error
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			readStream(h.Stream(1), func(_ []byte, err error) { here = err })
			n.Until(func() bool { return there[0] != nil })
			c.end(h)
			_, err := h.Stream(0).Write([]byte("x"))
			if c.name != "Timeout" {
				require.ErrorIs(t, err, c.code, "at once")
			}
			n.Until(func() bool { return o.calls == 1 && here != nil && said != nil })
			require.ErrorIs(t, o.err, c.code)
			require.ErrorIs(t, here, c.code)
			require.ErrorIs(t, said, c.code, c.name)
			n.Until(func() bool {
				_, err = there[1].Write([]byte("x"))
				return err != nil && !errors.Is(err, hg.ErrAgain)
			})
			require.ErrorIs(t, err, c.code)
			_ = r.RespondRaw(nil, nil)
			require.NoError(t, h.Close())
			p.requireNoStreams()
			p.requireClean(0)
		}
	})
}

// TestStreamsOfLateHandler checks that when the context of the handler has ended, though the
// origin reads on, bytes that were not read are dropped.
func TestStreamsOfLateHandler(t *testing.T) {
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.newStreamHandle(func(r hg.Request) error {
			ctx := r.Context()
			_, _ = r.Stream(0).Write([]byte("row"))
			require.ErrorIs(t, p.tctx.Wait(ctx, func() bool { return false }), hg.ErrTimeout)
			return nil
		}, down)
		h.SetTimeout(time.Second)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		_, err := p.readAll(h.Stream(0))
		require.ErrorIs(t, err, hg.ErrTimeout)
		n.Until(func() bool { return o.calls == 1 })
		require.ErrorIs(t, o.err, hg.ErrTimeout)
		require.NoError(t, h.Close())
		p.requireNoStreams()
		p.requireClean(0)
	})
}

// TestStreamsOfRequestsThatDidNotRun checks that a request whose handler did not run has moved
// nothing: it was withdrawn, or the target had no memory for its streams.
func TestStreamsOfRequestsThatDidNotRun(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var busy []hg.Request
		_, err := p.target.RegisterRPC(hg.RPC{Name: "stream", MaxActive: 1, Handler: func(r hg.Request) error {
			busy = append(busy, detach(r))
			return nil
		}})
		require.NoError(t, err)
		id, err := p.origin.Register("stream", nil)
		require.NoError(t, err)
		first, h := p.handle(id), p.handle(id)
		require.NoError(t, h.SetStreams(up, down))
		var o1, o2 outcome
		require.NoError(t, first.Forward(nil, o1.cb))
		n.Until(func() bool { return len(busy) == 1 })
		require.NoError(t, h.ForwardRaw(nil, o2.cb))
		n.Until(func() bool { return p.tctx.Stats().Waiting == 1 })
		_, err = h.Stream(0).Write([]byte("x"))
		require.ErrorIs(t, err, hg.ErrAgain)
		var result []hg.WithdrawResult
		require.NoError(t, h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) { result = append(result, r) }))
		n.Until(func() bool { return o2.calls == 1 && len(result) == 1 })
		require.Equal(t, hg.Withdrawn, result[0])
		_, err = h.Stream(0).Write([]byte("x"))
		require.ErrorIs(t, err, hg.ErrCanceled)
		require.Zero(t, h.Stream(0).Moved())
		require.Len(t, busy, 1, "the handler runs")
		require.NoError(t, busy[0].RespondRaw(nil, nil))
		n.Until(func() bool { return o1.calls == 1 })
		require.NoError(t, first.Close())
		require.NoError(t, h.Close())
		p.requireNoStreams()
		p.requireClean(0)
	})
}

func TestStreamsWithoutMemory(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{NA: na.Config{Budget: 1 << 20}})
		p.origin, p.octx = n.Origin(hg.Config{})
		ran := 0
		id := p.rpc("stream", func(r hg.Request) error { ran++; detach(r); return nil })
		var all []*hg.Handle
		var o outcome
		for o.calls == 0 { // until the target has no memory for more
			h := p.handle(id)
			all = append(all, h)
			require.NoError(t, h.SetStreams(up, up, up, up, up, up, up, up, up, up, up, up, up, up, down))
			before := ran
			require.NoError(t, h.ForwardRaw(nil, o.cb))
			n.Until(func() bool { return ran > before || o.calls > 0 })
		}
		requireCode(t, o.err, hg.ErrExhausted)
		require.ErrorContains(t, o.err, "cannot reserve 1024 bytes for a stream")
		require.Equal(t, na.NotRun, hg.FateOf(o.err))
		last := all[len(all)-1]
		_, err := last.Stream(0).Write([]byte("x"))
		require.ErrorIs(t, err, hg.ErrExhausted)
		require.Zero(t, last.Stream(0).Moved())
		for _, h := range all {
			h.Abandon()
			require.NoError(t, h.Close())
		}
		p.requireNoStreams()
	})
}

func TestStreamsMisuse(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		h := p.handle(p.rpc("x", echo))
		require.ErrorIs(t, h.SetStreams(make([]hg.StreamSpec, na.MaxStreams+1)...), hg.ErrInvalid)
		require.NoError(t, h.SetStreams(up))
		require.Nil(t, h.Stream(0), "no call has begun")
		require.NoError(t, p.call(h, "x"))
		require.NotNil(t, h.Stream(0))
		require.Nil(t, h.Stream(-1))
		require.NoError(t, h.SetStreams())
		require.NoError(t, p.call(h, "x"))
		require.Nil(t, h.Stream(0))
		one := p.handle(p.oneWay("y", func(hg.Request) error { return nil }))
		require.ErrorIs(t, one.SetStreams(up), hg.ErrUnsupported)
		require.NoError(t, one.Close())
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.SetStreams(up), hg.ErrClosed)
		p.requireNoStreams()
		p.requireClean(0)
	})
}

// TestStreamsPeerLost checks that the streams of a session that ends end with it.
func TestStreamsPeerLost(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		var there error
		h := p.newStreamHandle(func(r hg.Request) error {
			r = detach(r)
			readStream(r.Stream(0), func(_ []byte, err error) { there = err })
			return nil
		}, up, down)
		var o outcome
		require.NoError(t, h.ForwardRaw(nil, o.cb))
		writeStream(h.Stream(0), []byte("x"), func() {})
		n.Until(func() bool { return h.Stream(0).Moved() == 1 })
		require.NoError(t, p.origin.Close())
		n.Until(func() bool { return o.calls == 1 && there != nil })
		require.ErrorIs(t, there, hg.ErrPeerLost)
		require.NoError(t, h.Close())
	})
}

// TestShutdownCountsStreams checks that a Shutdown counts the streams that it cuts off: of a
// handler that does not return, and of an answered request whose caller does not read.
func TestShutdownCountsStreams(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"of a handler": false, "of an answered request": true} {
		t.Run(name, func(t *testing.T) {
			transports.Each(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, lingerConfig(20*time.Millisecond))
				var k holdingTarget
				h := p.newStreamHandle(func(r hg.Request) error {
					writeStream(r.Stream(1), testBytes(40_000), func() {})
					return k.handler(r)
				}, up, down)
				ended := false
				require.NoError(t, h.Forward(nil, func(*hg.Handle, error) { ended = true }))
				p.Until(func() bool { return len(k.kept) == 1 })
				if answered {
					k.answer()
					p.Until(func() bool { return ended })
				}
				n.Serve(p.octx, 1)
				e := shutdownError(t, p.target.Shutdown(context.Background()))
				if answered {
					require.Equal(t, []int{0, 0, 1}, []int{e.Handlers, e.Responses, e.Streams}, "%v", e)
					require.ErrorContains(t, e, "1 stream")
					return
				}
				require.Equal(t, []int{1, 0, 2}, []int{e.Handlers, e.Responses, e.Streams}, "%v", e)
				require.ErrorContains(t, e, "2 streams, 1 handler")
			})
		})
	}
}
