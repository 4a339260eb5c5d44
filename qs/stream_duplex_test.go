package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	talk    = qs.DefineDuplex[string, []byte, row]("test/talk")
	samples = qs.DefineUpload[int, []byte, int]("test/samples")
)

// serveTalk answers each item with one that has its number, and the text with which the call has
// begun once at the end.
func serveTalk(n *qs.Node) {
	talk.Handle(n, func(ctx context.Context, how string, s *qs.DuplexServer[[]byte, row]) error {
		qs.CallFrom(ctx).ResponseMetadata, _ = hg.Metadata{}.With("end", how)
		if how == "header" {
			if err := s.SendHeader(map[string]string{"begin": how}); err != nil {
				return err
			}
		}
		n := 0
		for item, err := range s.All() {
			if err != nil {
				return err
			}
			if err := s.Send(row{n, item}); err != nil {
				return err
			}
			n++
			if how == "leave" && n == 3 {
				return qs.Errorf(qs.ErrNotFound, "three are enough")
			}
		}
		if err := s.SendHeader(nil); n > 0 && !errors.Is(err, qs.ErrInvalid) {
			return qs.Errorf(qs.ErrInternal, "SendHeader behind an item: %v", err)
		}
		return nil
	})
	samples.Handle(n, func(ctx context.Context, most int, items *qs.Receiver[[]byte]) (sum int, err error) {
		for item, err := range items.All() {
			if err != nil {
				return 0, err
			}
			if sum += len(item); most > 0 && sum > most {
				return 0, qs.Errorf(qs.ErrExhausted, "%d is too much", sum)
			}
		}
		return sum, nil
	})
}

// A lateItem calls during while it is encoded, which is in the middle of Send.
type lateItem struct{ during func() }

func (i lateItem) MarshalBinary() ([]byte, error) {
	if i.during != nil {
		i.during()
	}
	return []byte{1}, nil
}

func (i *lateItem) UnmarshalBinary([]byte) error { return nil }

// TestCloseSendWhileSending checks that CloseSend may be called by a goroutine that does not send,
// also in the middle of Send. Each item whose Send returned nil arrives, and no other.
func TestCloseSendWhileSending(t *testing.T) {
	t.Parallel()
	count := qs.DefineDuplex[string, lateItem, int]("test/count-up")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		count.Handle(n, func(_ context.Context, _ string, s *qs.DuplexServer[lateItem, int]) error {
			n := 0
			for _, err := range s.All() {
				if err != nil {
					return err
				}
				n++
			}
			return s.Send(n)
		})
	})
	for n := range 3 {
		call := count.Call(testContext(t), to, "")
		for range n {
			require.NoError(t, call.Send(lateItem{}))
		}
		require.ErrorIs(t, call.Send(lateItem{call.CloseSend}), qs.ErrClosed)
		require.ErrorIs(t, call.Send(lateItem{}), qs.ErrClosed)
		arrived, err := call.Receive()
		require.NoError(t, err)
		require.Equal(t, n, arrived)
		call.Close()
	}
}

// TestDuplex checks items in both directions at once, of any size, and then the end, with the
// handler's header and trailer.
func TestDuplex(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := serverAt(t, addr, qs.Config{}, serveTalk)
		c := open(t, scheme(addr)+"://", qs.Config{})
		to := peer(t, c, s.Addr().String())
		for _, how := range []string{"header", "none"} {
			for _, size := range []int{0, 10, 5000, 100_000} {
				call := talk.Call(testContext(t), to, how)
				const items = 50
				sent := make(chan error, 1)
				go func() {
					var err error
					for range items {
						err = errors.Join(err, call.Send(bytes.Repeat([]byte{7}, size)))
					}
					call.CloseSend()
					sent <- err
				}()
				header, err := call.Header()
				require.NoError(t, err)
				require.Equal(t, how == "header", header["begin"] == "header")
				n := 0
				for r, err := range call.All() {
					require.NoError(t, err)
					require.Equal(t, n, r.Key)
					require.Len(t, r.Text, size)
					n++
				}
				require.Equal(t, items, n)
				require.NoError(t, <-sent)
				_, err = call.Receive()
				require.ErrorIs(t, err, io.EOF)
				require.ErrorIs(t, call.Send(nil), qs.ErrClosed)
				end, _ := call.Trailer().Get("end")
				require.Equal(t, how, end)
				call.Close()
			}
		}
		for range 20 { // a question, and its answer
			call := talk.Call(testContext(t), to, "")
			for i := range 10 {
				require.NoError(t, call.Send([]byte{1}))
				r, err := call.Receive()
				require.NoError(t, err)
				require.Equal(t, i, r.Key)
			}
			call.Close()
		}
		(&rowSource{}).waitUntilIdle(t, c, s)
	})
}

