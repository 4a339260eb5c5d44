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

// A Stream is a method with a sequence of results, such as the rows of a query or the lines of a
// log. It is a package variable that both programs import.
//
//	handler: send ─► up to 32 KiB of items ─► up to 64 KiB in the stream ─► a window of up to 256 KiB ─► loop of the caller
//	           └─ blocks while all of that is full ◄────────────────────────────────────────────────────────┘
//
// Items arrive in order, each once. The first item after a pause is sent at once. Items that follow
// quickly are sent in batches, as soon as the handler pauses. An item has at most
// hg.Config.MaxOutput bytes.
type Stream[In, Item any] struct{ m *method }

// DefineStream declares a method with a stream of results. The rules are those of Define; In holds
// no Sinks. The codec encodes each item by itself. It panics with Inline, since send blocks.
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

// Name returns the name of s, as Call.Method has it.
func (s *Stream[In, Item]) Name() string { return s.m.name }

// Shape describes In and Item as Method.Shape does, followed by " ...".
func (s *Stream[In, Item]) Shape() string { return s.m.shape }

// Handle registers fn as the handler of s at n, under the rules of Method.Handle. fn calls send for
// each item, from one goroutine at a time.
//
//   - send encodes the item at once. It blocks while the flow-control window of the caller is full,
//     until ctx is done.
//   - After an error of send no further item arrives, and fn should return. The error is the cause
//     of ctx: the caller has left its loop, its deadline has passed, or a context that an
//     interceptor passed to next is done.
//   - If fn returns nil, all items arrive. The request ends, and the interceptor's next returns,
//     when the last item has been written to the stream; the caller may read it later.
//   - If fn fails or panics, the caller gets the error after the items. Items that cannot be written
//     within one second are dropped.
//   - If ctx is done, items at the end that have not arrived are dropped.
//   - To stop sending to a caller that does not read, return an error, or let an interceptor cancel
//     the context of next.
//   - After fn has returned, send fails with ErrClosed.
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

// answerStreams sends the response to a request with the items stream down, whose handler returned
// err.
func (s *request) answerStreams(down *hg.Stream, err error) error {
	if err == nil {
		err = s.setAnswerMeta("", "")
	}
	s.endLent() // before the response is sent
	if err != nil {
		return s.onFailure(err)
	}
	s.r.HG().NA().Batch(func() { // sends the end of the items and the answer together
		if s.Err() == nil { // otherwise the items that have not arrived are dropped
			down.CloseWrite()
		}
		err = s.r.RespondRaw(nil, nil)
	})
	return err
}

// A typedSender is one request for a Stream, with its types.
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

// An itemSender sends the items of a handler.
type itemSender[Item any] struct {
	w          itemWriter
	req        *request
	ctx        context.Context // the context of the handler
	stream     *hg.Stream
	codec      methodCodec
	item       Item // the item to encode; reused, which saves an allocation per item
	failed     bool // failItems was called
	headerSent bool // the header of a Duplex was sent
}

// serveRequest serves the request r, whose items go through the stream s, with fn.
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
	defer func() { // after a panic or runtime.Goexit the items before arrive too
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
	if err != nil { // also if an interceptor has replaced nil by an error
		q.failItems(r)
	}
	return r.answerStreams(s, err)
}

// endItems refuses further items: the handler has returned.
func (q *itemSender[Item]) endItems() { q.w.stop(errStreamOver) }

// sendItem encodes and sends one item.
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

// notifyBlocking calls workers.notifyBlocking for this request.
func (s *request) notifyBlocking() { s.n.workers.notifyBlocking(s.r) }

// explainError returns the error of a stream for the handler. When a stream has ended, the
// cancellation of ctx is usually on its way: explainError waits for it, up to maxErrorDelay, and
// returns its cause.
func (s *request) explainError(ctx context.Context, err error) error {
	if err == nil || err == errStreamOver || ctx.Err() != nil || hg.CodeOf(err) == hg.ErrOverflow {
		return err
	}
	if cause := s.r.HG().Sleep(ctx, maxErrorDelay); ctx.Err() != nil {
		return cause
	}
	return err
}

// flushItems waits until all items have been written to the stream, and refuses further ones.
func (q *itemSender[Item]) flushItems(ctx context.Context) error {
	err := q.req.explainError(ctx, q.w.drain(ctx, 1))
	q.w.stop(errStreamOver)
	return err
}

// maxErrorDelay limits how long the error of a handler waits for the items before it.
const maxErrorDelay = time.Second

// failItems waits until the items of a handler that has failed are written, for maxErrorDelay at
// most. If that fails, or ctx is done, it resets the stream, which drops the items that were not
// sent. Only its first call has an effect.
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

// Call returns a sequence that calls s at a Peer each time a loop ranges over it, and yields the
// items in order.
//
//   - The last pair has the error of the call, if any, as in Method.Call. It follows the items that
//     were sent before it, but is yielded at once when ctx is done.
//   - A break ends the call, and cancels the context of the handler.
//   - If the loop is slow, the handler blocks in send once the window is full. Between two items the
//     call does not use the loop's goroutine.
//   - A panic of the program's code in the call, in an encoder or an interceptor, is raised in the
//     loop.
//   - Retry repeats a call only before the first item.
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

// A typedReceiver is one call of a Stream, with its types.
type typedReceiver[In any] struct {
	outgoingCall
	in In
}
