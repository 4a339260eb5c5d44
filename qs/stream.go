package qs

import (
	"context"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A Stream is a method that returns a sequence of items, such as the rows of a query or the lines
// of a log. It is typically a package-level variable imported by both client and server.
//
// Items are delivered in order, exactly once. The first item after a pause is sent immediately.
// Items that follow in quick succession are batched and sent when the handler pauses. The caller's
// flow-control window is up to 256 KiB. When it is full, up to 96 KiB of items are buffered at the
// handler before send blocks. An encoded item must not exceed hg.Config.MaxOutput bytes.
type Stream[In, Item any] struct{ m *method }

// DefineStream declares a method that returns a stream of items. The rules of Define apply, and In
// must not contain Sinks. Each item is encoded separately. DefineStream panics if opts include
// Inline, because send blocks.
func DefineStream[In, Item any](name string, opts ...Option) *Stream[In, Item] {
	m := defineMethod(name, opts, schema.Stream, reflect.TypeFor[In](), nil, reflect.TypeFor[Item]())
	switch {
	case slices.ContainsFunc(m.fields, func(f field) bool { return f.sink }):
		panic(fmt.Sprintf("qs: stream %s has a Sink in its input; use Define, or send items", name))
	case m.o.inline:
		panic(fmt.Sprintf("qs: stream %s has the option Inline, but its handler blocks", name))
	}
	m.streams = streamDown
	return &Stream[In, Item]{m}
}

// Name returns the name of the method, as found in Call.Method.
func (s *Stream[In, Item]) Name() string { return s.m.name }

// Shape returns a description of In and Item in the format of Method.Shape, followed by " ...".
func (s *Stream[In, Item]) Shape() string { return s.m.shape }

// Handle registers fn as the handler for s on n. The rules of Method.Handle apply. fn calls send
// for each item. send must not be called concurrently.
//
//   - send encodes the item before it returns. It blocks while the caller's flow-control window is
//     full, until ctx is done.
//   - If send returns an error, no further item is delivered and fn should return. The error is the
//     cause of ctx: the caller has left its loop, its deadline has passed, or a context that an
//     interceptor passed to next is done.
//   - If fn returns nil, all items are delivered. The request completes, and next returns in
//     interceptors, once the last item has been written to the stream. The caller may read it
//     later.
//   - If fn returns an error or panics, the caller receives the error after the items. Items that
//     cannot be written within one second are dropped.
//   - If ctx is done, items that have not been delivered yet are dropped.
//   - To stop sending to a caller that does not read, return an error from fn or cancel the context
//     passed to next in an interceptor.
//   - After fn has returned, send returns an error that matches ErrClosed.
func (s *Stream[In, Item]) Handle(
	n *Node, fn func(ctx context.Context, in In, send func(Item) error) error,
) {
	n.registerHandler(s.m, func(r hg.Request) error {
		q := &typedSender[In, Item]{request: request{requestContext: requestContext{n: n, m: s.m, r: r}}}
		q.request.in = &q.in
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		return q.items.serveRequest(q, &q.request, r.Stream(0),
			func(ctx context.Context) error { return fn(ctx, q.in, q.items.sendItem) })
	}, fn == nil)
}

// answerStreams responds to a request whose handler returned err. down is the stream on which the
// handler's items were sent.
func (s *request) answerStreams(down *hg.Stream, err error) error {
	if err == nil {
		err = s.setAnswerMeta("", "")
	}
	s.endLent() // must happen before the response is sent
	if err != nil {
		return s.onFailure(err)
	}
	s.r.HG().NA().Batch(func() { // send the end of the items and the response together
		if s.Err() == nil { // if ctx is done, undelivered items are dropped
			down.CloseWrite()
		}
		err = s.r.RespondRaw(nil, nil)
	})
	return err
}

// A typedSender is a request of a Stream, at the target.
type typedSender[In, Item any] struct {
	request
	in    In
	items itemSender[Item]
}

// Report implements hghook.Reporter.
func (q *typedSender[In, Item]) Report(c *inspect.Call) {
	q.request.Report(c)
	c.Flow = q.items.w.flow()
}

// An itemSender sends the items that a handler returns to the caller.
type itemSender[Item any] struct {
	w          itemWriter
	req        *request
	ctx        context.Context // context passed to the handler
	stream     *hg.Stream
	codec      methodCodec
	item       Item // item being encoded; kept here to save an allocation per item
	failed     bool // failItems has been called
	headerSent bool // the header of a Duplex has been sent
}

// serveRequest calls fn to handle the request r and sends its items on the stream s. by describes
// the request for hg.Context.Calls.
func (q *itemSender[Item]) serveRequest(
	by hghook.Reporter, r *request, s *hg.Stream, fn func(ctx context.Context) error,
) error {
	q.req, q.ctx, q.codec, q.stream = r, r, r.n.codecOf(r.m), s
	q.w.hctx, q.w.maxItem, q.w.notifyDriver = r.r.HG(), r.n.maxItem(), r.notifyBlocking
	q.w.wait = func(ctx context.Context) error {
		r.notifyBlocking()
		return s.Wait(ctx)
	}
	s.OnReady(q.w.onReady)
	q.w.bind(s)
	defer q.endItems()
	hghook.ReportRequest(&r.r, by)
	returned := false
	defer func() { // send the remaining items even if fn panics or calls runtime.Goexit
		if !returned {
			q.failItems(r)
		}
	}()
	err := r.runHandler(handlingFunc(func(ctx context.Context) error {
		q.ctx = r.itemContext(ctx)
		if err := fn(ctx); err != nil {
			q.failItems(ctx)
			return err
		}
		return q.flushItems(ctx)
	}))
	returned = true
	if err != nil { // may have been set by an interceptor even if fn returned nil
		q.failItems(r)
	}
	return r.answerStreams(s, err)
}

// endItems makes every later send return errStreamOver. It is called when the handler has returned.
func (q *itemSender[Item]) endItems() { q.w.stop(errStreamOver) }

// sendItem encodes item and sends it, blocking while the window is full.
func (q *itemSender[Item]) sendItem(item Item) error {
	var none Item
	q.item = item
	b, err := encodeItem(q.codec, &q.item)
	q.item = none
	if err != nil {
		return fmt.Errorf("qs: stream %s: cannot encode the item: %w", q.req.m.name, err)
	}
	return q.req.explainError(q.ctx, q.w.add(q.ctx, b))
}

// notifyBlocking notifies the worker pool that the handler of s is about to block.
func (s *request) notifyBlocking() { s.n.workers.notifyBlocking(s.r) }

// explainError returns the error to report to a handler whose stream failed with err. Because ctx
// is usually canceled shortly after its stream fails, explainError waits up to maxErrorDelay for
// that and then returns the cause of ctx. If ctx is not canceled, it returns err.
func (s *request) explainError(ctx context.Context, err error) error {
	if err == nil || err == errStreamOver || ctx.Err() != nil || hg.CodeOf(err) == hg.ErrOverflow {
		return err
	}
	if cause := s.r.HG().Sleep(ctx, maxErrorDelay); ctx.Err() != nil {
		return cause
	}
	return err
}

// flushItems waits until all items have been written to the stream. Later sends fail.
func (q *itemSender[Item]) flushItems(ctx context.Context) error {
	err := q.req.explainError(ctx, q.w.drain(ctx, 1))
	q.w.stop(errStreamOver)
	return err
}

// maxErrorDelay is the maximum time by which the error of a handler is delayed so that the
// preceding items can be written.
const maxErrorDelay = time.Second

// failItems waits until the items of a failed handler have been written. If that takes longer than
// maxErrorDelay or ctx is done, failItems resets the stream, which drops the remaining items. Only
// the first call has an effect.
func (q *itemSender[Item]) failItems(ctx context.Context) {
	if q.failed {
		return
	}
	q.failed = true
	limited, stop := q.req.n.withTimeout(ctx, maxErrorDelay)
	defer stop()
	err := q.w.drain(limited, 1)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		q.stream.Reset(hg.CodeOf(err), err.Error())
	}
	q.w.stop(errStreamOver)
}