// TestReceiveInto checks that ReceiveInto uses the memory of its caller, at the handler and at the
// caller: an item that fits is decoded into that of the one before, also if it arrived in several
// pieces.
func TestReceiveInto(t *testing.T) {
	t.Parallel()
	sizes := []int{200, 300_000, 100, 0, 300_000, 20}
	echo := qs.DefineDuplex[int, []byte, []byte]("test/echo")
	check := func(receive func(*[]byte) error, each func(item []byte) error) error {
		var item []byte
		for _, n := range sizes {
			before := item
			if err := receive(&item); err != nil {
				return err
			}
			switch {
			case !bytes.Equal(bytes.Repeat([]byte{byte(n)}, n), item):
				return fmt.Errorf("got other bytes than the %d that were sent", n)
			case cap(before) >= n && n > 0 && cap(before) > 0 && &before[:1][0] != &item[0]:
				return fmt.Errorf("an item of %d bytes is in new memory, and there were %d", n, cap(before))
			}
			if err := each(item); err != nil {
				return err
			}
		}
		if err := receive(&item); err != io.EOF {
			return fmt.Errorf("got %v behind the last item, want io.EOF", err)
		}
		return nil
	}
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		echo.Handle(n, func(_ context.Context, _ int, s *qs.DuplexServer[[]byte, []byte]) error {
			return check(s.ReceiveInto, s.Send)
		})
	})
	call := echo.Call(testContext(t), to, 1)
	defer call.Close()
	sent := make(chan error, 1)
	go func() {
		defer call.CloseSend()
		for _, n := range sizes {
			if err := call.Send(bytes.Repeat([]byte{byte(n)}, n)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	require.NoError(t, check(call.ReceiveInto, func([]byte) error { return nil }))
	require.NoError(t, <-sent)
}

// TestDuplexEnds checks that however a call ends, both sides get the cause, and nothing is left.
func TestDuplexEnds(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 10)
	hangs := qs.DefineDuplex[int, int, int]("test/hangs")
	var s *qs.Node
	c, to := pair(t, qs.Config{}, func(n *qs.Node) {
		s = n
		serveTalk(n)
		hangs.Handle(n, func(ctx context.Context, _ int, d *qs.DuplexServer[int, int]) error {
			if err := d.Send(1); err != nil {
				return err
			}
			_, err := d.Receive()
			ended <- err
			return err
		})
	})
	call := talk.Call(testContext(t), to, "leave") // the handler has enough, and returns that behind its items
	var err error
	for err == nil {
		err = call.Send([]byte("x"))
	}
	require.ErrorIs(t, err, io.EOF)
	n := 0
	for _, err = range call.All() {
		n++
	}
	require.Equal(t, 4, n)
	require.ErrorIs(t, err, qs.ErrNotFound)
	call.Close()

	for _, how := range []string{"close", "cancel"} {
		ctx, cancel := context.WithCancelCause(testContext(t))
		call := hangs.Call(ctx, to, 0)
		_, err := call.Receive()
		require.NoError(t, err)
		if how == "close" {
			call.Close()
			_, err = call.Receive()
			require.ErrorIs(t, err, qs.ErrCanceled)
		} else {
			cancel(io.ErrClosedPipe)
			_, err = call.Receive()
			require.ErrorIs(t, err, io.ErrClosedPipe)
			require.ErrorIs(t, call.Send(1), io.ErrClosedPipe)
			call.Close()
		}
		require.ErrorIs(t, <-ended, context.Canceled, how)
		cancel(nil)
	}

	none := talk.Call(testContext(t), qs.Peer{}, "")
	require.ErrorIs(t, none.Send(nil), io.EOF)
	_, err = none.Receive()
	require.ErrorIs(t, err, qs.ErrInvalid)
	none.Close()
	(&rowSource{}).waitUntilIdle(t, c, s)
}

// TestUpload checks that an upload is answered once, when the handler has enough.
func TestUpload(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		s := serverAt(t, addr, qs.Config{}, serveTalk)
		c := open(t, scheme(addr)+"://", qs.Config{})
		to := peer(t, c, s.Addr().String())
		for _, items := range []int{0, 1, 10_000} {
			call := samples.Call(testContext(t), to, 0)
			for range items {
				require.NoError(t, call.Send(make([]byte, 100)))
			}
			sum, err := call.CloseAndReceive()
			require.NoError(t, err)
			require.Equal(t, 100*items, sum)
		}
		call := samples.Call(testContext(t), to, 1000)
		var err error
		for err == nil {
			err = call.Send(make([]byte, 100))
		}
		require.ErrorIs(t, err, io.EOF)
		_, err = call.CloseAndReceive()
		require.ErrorIs(t, err, qs.ErrExhausted)
		require.ErrorContains(t, err, "1100 is too much")
		call = samples.Call(testContext(t), to, 0)
		require.NoError(t, call.Send(nil))
		call.Close()
		_, err = call.CloseAndReceive()
		require.ErrorIs(t, err, qs.ErrCanceled)
		_, err = samples.Call(testContext(t), qs.Peer{}, 0).CloseAndReceive()
		require.ErrorIs(t, err, qs.ErrInvalid)
		(&rowSource{}).waitUntilIdle(t, c, s)
	})
}

