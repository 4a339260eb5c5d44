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

// A Duplex is a method whose caller and handler send items to each other while the call lasts: a
// chat, a watch whose filter changes, a pipeline. It is a package variable that both programs
// import.
//
//	caller:  Call ── In ──► handler
//	         Send, CloseSend ──── Up ────► Receive … io.EOF
//	         Receive … io.EOF ◄── Down ─── Send; returning ends it: io.EOF, or the error, after the items
//
// Items arrive in order in each direction, each once. The directions are independent. Sending and
// limits are as in a Stream.
type Duplex[In, Up, Down any] struct{ m *method }

// DefineDuplex declares a method with items in both directions. The rules are those of
// DefineStream.
func DefineDuplex[In, Up, Down any](name string, opts ...Option) *Duplex[In, Up, Down] {
	return &Duplex[In, Up, Down]{defineItems(name, opts, schema.Duplex, reflect.TypeFor[In](),
		reflect.TypeFor[Up](), reflect.TypeFor[Down]())}
}

// An Upload is a method whose caller sends items, and whose handler returns one output: rows to
// load, samples to count. For memory, a file or an io.Reader use a Source instead. It is a package
// variable that both programs import.
type Upload[In, Up, Out any] struct{ m *method }

// DefineUpload declares a method whose caller sends items. The rules are those of DefineStream.
func DefineUpload[In, Up, Out any](name string, opts ...Option) *Upload[In, Up, Out] {
	return &Upload[In, Up, Out]{defineItems(name, opts, schema.Upload, reflect.TypeFor[In](),
		reflect.TypeFor[Up](), reflect.TypeFor[Out]())}
}

var (
	// streamUp and streamBoth are the streams of an Upload and of a Duplex.
	streamUp   = []hg.StreamSpec{{Up: true}}
	streamBoth = []hg.StreamSpec{{Up: true}, {}}
)

