package qs

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Stream is a method whose results come one after the other: rows of a query, lines of a log. It is a package variable that both
// programs import.
//
//	handler: send ─► 64 KiB of items ─► qs/items ─► at most 3 of them wait here ─► the loop of the caller
//	           └─ waits while 3 are on the way ◄─ qs/taken: the loop is through with one ─┘
//
// Items come in order, each once. A process holds up to three messages of up to 64 KiB for each stream, and the one that is being
// filled, or, once the handler has returned, is the last; an item that is longer travels in a message of its own. A message leaves when it
// is full, or when the caller waits for items.
type Stream[In, Item any] struct{ m *method }

// DefineStream names a method with a stream of results. The rules are those of Define; In holds no Sinks. The codec encodes each item by
// itself. Inline is refused with a panic, since send blocks.
func DefineStream[In, Item any](name string, opts ...Option) *Stream[In, Item] {
	m := define(name, opts, false, reflect.TypeFor[In](), reflect.TypeFor[Item]())
	switch {
	case slices.ContainsFunc(m.fields, func(f field) bool { return f.sink }):
		panic(fmt.Sprintf("qs: stream %s has a Sink in its input; a stream sends items, use Define", name))
	case m.o.inline:
		panic(fmt.Sprintf("qs: stream %s is Inline, but send blocks", name))
	}
	m.shape += " ..."
	m.stream = true
	return &Stream[In, Item]{m}
}

// Handle has n serve s with fn, under the rules of Method.Handle. fn calls send for each item, from one goroutine at a time; send
// encodes it at once, and blocks while the caller has three messages to read, until ctx ends. Its error, the cause of ctx when the caller
// has left its loop, its time is up, or a context that an interceptor gave to next has ended, says that nothing more will arrive: return then.
//
// If fn returns nil, all that was sent arrives; the request lasts, and the interceptor's next does not return, until the caller's process
// has it all. If fn fails or panics, its error comes behind the items. The caller's process has one second to take these in, whether its
// loop reads them or not; if ctx has ended, none at all. Items that are on their way after that may be lost, never one in the midst of others. So a server gets
// rid of a caller that does not read: by an error, or by an interceptor that ends the context of next. After fn has returned send fails with
// ErrClosed.
func (s *Stream[In, Item]) Handle(n *Node, fn func(ctx context.Context, in In, send func(Item) error) error) {
	n.serve(s.m, func(r hg.Request) error {
		q := &sending[In, Item]{request: request{n: n, m: s.m, r: r}}
		q.request.in = &q.in
		defer q.end()
		id, err := q.input()
		if err != nil {
			return err
		}
		q.sender.begin(&q.request, id)
		defer q.sender.end()
		hghook.ReportRequest(&q.r, q)
		q.codec = n.resolveCodec(s.m)
		returned := false
		defer func() { // a panic, and the end of the goroutine, come behind the items, as an error does
			if !returned {
				q.sender.deliverFailed(q)
			}
		}()
		err = q.run(handlingFunc(func(ctx context.Context) error {
			q.sender.ctx = ctx
			if err := fn(ctx, q.in, q.send); err != nil {
				q.sender.deliverFailed(ctx)
				return err
			}
			return q.sender.deliver(ctx)
		}))
		returned = true
		if err != nil { // which an interceptor may have made of a success
			q.sender.deliverFailed(q)
		}
		end := q.sender.last()
		if err == nil {
			err = q.say(messagesMeta, end.meta())
		}
		q.end() // before the caller is answered
		q.sender.end()
		if err != nil {
			return q.failed(err)
		}
		return r.RespondRaw(end.items, nil)
	}, fn == nil)
}

// A sending is one request for a stream, with its types.
type sending[In, Item any] struct {
	request
	in     In
	sender sender
	codec  codec.Codec
	item   Item
	text   []byte // of item
}

// Report implements hghook.Reporter.
func (q *sending[In, Item]) Report(c *inspect.Call) {
	q.request.Report(c)
	c.Flow = q.sender.flow()
}

func (q *sending[In, Item]) send(item Item) (err error) {
	var none Item
	q.item = item
	q.text, err = q.codec.Append(q.text[:0], &q.item)
	q.item = none
	if err != nil {
		return fmt.Errorf("qs: stream %s: the item could not be encoded: %w", q.m.name, err)
	}
	err = q.sender.add(q.text)
	if cap(q.text) > streamMessage {
		q.text = nil
	}
	return err
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
			yield(none, noPeer(s.m.name))
			return
		}
		k := &receiving[In]{in: in}
		k.outgoing.taker = &k.taker
		k.begin(s.m, to)
		k.taker.home = to.p.n.all[to.p.i]
		k.Call.In, k.reply = &k.in, &k.end
		f := begin(ctx, &k.outgoing)
		defer f.finish()
		broken := func(err error) error {
			if e, ok := err.(*hg.Error); ok { // of a call of the library's, whose fate is not that of the stream
				err = fmt.Errorf("%s: %w", e.RPC, e.Err)
			}
			return &hg.Error{Op: "output of", RPC: s.m.name, Peer: to.Addr(), Fate: Ran, Err: err}
		}
		decode := to.p.n.resolveCodec(s.m).Decode
		for n := int64(0); ; n++ {
			items, over, err := k.taker.next(f)
			if over && f.panic != nil {
				panic(f.panic)
			}
			if ctx.Err() != nil {
				f.finish()
				if err = f.err; err == nil {
					err = broken(ErrCanceled)
				}
				err = hghook.EndedBy(ctx, err)
			} else if over {
				if err = f.err; err == nil && n != k.end.messages {
					err = broken(hg.Errorf(na.ErrProtocol, "%d messages of items came, the handler has sent %d", n, k.end.messages))
				}
				items = k.end.items
			} else if err != nil {
				err = broken(err)
			}
			if err != nil {
				yield(none, err)
				return
			}
			had := int64(0)
			for len(items) > 0 && ctx.Err() == nil {
				size, head := binary.Uvarint(items)
				if head <= 0 || size > uint64(len(items)-head) {
					yield(none, broken(hg.Errorf(na.ErrProtocol, "an item goes beyond its message")))
					return
				}
				var item Item
				if err := decode(items[head:head+int(size)], &item); err != nil {
					yield(none, broken(err))
					return
				}
				if items = items[head+int(size):]; !yield(item, nil) {
					return
				}
				had++
			}
			if over && len(items) == 0 {
				return
			}
			k.taker.through(had)
		}
	}
}

// A receiving is one call of a stream, with its types.
type receiving[In any] struct {
	outgoing
	in    In
	taker taker
	end   streamEnd
}