// TestCanceledSend checks that a handler does not take the items before a Send that has failed,
// because ctx was done, for all items, and that the caller is not told that the call has succeeded.
func TestCanceledSend(t *testing.T) {
	t.Parallel()
	upload := qs.DefineUpload[int, int, int]("test/canceled-upload")
	duplex := qs.DefineDuplex[int, int, int]("test/canceled-duplex")
	var ended atomic.Int64 // handlers that have received the end of the items
	count := func(items *qs.Receiver[int]) (n int, err error) {
		for _, err := range items.All() {
			if err != nil {
				return n, err
			}
			n++
		}
		ended.Add(1)
		return n, nil
	}
	s := server(t, qs.Config{}, func(n *qs.Node) {
		upload.Handle(n, func(_ context.Context, _ int, items *qs.Receiver[int]) (int, error) {
			return count(items)
		})
		duplex.Handle(n, func(_ context.Context, _ int, s *qs.DuplexServer[int, int]) error {
			_, err := count(&s.Receiver)
			return err
		})
	})
	c := open(t, "tcp://", qs.Config{})
	to := peer(t, c, s.Addr().String())
	for range 100 {
		ctx, stop := context.WithCancel(testContext(t))
		up, both := upload.Call(ctx, to, 0), duplex.Call(ctx, to, 0)
		require.NoError(t, up.Send(1))
		require.NoError(t, both.Send(1))
		stop()
		require.ErrorIs(t, up.Send(2), context.Canceled)
		require.ErrorIs(t, both.Send(2), context.Canceled)
		both.CloseSend()
		_, err := up.CloseAndReceive()
		require.ErrorIs(t, err, qs.ErrCanceled)
		_, err = both.Receive()
		require.ErrorIs(t, err, qs.ErrCanceled)
		both.Close()
	}
	(&rowSource{}).waitUntilIdle(t, c, s)
	require.Zero(t, ended.Load())
}

// TestRefusedItem checks that an item that is too large or cannot be encoded ends the call with that
// error, at both sides: a handler does not take the items before it for all items, and the caller is
// not told that the call has succeeded.
func TestRefusedItem(t *testing.T) {
	t.Parallel()
	upload := qs.DefineUpload[int, any, int]("test/refused-upload")
	duplex := qs.DefineDuplex[int, any, int]("test/refused-duplex")
	var ended atomic.Int64 // handlers that have received the end of the items
	count := func(items *qs.Receiver[any]) (n int, err error) {
		for _, err := range items.All() {
			if err != nil {
				return n, err
			}
			n++
		}
		ended.Add(1)
		return n, nil
	}
	s := server(t, qs.Config{}, func(n *qs.Node) {
		upload.Handle(n, func(_ context.Context, _ int, items *qs.Receiver[any]) (int, error) {
			return count(items)
		})
		duplex.Handle(n, func(_ context.Context, _ int, s *qs.DuplexServer[any, int]) error {
			_, err := count(&s.Receiver)
			return err
		})
	})
	for name, interceptors := range map[string][]qs.Interceptor{
		"plain":            nil,
		"with a goroutine": {func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error { return next(ctx) }},
	} {
		c := open(t, "tcp://", qs.Config{ClientInterceptors: interceptors})
		to := peer(t, c, s.Addr().String())
		for item, text := range map[any]string{
			strings.Repeat("x", 65<<20): "exceeds the sender's hg.Config.MaxOutput of 67108864",
			struct{ F chan int }{}:      "cannot encode the item",
		} {
			for range 10 {
				up, both := upload.Call(testContext(t), to, 0), duplex.Call(testContext(t), to, 0)
				for range 3 {
					require.NoError(t, up.Send(1), name)
					require.NoError(t, both.Send(1), name)
				}
				refused := up.Send(item)
				require.ErrorContains(t, refused, text, name)
				require.ErrorContains(t, both.Send(item), text, name)
				require.ErrorContains(t, both.Send(1), text, name)
				both.CloseSend()
				_, err := up.CloseAndReceive()
				require.ErrorIs(t, err, refused, name)
				require.ErrorContains(t, err, text, name)
				_, err = both.Receive()
				require.ErrorContains(t, err, text, name)
				both.Close()
			}
		}
		(&rowSource{}).waitUntilIdle(t, c, s)
	}
	require.Zero(t, ended.Load())
}