// defineItems defines a method whose caller sends items.
func defineItems(name string, opts []Option, kind schema.Kind, in, up, out reflect.Type) *method {
	m := defineMethod(name, opts, kind, in, up, out)
	switch {
	case slices.ContainsFunc(m.fields, func(f field) bool { return f.sink }):
		panic(fmt.Sprintf("qs: method %s has a Sink in its input; use Define, or send items", name))
	case m.o.inline:
		panic(fmt.Sprintf("qs: method %s has the option Inline, but its handler blocks", name))
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

// A Receiver receives the items of the caller, at the handler. One goroutine at a time uses it,
// until the handler returns.
type Receiver[Up any] struct {
	r     itemReader
	ctx   context.Context // the context of the handler
	req   *request
	s     *hg.Stream
	codec methodCodec
	n     int // number of items received
}

// begin sets up u for the request r.
func (u *Receiver[Up]) begin(r *request, c methodCodec, s *hg.Stream) {
	u.req, u.ctx, u.codec, u.s = r, r, c, s
	u.r.hctx, u.r.maxItem = r.r.HG(), r.n.maxItem()
	s.OnReady(u.r.onBytes)
	u.r.bind(s)
}

// Receive waits for the next item. The error is io.EOF after the last one, when the caller has
// called CloseSend; the cause of the handler's ctx when that is done; or ErrBadInput for an item
// that cannot be decoded. The handler should return it then.
func (u *Receiver[Up]) Receive() (item Up, err error) {
	err = u.ReceiveInto(&item)
	return item, err
}

// ReceiveInto is like Receive, but decodes the next item into *item and reuses its memory as the
// codec does: Msgpack reuses the capacity of a []byte, adds to a map, and does not change fields
// that the item omits ("omitempty"), also in the elements of a list. After an error the contents of
// *item are undefined.
func (u *Receiver[Up]) ReceiveInto(item *Up) error {
	for {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		b, err := u.r.next()
		switch {
		case err == nil:
			u.n++
			err = u.codec.decodeSent(b, item)
			if u.r.releaseItem(); err != nil {
				err = hg.Errorf(ErrBadInput, "qs: method %s: cannot decode item %d of the caller: %w",
					u.req.m.name, u.n, err)
			}
			return err
		case err == io.EOF:
			return err
		case !errors.Is(err, hg.ErrAgain):
			return u.req.explainError(u.ctx, err)
		}
		u.req.notifyBlocking()
		if err = u.s.Wait(u.ctx); err != nil {
			return err
		}
	}
}

// All yields the items as Receive returns them. The last pair has the error, if it is not io.EOF.
func (u *Receiver[Up]) All() iter.Seq2[Up, error] { return iterate(u.Receive) }

// SetTrailer sets a value that the caller gets from Trailer under name, also if the handler returns
// an error. It sets Call.ResponseMetadata, with the rules of WithMetadata. One goroutine at a time
// calls it, before the handler returns. The error matches ErrInvalid or hg.ErrOverflow.
func (u *Receiver[Up]) SetTrailer(name, value string) error {
	c := u.req.callOf(u.req.in, u.req.out)
	m, err := c.ResponseMetadata.With(name, value)
	if err == nil {
		c.ResponseMetadata = m
	}
	return err
}

// iterate yields the results of receive until an error. It does not yield io.EOF.
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

// A DuplexServer is the handler's side of a Duplex. One goroutine at a time receives, and one
// sends. These may be two goroutines, and neither needs to be that of the handler.
//
//   - A handler that also waits for another event, such as Draining or the end of a job, should
//     receive on a second goroutine.
//   - When the handler returns, Receive and Send in other goroutines fail. So a handler can send on a
//     second goroutine, and return an error if the caller does not read.
//   - Receive and Send wait on the handler's own ctx. Canceling a context that the handler derives
//     from it does not end them.
type DuplexServer[Up, Down any] struct {
	Receiver[Up]
	down itemSender[Down]
}

// Send sends an item to the caller. It blocks and fails as send of [Stream.Handle] does.
func (d *DuplexServer[Up, Down]) Send(item Down) error {
	if !d.down.headerSent {
		if err := d.SendHeader(nil); err != nil {
			return err
		}
	}
	return d.down.sendItem(item)
}

var errHeaderLate = hg.Errorf(ErrInvalid, "qs: SendHeader called twice, or after Send")

// SendHeader sends the header, which the caller gets from Header. It must be called at most once,
// before the first Send; otherwise the error matches ErrInvalid. SetTrailer sets what is sent after
// the last item.
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

// Handle registers fn as the handler of d at n, under the rules of Stream.Handle. When fn returns,
// the caller gets the items sent before, and then the end or the error. After that Send of the
// caller fails.
func (d *Duplex[In, Up, Down]) Handle(
	n *Node, fn func(ctx context.Context, in In, s *DuplexServer[Up, Down]) error,
) {
	n.registerHandler(d.m, func(r hg.Request) error {
		q := &typedDuplex[In, Up, Down]{request: request{requestContext: requestContext{n: n, m: d.m, r: r}}}
		q.request.in = &q.in
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		q.s.Receiver.begin(&q.request, n.codecOf(d.m), r.Stream(0))
		return q.s.down.serveRequest(q, &q.request, r.Stream(1), func(ctx context.Context) error {
			q.s.ctx = q.itemContext(ctx)
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

// Handle registers fn as the handler of u at n, under the rules of Method.Handle.
func (u *Upload[In, Up, Out]) Handle(
	n *Node, fn func(ctx context.Context, in In, items *Receiver[Up]) (Out, error),
) {
	n.registerHandler(u.m, func(r hg.Request) error {
		q := &typedUpload[In, Up, Out]{request: request{requestContext: requestContext{n: n, m: u.m, r: r}}}
		q.request.in, q.request.out = &q.in, &q.out
		defer q.endLent()
		if err := q.decodeInput(); err != nil {
			return err
		}
		q.items.begin(&q.request, n.codecOf(u.m), r.Stream(0))
		hghook.ReportRequest(&q.r, q)
		err := q.runHandler(handlingFunc(func(ctx context.Context) (err error) {
			q.items.ctx = q.itemContext(ctx)
			q.out, err = fn(ctx, q.in, &q.items)
			return err
		}))
		if err == nil {
			err = q.setAnswerMeta("", "")
		}
		q.endLent() // before the response is sent
		if err != nil {
			return q.onFailure(err)
		}
		return r.Respond(&q.out, nil)
	}, fn == nil)
}

// A typedUpload is one request for an Upload, with its types.
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

// A streamCall is a call whose streams the program uses: of a Duplex or an Upload.
type streamCall struct {
	outgoingCall
	f              *futureCall // nil for a call without a Peer
	codec          methodCodec
	sendClosed     atomic.Bool // CloseSend or Close was called
	err            error       // error of the last receive: the error of the call, or io.EOF
	headerReceived bool        // header is valid
	header         map[string]string
}

// start begins the call.
func (k *streamCall) start(ctx context.Context, m *method, to Peer) {
	if to.p == nil {
		k.err = errNoPeer(m.name)
		return
	}
	k.codec = to.p.n.codecOf(m)
	k.streams = newCallStreams(m, to.p)
	k.outgoingCall.begin(m, to)
	k.f = begin(ctx, &k.outgoingCall)
}

// sendItem sends an item.
func (k *streamCall) sendItem(item any) error {
	switch {
	case k.f == nil:
		return io.EOF
	case k.sendClosed.Load():
		return errSendClosed
	}
	b, err := encodeItem(k.codec, item)
	if err != nil {
		return fmt.Errorf("qs: method %s: cannot encode the item: %w", k.m.name, err)
	}
	err = k.streams.up.add(k.f.ctx, b)
	if isNodeClosed(err) && k.f.ctx.Err() == nil {
		err = errNodeClosed
	}
	return err
}

// closeSend ends the stream to the handler.
func (k *streamCall) closeSend() {
	if k.f != nil && !k.sendClosed.Swap(true) {
		k.streams.up.closeWrite()
	}
}

// receiveItem waits for the next item, which is valid until the next call.
func (k *streamCall) receiveItem() (b []byte, err error) {
	if k.err != nil {
		return nil, k.err
	}
	b, k.err = k.streams.next(k.f)
	return b, k.err
}

// close ends the call, and waits for its end.
func (k *streamCall) close() {
	k.sendClosed.Store(true)
	if k.f != nil {
		defer k.streams.closeUse()
		k.f.abandonAndWait()
	}
}

// A DuplexCall is a call of a Duplex. One goroutine at a time sends, and one receives. CloseSend
// and Close may be called by any goroutine, at any time.
type DuplexCall[Up, Down any] struct{ k *streamCall }

// Call begins a call of d and returns at once; Receive returns its error. The caller must call
// Close. ctx is the context of the whole call: when it is done, Send and Receive return. Retry
// repeats a call only before the first item in either direction.
func (d *Duplex[In, Up, Down]) Call(ctx context.Context, to Peer, in In) *DuplexCall[Up, Down] {
	k := &streamCall{}
	k.Call.In = &in
	k.start(ctx, d.m, to)
	return &DuplexCall[Up, Down]{k}
}

// Send sends an item. It blocks while the flow-control window of the handler is full, or the
// handler has not begun. Errors are io.EOF if the call has ended, for the reason that Receive
// returns; the cause of ctx; and ErrClosed after CloseSend and Close, and when this node is closed.
func (c *DuplexCall[Up, Down]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseSend ends the items of the caller: the handler receives io.EOF. It does not block. It may be
// called by any goroutine, also during a Send: then the item is sent before the end, or Send returns
// ErrClosed.
func (c *DuplexCall[Up, Down]) CloseSend() { c.k.closeSend() }

// Header waits for the header that the handler sent with SendHeader. It is nil if the handler sent
// an item, or returned, without a header. The error is that of Receive, but not io.EOF. Only the
// goroutine that receives may call it.
func (c *DuplexCall[Up, Down]) Header() (header map[string]string, err error) {
	if err = c.k.receiveHeader(); err == io.EOF {
		err = nil
	}
	return c.k.header, err
}

// Receive waits for the next item. The error is io.EOF after the last one if the handler has
// returned nil, and otherwise that of Method.Call.
func (c *DuplexCall[Up, Down]) Receive() (item Down, err error) {
	err = c.ReceiveInto(&item)
	return item, err
}

// ReceiveInto is like Receive, but decodes the next item into *item, as [Receiver.ReceiveInto]
// does.
func (c *DuplexCall[Up, Down]) ReceiveInto(item *Down) error {
	if err := c.k.receiveHeader(); err != nil {
		return err
	}
	b, err := c.k.receiveItem()
	if err != nil {
		return err
	}
	err = c.k.codec.decodeAnswered(b, item)
	if c.k.streams.down.releaseItem(); err != nil {
		c.k.err = brokenStream(c.k.m, c.k.Peer.Addr(), err)
	}
	return c.k.err
}

// receiveHeader waits for the header, unless it was received before.
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

// Trailer returns the values that the handler set with SetTrailer. It is valid after Receive has
// returned an error.
func (c *DuplexCall[Up, Down]) Trailer() hg.Metadata { return c.k.trailer() }

// trailer returns the metadata of the answer, if it has arrived.
func (k *streamCall) trailer() hg.Metadata {
	if k.f == nil || !k.f.isOver() {
		return hg.Metadata{}
	}
	return k.Call.ResponseMetadata
}

// Close ends the call, which cancels the context of the handler, and waits until the call has
// ended. It may be called at any time, and more than once.
func (c *DuplexCall[Up, Down]) Close() { c.k.close() }

// An UploadCall is a call of an Upload.
type UploadCall[Up, Out any] struct {
	k   *streamCall
	out Out
}

// Call begins a call of u and returns at once; CloseAndReceive returns its error. The caller must
// call CloseAndReceive or Close. ctx is the context of the whole call. Retry repeats a call only
// before the first item.
func (u *Upload[In, Up, Out]) Call(ctx context.Context, to Peer, in In) *UploadCall[Up, Out] {
	c := &UploadCall[Up, Out]{k: &streamCall{}}
	c.k.Call.In, c.k.Call.Out, c.k.reply = &in, &c.out, &c.out
	c.k.start(ctx, u.m, to)
	return c
}

// Send sends an item, as DuplexCall.Send does. After io.EOF CloseAndReceive returns why the call
// has ended.
func (c *UploadCall[Up, Out]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseAndReceive ends the items, waits for the answer, and returns it. The error is that of
// Method.Call.
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

// Trailer returns the values that the handler set with SetTrailer. It is valid after
// CloseAndReceive has returned.
func (c *UploadCall[Up, Out]) Trailer() hg.Metadata { return c.k.trailer() }

// Close ends the call, as DuplexCall.Close does.
func (c *UploadCall[Up, Out]) Close() { c.k.close() }