// Call returns an iterator that yields the items in order. Each loop over it makes a new call of s
// to the Peer.
//
//   - If the call fails, the last pair holds the error, as in Method.Call. It follows the items
//     that were sent before the failure, unless ctx is done. In that case, the error is yielded
//     immediately.
//   - Breaking out of the loop ends the call and cancels the handler's context.
//   - If the loop is slow, the handler blocks in send once the window is full. The call makes
//     progress independently of the loop's goroutine.
//   - A panic in user code that runs as part of the call, such as an encoder or an interceptor, is
//     propagated to the loop.
//   - Retry repeats a call only if no item has been received yet.
func (s *Stream[In, Item]) Call(ctx context.Context, to Peer, in In) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var none Item
		if to.p == nil {
			yield(none, errNoPeer(s.m.name))
			return
		}
		k := &typedReceiver[In]{in: in}
		k.streams = newCallStreams(s.m, to.p)
		k.begin(s.m, to)
		k.Call.In = &k.in
		f := begin(ctx, &k.outgoingCall)
		defer k.streams.closeUse()
		defer f.abandonAndWait()
		c := to.p.n.codecOf(s.m)
		for {
			b, err := k.streams.next(f)
			if err == io.EOF {
				return
			}
			var item Item
			if err == nil {
				err = c.decodeAnswered(b, &item)
				if k.streams.down.releaseItem(); err != nil {
					err = brokenStream(s.m, to.Addr(), err)
				}
			}
			if err != nil {
				yield(none, err)
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

// A typedReceiver is a call of a Stream, at the origin.
type typedReceiver[In any] struct {
	outgoingCall
	in In
}