// TestItemExceedsReceiver checks that an item that the sender's limit allows and the receiver's does
// not is refused by the receiver, whose error says whose limit it is, at either side.
func TestItemExceedsReceiver(t *testing.T) {
	t.Parallel()
	sizes := qs.DefineDuplex[int, []byte, []byte]("test/sizes")
	serve := func(n *qs.Node) {
		sizes.Handle(n, func(_ context.Context, size int, s *qs.DuplexServer[[]byte, []byte]) error {
			if size > 0 {
				return s.Send(make([]byte, size))
			}
			_, err := s.Receive()
			return err
		})
	}
	small := qs.Config{HG: hg.Config{MaxOutput: 50}}
	const want = "item of 66 bytes exceeds the receiver's hg.Config.MaxOutput of 50"

	s := server(t, small, serve)
	up := sizes.Call(testContext(t), peer(t, open(t, "tcp://", qs.Config{}), s.Addr().String()), 0)
	defer up.Close()
	require.NoError(t, up.Send(make([]byte, 64)))
	_, err := up.Receive()
	remote, _ := hg.RemoteOf(err)
	require.NotNil(t, remote)
	require.Equal(t, hg.ErrOverflow, remote.Code)
	require.Equal(t, qs.Ran, qs.FateOf(err))
	require.ErrorContains(t, err, "target: "+want)

	s = server(t, qs.Config{}, serve)
	down := sizes.Call(testContext(t), peer(t, open(t, "tcp://", small), s.Addr().String()), 64)
	defer down.Close()
	_, err = down.Receive()
	require.ErrorIs(t, err, hg.ErrOverflow)
	require.ErrorContains(t, err, want)
}

// A slowItem is an item whose encoding fails once fail is closed.
type slowItem struct{ encoding, fail chan struct{} }

func (i *slowItem) MarshalBinary() ([]byte, error) {
	close(i.encoding)
	<-i.fail
	return nil, errors.New("no encoding")
}

// TestItemRefusedAfterClose checks that an item that is refused after another goroutine has closed
// the stream is not part of the call: Send returns ErrClosed, as for an item that comes too late.
func TestItemRefusedAfterClose(t *testing.T) {
	t.Parallel()
	upload := qs.DefineUpload[int, any, int]("test/slow-upload")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		upload.Handle(n, func(_ context.Context, _ int, items *qs.Receiver[any]) (n int, err error) {
			for _, err := range items.All() {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		})
	})
	up := upload.Call(testContext(t), peer(t, open(t, "tcp://", qs.Config{}), s.Addr().String()), 0)
	require.NoError(t, up.Send(1))
	item := &slowItem{make(chan struct{}), make(chan struct{})}
	sent := make(chan error, 1)
	go func() { sent <- up.Send(item) }()
	<-item.encoding
	n, err := up.CloseAndReceive()
	close(item.fail)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.ErrorIs(t, <-sent, qs.ErrClosed)
	require.Equal(t, io.EOF, upload.Call(testContext(t), qs.Peer{}, 0).Send(1))
}

