package qs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A Duplex is a method whose caller and handler send items to each other for as long as the call lasts: a chat, a watch that is changed, a
// pipeline. It is a package variable that both programs import.
//
//	caller:  Call ── In ──► handler
//	         Send, CloseSend ──── Up ────► Receive … io.EOF
//	         Receive … io.EOF ◄── Down ─── Send; it returns: the end, or its error behind the items
//
// Items come in order in each direction, each once; the directions are independent. How they travel, and what bounds them, is as in a Stream.
type Duplex[In, Up, Down any] struct{ m *method }

// DefineDuplex declares a method with items in both directions. The rules are those of DefineStream.
func DefineDuplex[In, Up, Down any](name string, opts ...Option) *Duplex[In, Up, Down] {
	return &Duplex[In, Up, Down]{defineItems(name, opts, schema.Duplex, reflect.TypeFor[In](), reflect.TypeFor[Up](), reflect.TypeFor[Down]())}
}

// An Upload is a method whose caller sends items, and whose handler answers once: rows that are loaded, samples that are counted. Memory, a
// file or a Reader goes in a Source instead. It is a package variable that both programs import.
type Upload[In, Up, Out any] struct{ m *method }

// DefineUpload declares a method whose caller sends items. The rules are those of DefineStream.
func DefineUpload[In, Up, Out any](name string, opts ...Option) *Upload[In, Up, Out] {
	return &Upload[In, Up, Out]{defineItems(name, opts, schema.Upload, reflect.TypeFor[In](), reflect.TypeFor[Up](), reflect.TypeFor[Out]())}
}

var (
	streamUp   = []hg.StreamSpec{{Up: true}}
	streamBoth = []hg.StreamSpec{{Up: true}, {}}
)

// defineItems defines a method whose caller sends items.
func defineItems(name string, opts []Option, kind schema.Kind, in, up, out reflect.Type) *method {
	m := defineMethod(name, opts, kind, in, up, out)
	switch {
	case slices.ContainsFunc(m.fields, func(f field) bool { return f.sink }):
		panic(fmt.Sprintf("qs: method %s has a Sink in its input; it sends items, use Define", name))
	case m.o.inline:
		panic(fmt.Sprintf("qs: method %s is Inline, but Receive blocks", name))
	}
	if m.streams = streamUp; kind == schema.Duplex {
		m.streams = streamBoth
	}
	return m
}

// Name returns the name of d, as Call.Method has it.
func (d *Duplex[In, Up, Down]) Name() string { return d.m.name }

// Name returns the name of u, as Call.Method has it.
func (u *Upload[In, Up, Out]) Name() string { return u.m.name }

// A Receiver is where a handler receives the items of its caller, from one goroutine at a time, until it returns.
type Receiver[Up any] struct {
	r     itemReader
	ctx   context.Context // of the handler
	req   *request
	s     *hg.Stream
	codec codec.Codec
	n     int // items received
}

func (u *Receiver[Up]) begin(r *request, c codec.Codec, s *hg.Stream) {
	u.req, u.ctx, u.codec, u.s = r, r, c, s
	u.r.hctx, u.r.maxItem = r.r.HG(), r.n.maxItem()
	s.OnReady(u.r.onBytes)
	u.r.bind(s)
}

// Receive waits for the next item. The error is io.EOF behind the last one, when the caller has called CloseSend, or the cause of the
// handler's ctx when that has ended, or ErrBadInput for an item that cannot be decoded: return it then.
func (u *Receiver[Up]) Receive() (item Up, err error) {
	for {
		if u.ctx.Err() != nil {
			return item, context.Cause(u.ctx)
		}
		b, err := u.r.next()
		switch {
		case err == nil:
			u.n++
			err = decodeSent(u.codec, b, &item)
			if u.r.releaseItem(); err != nil {
				err = hg.Errorf(ErrBadInput, "qs: item %d of the caller of %s could not be decoded: %w", u.n, u.req.m.name, err)
			}
			return item, err
		case err == io.EOF:
			return item, err
		case !errors.Is(err, hg.ErrAgain):
			return item, u.req.explainError(u.ctx, err)
		}
		u.req.notifyBlocking()
		if err = u.s.Wait(u.ctx); err != nil {
			return item, err
		}
	}
}

