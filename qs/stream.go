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
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A Stream is a method whose results come one after the other: rows of a query, lines of a log. It is a package variable that both
// programs import.
//
//	handler: send ─► up to 32 KiB of items ─► up to 64 KiB that may leave ─► a window of up to 256 KiB ─► the loop of the caller
//	           └─ waits while all of that is full ◄───────────────────────────────────────────────────────────────┘
//
// Items come in order, each once. An item leaves at once if nothing has just left, else with those that follow, as soon as the handler
// pauses. An item has at most hg.Config.MaxOutput bytes.
type Stream[In, Item any] struct{ m *method }

// DefineStream declares a method with a stream of results. The rules are those of Define; In holds no Sinks. The codec encodes each item by
// itself. Inline is refused with a panic, since send blocks.
func DefineStream[In, Item any](name string, opts ...Option) *Stream[In, Item] {
	m := defineMethod(name, opts, schema.Stream, reflect.TypeFor[In](), nil, reflect.TypeFor[Item]())
	switch {
	case slices.ContainsFunc(m.fields, func(f field) bool { return f.sink }):
		panic(fmt.Sprintf("qs: stream %s has a Sink in its input; a stream sends items, use Define", name))
	case m.o.inline:
		panic(fmt.Sprintf("qs: stream %s is Inline, but send blocks", name))
	}
	m.streams = streamDown
	return &Stream[In, Item]{m}
}

// Name returns the name of s, as Call.Method has it.
func (s *Stream[In, Item]) Name() string { return s.m.name }

// Shape describes In and Item as Method.Shape does, with " ..." behind.
func (s *Stream[In, Item]) Shape() string { return s.m.shape }

// Handle has n serve s with fn, under the rules of Method.Handle. fn calls send for each item, from one goroutine at a time; send
// encodes it at once, and blocks while the caller has more to read than is held for it, until ctx ends. Its error, the cause of ctx when the
// caller has left its loop, its time is up, or a context that an interceptor gave to next has ended, says that nothing more will arrive: return
// then.
//
// If fn returns nil, all that was sent arrives. The request ends, and the interceptor's next returns, when the last item has been written to the
// stream, though the caller may take its time to read. If fn fails or panics, its error comes behind the items, unless the last of them cannot be
// written within one second: then the caller gets what had come before, and the error. If ctx has ended what has not arrived is dropped, never an
// item in the midst of others. So a server gets rid of a caller that does not read: by an error, or by an interceptor that ends the context of
// next. After fn has returned send fails with ErrClosed.
func (s *Stream[In, Item]) Handle(n *Node, fn func(ctx context.Context, in In, send func(Item) error) error) {
	n.registerHandler(s.m, func(r hg.Request) error {
		q := &typedSender[In, Item]{request: request{n: n, m: s.m, r: r}}
		q.request.in = &q.in
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		return q.items.serveRequest(q, &q.request, r.Stream(0), func(ctx context.Context) error { return fn(ctx, q.in, q.items.sendItem) })
	}, fn == nil)
}

// answerStreams ends a request whose handler sends items by down, and has returned err.
func (s *request) answerStreams(down *hg.Stream, err error) error {
	if err == nil {
		err = s.setAnswerMeta("", "")
	}
	s.endLent() // before the caller is answered
	if err != nil {
		return s.onFailure(err)
	}
	s.r.HG().NA().Batch(func() { // the end of the items and the answer leave together
		if s.Err() == nil { // else what has not arrived is dropped
			down.CloseWrite()
		}
		err = s.r.RespondRaw(nil, nil)
	})
	return err
}

// A typedSender is one request for a stream, with its types.
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

// A itemSender is the handler's end of the items that it sends.
type itemSender[Item any] struct {
	w          itemWriter
	req        *request
	ctx        context.Context // of the handler
	stream     *hg.Stream
	codec      codec.Codec
	item       Item
	failed     bool // what is to be said of the end has been
	headerSent bool // the header has been sent, of a Duplex
}

// serveRequest serves a request, whose items go in s, with fn.
func (q *itemSender[Item]) serveRequest(by hghook.Reporter, r *request, s *hg.Stream, fn func(ctx context.Context) error) error {
	q.req, q.ctx, q.codec, q.stream = r, r, r.n.resolveCodec(r.m), s
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
	defer func() { // a panic, and the end of the goroutine, come behind the items, as an error does
		if !returned {
			q.failItems(r)
		}
	}()
	err := r.runHandler(handlingFunc(func(ctx context.Context) error {
		q.ctx = ctx
		if err := fn(ctx); err != nil {
			q.failItems(ctx)
			return err
		}
		return q.flushItems(ctx)
	}))
	returned = true
	if err != nil { // which an interceptor may have made of a success
		q.failItems(r)
	}
	return r.answerStreams(s, err)
}

// endItems is the end of the handler: no item is taken any more.
func (q *itemSender[Item]) endItems() { q.w.stop(errStreamOver) }

func (q *itemSender[Item]) sendItem(item Item) error {
	var none Item
	q.item = item
	b, err := encodeItem(q.codec, &q.item)
	q.item = none
	if err != nil {
		return fmt.Errorf("qs: stream %s: the item could not be encoded: %w", q.req.m.name, err)
	}
	return q.req.explainError(q.ctx, q.w.add(q.ctx, b))
}

// notifyBlocking says that the handler is about to wait, or that what it has queued waits for who drives.
func (s *request) notifyBlocking() { s.n.workers.notifyBlocking(s.r) }

// explainError returns err, or the cause of the end of ctx, which is on its way when a stream has ended.
func (s *request) explainError(ctx context.Context, err error) error {
	if err == nil || err == errStreamOver || ctx.Err() != nil || hg.CodeOf(err) == hg.ErrOverflow {
		return err
	}
	if cause := s.r.HG().Sleep(ctx, maxErrorDelay); ctx.Err() != nil {
		return cause
	}
	return err
}

// flushItems waits until all items have been written to the stream.
func (q *itemSender[Item]) flushItems(ctx context.Context) error {
	err := q.req.explainError(ctx, q.w.drain(ctx, 1))
	q.w.stop(errStreamOver)
	return err
}

// maxErrorDelay is how long the error of a handler waits for the items before it.
const maxErrorDelay = time.Second

// failItems is last of a handler that fails: it waits for some time at most. Items that cannot be written are dropped, with those that have not left;
// so are these when ctx has ended. The second time it does nothing.
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

// Call calls s at to each time that a loop ranges over what it returns, and yields the items in order. The last pair has the error, if
// there is one: it is that of Method.Call, and comes behind the items that the handler has sent before, but at once when ctx ends. A break
// ends the call: the context of the handler ends. The loop may take its time: the handler then waits in send. Between two items nothing of the call
// runs on the goroutine of the loop. If the program's code panics in the call, an encoder or an interceptor, so does the loop. Retry repeats a
// call of which no item has come.
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
		c := to.p.n.resolveCodec(s.m)
		for {
			b, err := k.streams.next(f)
			if err == io.EOF {
				return
			}
			var item Item
			if err == nil {
				err = decodeAnswered(c, b, &item)
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

// A typedReceiver is one call of a stream, with its types.
type typedReceiver[In any] struct {
	outgoingCall
	in In
}