// TestItemRefusedAfterEnd checks that an item that cannot be encoded is refused only while the call is
// in flight. Later, Send returns the same error as for any other item, which is that of the call.
func TestItemRefusedAfterEnd(t *testing.T) {
	t.Parallel()
	upload := qs.DefineUpload[int, any, int]("test/ended-upload")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		upload.Handle(n, func(ctx context.Context, early int, _ *qs.Receiver[any]) (int, error) {
			if early == 0 {
				<-ctx.Done()
			}
			return 0, nil
		})
	})
	c, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	to, cause := peer(t, c, s.Addr().String()), errors.New("the cause")
	var calls []*qs.UploadCall[any, int]
	begin := func(ctx context.Context, early int) *qs.UploadCall[any, int] {
		calls = append(calls, upload.Call(ctx, to, early))
		return calls[len(calls)-1]
	}
	refuses := func(up *qs.UploadCall[any, int], want error) {
		t.Helper()
		require.ErrorIs(t, up.Send(make(chan int)), want)
		require.ErrorIs(t, up.Send(1), want)
	}

	ctx, stop := context.WithCancelCause(testContext(t))
	up := begin(ctx, 0)
	stop(cause)
	refuses(up, cause)
	_, err = up.CloseAndReceive()
	require.ErrorIs(t, err, cause)

	ctx, stop = context.WithCancelCause(testContext(t))
	ended := begin(ctx, 1)
	for err = nil; err != io.EOF; err = ended.Send(1) {
		require.NoError(t, err)
	}
	refuses(ended, io.EOF)
	stop(cause)
	refuses(ended, cause)

	require.NoError(t, c.Close())
	refuses(begin(testContext(t), 0), qs.ErrClosed)
	for _, up := range calls {
		up.Close()
	}
}

// TestDuplexRetry checks that Retry repeats a call of which nothing has moved: sent items wait here
// until a handler has begun.
func TestDuplexRetry(t *testing.T) {
	t.Parallel()
	s := server(t, qs.Config{}, serveTalk)
	tries := 0
	refuse := func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
		if tries++; tries == 1 {
			return &hg.Error{Op: "forward", RPC: c.Method, Fate: qs.NotRun, Err: qs.ErrUnavailable}
		}
		return next(ctx)
	}
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Backoff: -1}), refuse}})
	call := samples.Call(testContext(t), peer(t, c, s.Addr().String()), 0)
	require.NoError(t, call.Send([]byte("abc")))
	sum, err := call.CloseAndReceive()
	require.NoError(t, err)
	require.Equal(t, 3, sum)
	require.Equal(t, 2, tries)
}

// TestDuplexMisuse checks that two programs that disagree get an error, and an invalid method is
// refused when it is defined.
func TestDuplexMisuse(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, serveTalk)
	_, err := qs.DefineUpload[string, []byte, int]("test/talk").Call(testContext(t), to, "").CloseAndReceive()
	require.ErrorIs(t, err, hg.ErrRemote)
	require.ErrorContains(t, err, "as an upload (DefineUpload) by the caller, and as a duplex (DefineDuplex) by the server")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	for text, define := range map[string]func(){
		"Inline":          func() { qs.DefineDuplex[int, int, int]("test/bad", qs.Inline()) },
		"a Sink in its":   func() { qs.DefineUpload[getIn, int, int]("test/bad") },
		"in its items":    func() { qs.DefineUpload[int, putIn, int]("test/bad") },
		"have this type":  func() { qs.DefineUpload[int, chan int, int]("test/bad") },
		"in its output":   func() { qs.DefineDuplex[int, int, putIn]("test/bad") },
		"have this type:": func() { qs.DefineDuplex[int, int, func()]("test/bad") },
	} {
		func() {
			defer func() { require.True(t, strings.Contains(recover().(string), text), text) }()
			define()
		}()
	}
}

// TestDuplexInSimulator checks the same in virtual time in a simulator.
func TestDuplexInSimulator(t *testing.T) {
	t.Parallel()
	oneAtATime(t)
	w := sim.NewWorld(sim.Config{Seed: 1})
	defer w.Close()
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	w.Node("server").Go(func() {
		s := simulated(t, w, "sim://server", qs.Config{})
		serveTalk(s)
		_ = s.Serve(serving)
		_ = s.Close()
	})
	w.Node("client").Go(func() {
		defer stop()
		c := simulated(t, w, "sim://client", qs.Config{})
		w.Sleep(1)
		ctx := context.Background()
		to, err := c.Peer(ctx, "sim://server")
		if err != nil {
			t.Error(err)
			return
		}
		call := talk.Call(ctx, to, "header")
		for i := range 10 {
			if err := call.Send(make([]byte, 20_000)); err != nil {
				t.Error(err)
			}
			if r, err := call.Receive(); err != nil || r.Key != i {
				t.Errorf("item %d: %d, %v", i, r.Key, err)
			}
		}
		call.CloseSend()
		if _, err := call.Receive(); err != io.EOF {
			t.Error(err)
		}
		call.Close()
		_ = c.Close()
	})
	if err := w.Run(1 << 40); err != nil {
		t.Error(err)
	}
}