// All yields the items as Receive returns them. The last pair has the error, if it is not io.EOF.
func (u *Receiver[Up]) All() iter.Seq2[Up, error] { return iterate(u.Receive) }

// SetTrailer has the caller get value by Trailer under name, also when the handler returns an error. It is Call.ResponseMetadata, of CallFrom,
// with the rules of WithMetadata; the error matches ErrInvalid or hg.ErrOverflow. It is called by one goroutine at a time, before the handler returns.
func (u *Receiver[Up]) SetTrailer(name, value string) error {
	c := u.req.callOf()
	m, err := c.ResponseMetadata.With(name, value)
	if err == nil {
		c.ResponseMetadata = m
	}
	return err
}

// iterate yields what receive returns.
func iterate[Item any](receive func() (Item, error)) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for {
			item, err := receive()
			if err == io.EOF || !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// A DuplexServer is what the handler of a Duplex has of its streams. One goroutine at a time receives, and one sends; they need not be the one of the
// handler. When the handler returns, both end, also where they are blocked: so a handler gets rid of a caller that does not read by returning
// an error, while another goroutine sends. The end of a context that the handler derives from ctx ends neither.
type DuplexServer[Up, Down any] struct {
	Receiver[Up]
	down itemSender[Down]
}

// Send sends an item to the caller. It blocks, and fails, as send of [Stream.Handle] does.
func (d *DuplexServer[Up, Down]) Send(item Down) error {
	if !d.down.headerSent {
		if err := d.SendHeader(nil); err != nil {
			return err
		}
	}
	return d.down.sendItem(item)
}

var errHeaderLate = hg.Errorf(ErrInvalid, "qs: the header goes before the first item, once")

// SendHeader sends what the caller gets by Header, before the first item. The error matches ErrInvalid after a Send or a SendHeader. What
// goes behind the last item SetTrailer sets.
func (d *DuplexServer[Up, Down]) SendHeader(header map[string]string) error {
	if d.down.headerSent {
		return errHeaderLate
	}
	d.down.headerSent = true
	b, err := encodeItem(codec.Msgpack, header)
	if err == nil {
		err = d.down.w.add(d.down.ctx, b)
	}
	return d.req.explainError(d.down.ctx, err)
}

// Handle has n serve d with fn, under the rules of Stream.Handle. When fn returns the caller gets what was sent and has not arrived, then the end,
// or the error; its own Sends fail from then on.
func (d *Duplex[In, Up, Down]) Handle(n *Node, fn func(ctx context.Context, in In, s *DuplexServer[Up, Down]) error) {
	n.registerHandler(d.m, func(r hg.Request) error {
		q := &typedDuplex[In, Up, Down]{request: request{n: n, m: d.m, r: r}}
		q.request.in = &q.in
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		q.s.Receiver.begin(&q.request, n.resolveCodec(d.m), r.Stream(0))
		return q.s.down.serveRequest(q, &q.request, r.Stream(1), func(ctx context.Context) error {
			q.s.ctx = ctx
			return fn(ctx, q.in, &q.s)
		})
	}, fn == nil)
}

// A typedDuplex is one request for a Duplex, with its types.
type typedDuplex[In, Up, Down any] struct {
	request
	in In
	s  DuplexServer[Up, Down]
}

// Report implements hghook.Reporter.
func (q *typedDuplex[In, Up, Down]) Report(c *inspect.Call) {
	q.request.Report(c)
	c.Flow = q.s.down.w.flow()
}

// Handle has n serve u with fn, under the rules of Method.Handle.
func (u *Upload[In, Up, Out]) Handle(n *Node, fn func(ctx context.Context, in In, items *Receiver[Up]) (Out, error)) {
	n.registerHandler(u.m, func(r hg.Request) error {
		q := &typedUpload[In, Up, Out]{request: request{n: n, m: u.m, r: r}}
		q.request.in, q.request.out = &q.in, &q.out
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		q.items.begin(&q.request, n.resolveCodec(u.m), r.Stream(0))
		hghook.ReportRequest(&q.r, q)
		err := q.runHandler(handlingFunc(func(ctx context.Context) (err error) {
			q.items.ctx = ctx
			q.out, err = fn(ctx, q.in, &q.items)
			return err
		}))
		if err == nil {
			err = q.setAnswerMeta("", "")
		}
		q.endLent() // before the caller is answered
		if err != nil {
			return q.onFailure(err)
		}
		return r.Respond(&q.out, nil)
	}, fn == nil)
}

// An typedUpload is one request for an Upload, with its types.
type typedUpload[In, Up, Out any] struct {
	request
	in    In
	out   Out
	items Receiver[Up]
}

// Report implements hghook.Reporter.
func (q *typedUpload[In, Up, Out]) Report(c *inspect.Call) {
	q.request.Report(c)
	c.Flow = q.items.r.flow()
}

// A streamCall is a call of which the program has the streams.
type streamCall struct {
	outgoingCall
	f              *futureCall // nil if it was made at no peer
	codec          codec.Codec
	sendClosed     atomic.Bool // CloseSend or Close
	err            error       // of the last receive: how the call has ended
	headerReceived bool        // header has come
	header         map[string]string
}

// start makes the call.
func (k *streamCall) start(ctx context.Context, m *method, to Peer) {
	if to.p == nil {
		k.err = errNoPeer(m.name)
		return
	}
	k.codec = to.p.n.resolveCodec(m)
	k.streams = newCallStreams(m, to.p)
	k.outgoingCall.begin(m, to)
	k.f = begin(ctx, &k.outgoingCall)
}

// sendItem sends an item that append encodes.
func (k *streamCall) sendItem(item any) error {
	switch {
	case k.f == nil:
		return io.EOF
	case k.sendClosed.Load():
		return hg.Errorf(ErrClosed, "qs: method %s: Send after CloseSend or Close", k.m.name)
	}
	b, err := encodeItem(k.codec, item)
	if err != nil {
		return fmt.Errorf("qs: method %s: the item could not be encoded: %w", k.m.name, err)
	}
	err = k.streams.up.add(k.f.ctx, b)
	if isNodeClosed(err) && k.f.ctx.Err() == nil {
		err = errNodeClosed
	}
	return err
}

// closeSend says that nothing more is sent.
func (k *streamCall) closeSend() {
	if k.f != nil && !k.sendClosed.Swap(true) {
		k.streams.up.closeWrite()
	}
}

// receiveItem waits for the next item. What it returns is valid until the next receive.
func (k *streamCall) receiveItem() (b []byte, err error) {
	if k.err != nil {
		return nil, k.err
	}
	b, k.err = k.streams.next(k.f)
	return b, k.err
}

// close ends the call, unless it has ended.
func (k *streamCall) close() {
	k.sendClosed.Store(true)
	if k.f != nil {
		defer k.streams.closeUse()
		k.f.abandonAndWait()
	}
}

// A DuplexCall is a call of a Duplex. One goroutine at a time sends, and one receives.
type DuplexCall[Up, Down any] struct{ k *streamCall }

// Call calls d at to, and returns at once: what becomes of the call Receive says. Close follows. The ctx is that of the whole call: when it ends
// Send and Receive return. Retry repeats a call of which nothing has moved in either direction.
func (d *Duplex[In, Up, Down]) Call(ctx context.Context, to Peer, in In) *DuplexCall[Up, Down] {
	k := &streamCall{}
	k.Call.In = &in
	k.start(ctx, d.m, to)
	return &DuplexCall[Up, Down]{k}
}

// Send sends an item. It blocks while the handler has more to receive than is held for it, or has not begun. The error is io.EOF when the
// call has ended, and Receive says why; the cause of ctx if that has; or ErrClosed after CloseSend and Close, and when this node is closed.
func (c *DuplexCall[Up, Down]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseSend says that no item follows: the handler receives io.EOF. It does not block.
func (c *DuplexCall[Up, Down]) CloseSend() { c.k.closeSend() }

// Header waits for what the handler has given SendHeader, and returns it; nil if it has sent an item, or has returned, without that. The
// error is that of Receive, but for io.EOF. It is called by the goroutine that receives.
func (c *DuplexCall[Up, Down]) Header() (header map[string]string, err error) {
	if err = c.k.receiveHeader(); err == io.EOF {
		err = nil
	}
	return c.k.header, err
}

// Receive waits for the next item. The error is io.EOF behind the last when the handler has returned nil, else that of Method.Call.
func (c *DuplexCall[Up, Down]) Receive() (item Down, err error) {
	if err = c.k.receiveHeader(); err != nil {
		return item, err
	}
	b, err := c.k.receiveItem()
	if err != nil {
		return item, err
	}
	err = decodeAnswered(c.k.codec, b, &item)
	if c.k.streams.down.releaseItem(); err != nil {
		c.k.err = brokenStream(c.k.m, c.k.Peer.Addr(), err)
	}
	return item, c.k.err
}

// receiveHeader takes the header.
func (k *streamCall) receiveHeader() error {
	if k.headerReceived || k.err != nil {
		return k.err
	}
	b, err := k.receiveItem()
	if err != nil {
		return err
	}
	k.headerReceived = true
	err = codec.Msgpack.Decode(b, &k.header)
	if k.streams.down.releaseItem(); err != nil {
		k.err = brokenStream(k.m, k.Peer.Addr(), err)
	}
	return k.err
}

// All yields the items as Receive returns them. The last pair has the error, if it is not io.EOF.
func (c *DuplexCall[Up, Down]) All() iter.Seq2[Down, error] { return iterate(c.Receive) }

// Trailer returns what the handler has set by SetTrailer, when Receive has returned an error.
func (c *DuplexCall[Up, Down]) Trailer() hg.Metadata { return c.k.trailer() }

// trailer returns the metadata of the answer, if that is there.
func (k *streamCall) trailer() hg.Metadata {
	if k.f == nil || !k.f.isOver() {
		return hg.Metadata{}
	}
	return k.Call.ResponseMetadata
}

// Close ends the call, unless it has ended: the context of the handler ends. Nothing of it is under way when Close has returned. It may be
// called at any time, and again.
func (c *DuplexCall[Up, Down]) Close() { c.k.close() }

// An UploadCall is a call of an Upload.
type UploadCall[Up, Out any] struct {
	k   *streamCall
	out Out
}

// Call calls u at to, and returns at once: what becomes of the call CloseAndReceive says. That, or Close, follows. The ctx is that of the
// whole call. Retry repeats a call of which nothing has moved.
func (u *Upload[In, Up, Out]) Call(ctx context.Context, to Peer, in In) *UploadCall[Up, Out] {
	c := &UploadCall[Up, Out]{k: &streamCall{}}
	c.k.Call.In, c.k.Call.Out, c.k.reply = &in, &c.out, &c.out
	c.k.start(ctx, u.m, to)
	return c
}

// Send is that of a DuplexCall; after io.EOF CloseAndReceive says why the call has ended.
func (c *UploadCall[Up, Out]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseAndReceive says that no item follows, waits for the answer, and returns it. The error is that of Method.Call.
func (c *UploadCall[Up, Out]) CloseAndReceive() (out Out, err error) {
	if c.k.f == nil {
		return out, c.k.err
	}
	c.k.closeSend()
	defer c.k.streams.closeUse()
	if err = c.k.f.wait(context.Background()); err == nil { // ctx ends the call
		err = c.k.f.err
	}
	if err != nil {
		return out, err
	}
	return c.out, nil
}

// Trailer is that of a DuplexCall, when CloseAndReceive has returned.
func (c *UploadCall[Up, Out]) Trailer() hg.Metadata { return c.k.trailer() }

// Close is that of a DuplexCall.
func (c *UploadCall[Up, Out]) Close() { c.k.close() }