// TestStreamWithoutAttempt checks an interceptor of the client that answers a call of a stream by
// itself, or makes a success of an attempt that has failed: there is no item, and no error.
func TestStreamWithoutAttempt(t *testing.T) {
	t.Parallel()
	for what, answer := range map[string]qs.Interceptor{
		"no attempt": func(context.Context, *qs.Call, func(context.Context) error) error { return nil },
		"failed": func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
			_ = next(ctx)
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := server(t, qs.Config{}, func(*qs.Node) {})
			to := peer(t, open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{answer}}), n.Addr().String())
			some := qs.DefineStream[int, int]("test/none")
			for _, err := range some.Call(testContext(t), to, 1) {
				t.Errorf("an item, or an error: %v", err)
			}
			both := qs.DefineDuplex[int, int, int]("test/neither").Call(testContext(t), to, 1)
			_, err := both.Receive()
			require.Equal(t, io.EOF, err)
			both.Close()
		})
	}
}

// TestReceiveAfterClose checks a handler that has answered, and whose items were not received
// before Close.
func TestReceiveAfterClose(t *testing.T) {
	t.Parallel()
	pipe := qs.DefineDuplex[int, int, int]("test/pipe")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		pipe.Handle(n, func(_ context.Context, _ int, s *qs.DuplexServer[int, int]) error {
			for i := range 10 {
				if err := s.Send(i); err != nil {
					return err
				}
			}
			return nil
		})
	})
	c := pipe.Call(testContext(t), to, 1)
	_, err := c.Receive()
	require.NoError(t, err)
	for c.Send(1) == nil { // until the handler has answered
		runtime.Gosched()
	}
	c.Close()
	_, err = c.Receive()
	for err == nil { // items that had arrived before
		_, err = c.Receive()
	}
	require.ErrorIs(t, err, qs.ErrClosed)
}

// TestItemNotDecoded checks that an item that the handler cannot decode is an error of the caller
// that names the method and the item. The trailer is there in addition to the error.
func TestItemNotDecoded(t *testing.T) {
	t.Parallel()
	serves := qs.DefineDuplex[int, string, int]("test/words")
	loads := qs.DefineUpload[int, string, int]("test/load")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		serves.Handle(n, func(_ context.Context, _ int, d *qs.DuplexServer[string, int]) error {
			if err := d.SetTrailer("took", "none"); err != nil {
				return err
			}
			_, err := d.Receive()
			if err == nil {
				_, err = d.Receive()
			}
			return err
		})
		loads.Handle(n, func(_ context.Context, _ int, items *qs.Receiver[string]) (int, error) {
			err := items.SetTrailer("took", "none")
			for _, e := range items.All() {
				err = e
			}
			return 1, err
		})
	})
	wrong := qs.DefineDuplex[int, bytesOrText, int]("test/words").Call(testContext(t), to, 1)
	defer wrong.Close()
	require.NoError(t, wrong.Send("a word"))
	require.NoError(t, wrong.Send("\x00"))
	_, err := wrong.Receive()
	require.ErrorIs(t, err, qs.ErrBadInput)
	require.ErrorIs(t, err, hg.ErrRemote)
	require.ErrorContains(t, err, "method test/words: cannot decode item 2 of the caller")
	took, _ := wrong.Trailer().Get("took")
	require.Equal(t, "none", took)

	for _, word := range []bytesOrText{"a word", "\x00"} {
		load := qs.DefineUpload[int, bytesOrText, int]("test/load").Call(testContext(t), to, 1)
		require.NoError(t, load.Send(word))
		_, err = load.CloseAndReceive()
		if word == "a word" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, qs.ErrBadInput)
			require.ErrorContains(t, err, "cannot decode item 1 of the caller")
		}
		took, _ = load.Trailer().Get("took")
		require.Equal(t, "none", took)
		load.Close()
	}
}

// bytesOrText is encoded as a string, but for "\x00", which is not one.
type bytesOrText string

func (b bytesOrText) EncodeMsgpack(e *msgpack.Encoder) error {
	if b == "\x00" {
		return e.EncodeMapLen(3)
	}
	return e.EncodeString(string(b))
}
