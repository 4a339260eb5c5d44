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

// A Duplex is a method whose caller and handler exchange items for the duration of the call, such
// as a chat, a watch with a changing filter, or a pipeline. It is typically a package-level
// variable imported by both client and server.
//
// The caller passes a single In to Call, sends items of type Up, and receives items of type Down.
// The handler receives io.EOF after the last Up item, once the caller has called CloseSend. The
// caller receives the handler's error, or io.EOF if that is nil, after the last Down item.
//
// In each direction, items are delivered in order, exactly once. The two directions are
// independent. Batching, flow control and limits are the same as for a Stream.
type Duplex[In, Up, Down any] struct{ m *method }

// DefineDuplex declares a method with items in both directions. The rules of DefineStream apply.
func DefineDuplex[In, Up, Down any](name string, opts ...Option) *Duplex[In, Up, Down] {
	return &Duplex[In, Up, Down]{defineItems(name, opts, schema.Duplex, reflect.TypeFor[In](),
		reflect.TypeFor[Up](), reflect.TypeFor[Down]())}
}

// An Upload is a method whose caller sends items and whose handler returns a single output, for
// example to load rows or count samples. To send memory, a file or the contents of an io.Reader,
// use a Source instead. An Upload is typically a package-level variable imported by both client and
// server.
type Upload[In, Up, Out any] struct{ m *method }

// DefineUpload declares a method whose caller sends items. The rules of DefineStream apply.
func DefineUpload[In, Up, Out any](name string, opts ...Option) *Upload[In, Up, Out] {
	return &Upload[In, Up, Out]{defineItems(name, opts, schema.Upload, reflect.TypeFor[In](),
		reflect.TypeFor[Up](), reflect.TypeFor[Out]())}
}

var (
	// Streams of an Upload and of a Duplex.
	streamUp   = []hg.StreamSpec{{Up: true}}
	streamBoth = []hg.StreamSpec{{Up: true}, {}}
)

// defineItems declares a method of the given kind whose caller sends items.
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

// Name returns the name of the method, as found in Call.Method.
func (d *Duplex[In, Up, Down]) Name() string { return d.m.name }

// Name returns the name of the method, as found in Call.Method.
func (u *Upload[In, Up, Out]) Name() string { return u.m.name }

// A Receiver receives the caller's items in the handler. It is not safe for concurrent use and must
// not be used after the handler has returned.
type Receiver[Up any] struct {
	r     itemReader
	ctx   context.Context // context passed to the handler
	req   *request
	s     *hg.Stream
	codec methodCodec
	n     int // number of items received so far
}

// begin initializes u to receive the items of r from s. c is the codec of the items.
func (u *Receiver[Up]) begin(r *request, c methodCodec, s *hg.Stream) {
	u.req, u.ctx, u.codec, u.s = r, r, c, s
	u.r.hctx, u.r.maxItem = r.r.HG(), r.n.maxItem()
	s.OnReady(u.r.onBytes)
	u.r.bind(s)
}

// Receive waits for the next item and returns it. It returns io.EOF after the last item, once the
// caller has called CloseSend. If the handler's ctx is done, it returns the cause of ctx. If the
// item cannot be decoded, it returns an error that matches ErrBadInput, which the handler should
// return.
func (u *Receiver[Up]) Receive() (item Up, err error) {
	err = u.ReceiveInto(&item)
	return item, err
}

// ReceiveInto is like Receive but decodes the next item into *item. How the memory of *item is
// reused depends on the codec. Msgpack reuses the capacity of a []byte, adds to a map, and does not
// change fields that were omitted by the sender ("omitempty"), even in the elements of a list.
// After an error, the contents of *item are undefined.
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

// All returns an iterator over the remaining items. If Receive fails with an error other than
// io.EOF, the last pair holds that error.
func (u *Receiver[Up]) All() iter.Seq2[Up, error] { return iterate(u.Receive) }

// SetTrailer sets the value for name that Trailer returns to the caller. The value is sent even if
// the handler returns an error. It becomes part of Call.ResponseMetadata, and the rules of
// WithMetadata apply to it. SetTrailer must not be called concurrently or after the handler has
// returned. Errors match ErrInvalid or hg.ErrOverflow.
func (u *Receiver[Up]) SetTrailer(name, value string) error {
	c := u.req.callOf(u.req.in, u.req.out)
	m, err := c.ResponseMetadata.With(name, value)
	if err == nil {
		c.ResponseMetadata = m
	}
	return err
}

// iterate returns an iterator that yields the results of receive. It ends after the first error,
// which it yields unless it is io.EOF.
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

// A DuplexServer is the handler's side of a Duplex. At most one goroutine may receive and one may
// send at a time. They may be different goroutines, and neither has to be the one that runs the
// handler.
//
//   - A handler that also waits for another event, such as Draining or the completion of a job,
//     should receive in a second goroutine.
//   - When the handler returns, Receive and Send fail in other goroutines. A handler can therefore
//     send in a second goroutine and return an error if the caller does not read.
//   - Receive and Send wait until the ctx passed to the handler is done. They are not affected by
//     the cancellation of a context derived from it.
type DuplexServer[Up, Down any] struct {
	Receiver[Up]
	down itemSender[Down]
}

// Send sends an item to the caller. It blocks and returns errors like the send function in
// [Stream.Handle].
func (d *DuplexServer[Up, Down]) Send(item Down) error {
	if !d.down.headerSent {
		if err := d.SendHeader(nil); err != nil {
			return err
		}
	}
	return d.down.sendItem(item)
}

var errHeaderLate = hg.Errorf(ErrInvalid, "qs: SendHeader called twice, or after Send")

// SendHeader sends the header, which Header returns to the caller. It must be called at most once
// and before the first Send; otherwise it returns an error that matches ErrInvalid. To send
// metadata after the last item, use SetTrailer.
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

// Handle registers fn as the handler for d on n. The rules of Stream.Handle apply. When fn returns,
// the caller receives the remaining items, followed by io.EOF or the error that fn returned, and its
// later calls of Send fail.
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

// A typedDuplex is a request of a Duplex, at the target.
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

// Handle registers fn as the handler for u on n. The rules of Method.Handle apply.
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
		q.endLent() // must happen before the response is sent
		if err != nil {
			return q.onFailure(err)
		}
		return r.Respond(&q.out, nil)
	}, fn == nil)
}

// A typedUpload is a request of an Upload, at the target.
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

// A streamCall is a call of a Duplex or an Upload, at the origin.
type streamCall struct {
	outgoingCall
	f     *futureCall // nil if the call was made on the zero Peer
	codec methodCodec
	// sendEnd is the error of later Sends: errSendClosed after CloseSend or Close, or the error of the
	// item that Send refused, which ended the call. It is nil until one of these happens first.
	sendEnd        atomic.Pointer[error]
	err            error // result of the last receive: nil, io.EOF, or the error of the call
	headerReceived bool  // the header has been received
	header         map[string]string
}

// start starts the call. If to is the zero Peer, it sets k.err instead.
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

// sendItem encodes and sends the value to which item points, blocking while the window is full. If
// the item is too large or cannot be encoded, sendItem ends the call with that error. Otherwise the
// handler would take the items before it for all, if the caller then closed the stream.
func (k *streamCall) sendItem(item any) error {
	if k.f == nil {
		return io.EOF
	}
	if end := k.sendEnd.Load(); end != nil {
		return *end
	}
	b, err := encodeItem(k.codec, item)
	if err != nil {
		return k.refuseItem(fmt.Errorf("qs: method %s: cannot encode the item: %w", k.m.name, err))
	}
	switch err = k.streams.up.add(k.f.ctx, b); {
	case isNodeClosed(err) && k.f.ctx.Err() == nil:
		return errNodeClosed
	case errors.Is(err, hg.ErrOverflow):
		return k.refuseItem(err)
	}
	return err
}

// refuseItem ends the call because of err, unless another goroutine has called CloseSend in the
// meantime, the call's ctx is done, or the call has completed. It returns the error of Send.
func (k *streamCall) refuseItem(err error) error {
	end := k.sendEnd.Load()
	switch {
	case end != nil:
		return *end
	case k.f.ctx.Err() != nil:
		return context.Cause(k.f.ctx)
	case k.streams.sendError() != nil:
		return k.streams.sendError()
	case !k.sendEnd.CompareAndSwap(nil, &err):
		return *k.sendEnd.Load()
	}
	k.f.cancel(err)
	return err
}

// closeSend closes the stream to the handler, unless that has been done or an item has been refused.
// If the call's ctx is done or the call has completed, Send may have rejected items, and the handler
// must not receive io.EOF as if it had received all of them. The stream is then left open, and the
// end of the call resets it.
func (k *streamCall) closeSend() {
	if k.f != nil && k.sendEnd.CompareAndSwap(nil, &errSendClosed) && k.f.ctx.Err() == nil && k.streams.sendError() == nil {
		k.streams.up.closeWrite()
	}
}

// receiveItem waits for the next item and returns it in encoded form. It is valid until the next
// call to receiveItem.
func (k *streamCall) receiveItem() (b []byte, err error) {
	if k.err != nil {
		return nil, k.err
	}
	b, k.err = k.streams.next(k.f)
	return b, k.err
}

// close ends the call and waits for it to complete.
func (k *streamCall) close() {
	k.sendEnd.CompareAndSwap(nil, &errSendClosed)
	if k.f != nil {
		defer k.streams.closeUse()
		k.f.abandonAndWait()
	}
}

// A DuplexCall represents a call of a Duplex. At most one goroutine may send and one may receive at
// a time. CloseSend and Close may be called from any goroutine at any time.
type DuplexCall[Up, Down any] struct{ k *streamCall }

// Call starts a call of d and returns immediately. Errors of the call are returned by Receive. The
// caller must call Close. ctx applies to the entire call: when it is done, Send and Receive return.
// Retry repeats a call only if no item has been transferred in either direction.
func (d *Duplex[In, Up, Down]) Call(ctx context.Context, to Peer, in In) *DuplexCall[Up, Down] {
	k := &streamCall{}
	k.Call.In = &in
	k.start(ctx, d.m, to)
	return &DuplexCall[Up, Down]{k}
}

// Send sends an item to the handler. It returns once the item is buffered, so nil does not mean that
// the handler has received it, has begun, or exists. It blocks while the buffer, of about 32 KiB, is
// full because the handler's flow-control window is full or the handler has not begun. It returns
// io.EOF if the call has completed; Receive then returns the reason. If ctx is done, it returns the
// cause of ctx. After CloseSend or Close, or if the local node is closed, the error matches
// ErrClosed. If the item is too large or cannot be encoded, Send returns an error and ends the call,
// and Receive returns an error that matches the same one, unless ctx is done, the call has
// completed, or CloseSend was called, whose errors come first.
func (c *DuplexCall[Up, Down]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseSend closes the caller's direction of the call. The handler receives io.EOF after the last
// item, or an error if ctx is done. CloseSend does not block. It may be called from any goroutine,
// even during a Send. In that case, either the item is still sent or Send returns an error that
// matches ErrClosed.
func (c *DuplexCall[Up, Down]) CloseSend() { c.k.closeSend() }

// Header waits for the header sent by the handler with SendHeader and returns it. It is nil if the
// handler sent an item or returned without sending a header. Errors are those of Receive, except
// for io.EOF. Header may only be called by the goroutine that receives.
func (c *DuplexCall[Up, Down]) Header() (header map[string]string, err error) {
	if err = c.k.receiveHeader(); err == io.EOF {
		err = nil
	}
	return c.k.header, err
}

// Receive waits for the next item and returns it. After the last item it returns io.EOF if the
// handler returned nil. Other errors are those documented for Method.Call.
func (c *DuplexCall[Up, Down]) Receive() (item Down, err error) {
	err = c.ReceiveInto(&item)
	return item, err
}

// ReceiveInto is like Receive but decodes the next item into *item, as [Receiver.ReceiveInto] does.
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

// receiveHeader waits for the header unless it has already been received.
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

// All returns an iterator over the remaining items. If Receive fails with an error other than
// io.EOF, the last pair holds that error.
func (c *DuplexCall[Up, Down]) All() iter.Seq2[Down, error] { return iterate(c.Receive) }

// Trailer returns the values set by the handler with SetTrailer. It is valid once Receive has
// returned an error.
func (c *DuplexCall[Up, Down]) Trailer() hg.Metadata { return c.k.trailer() }

// trailer returns the metadata of the response, or the zero Metadata if the call has not completed.
func (k *streamCall) trailer() hg.Metadata {
	if k.f == nil || k.streams.sendError() == nil {
		return hg.Metadata{}
	}
	return k.Call.ResponseMetadata
}

// Close ends the call, cancels the handler's context, and waits for the call to complete. It may be
// called at any time and more than once.
func (c *DuplexCall[Up, Down]) Close() { c.k.close() }

// An UploadCall represents a call of an Upload.
type UploadCall[Up, Out any] struct {
	k   *streamCall
	out Out
}

// Call starts a call of u and returns immediately. Errors of the call are returned by
// CloseAndReceive. The caller must call CloseAndReceive or Close. ctx applies to the entire call.
// Retry repeats a call only if no item has been transferred.
func (u *Upload[In, Up, Out]) Call(ctx context.Context, to Peer, in In) *UploadCall[Up, Out] {
	c := &UploadCall[Up, Out]{k: &streamCall{}}
	c.k.Call.In, c.k.Call.Out, c.k.reply = &in, &c.out, &c.out
	c.k.start(ctx, u.m, to)
	return c
}

// Send sends an item to the handler, as DuplexCall.Send does. If it returns io.EOF, CloseAndReceive
// returns the reason.
func (c *UploadCall[Up, Out]) Send(item Up) error { return c.k.sendItem(&item) }

// CloseAndReceive signals the end of the items, waits for the output, and returns it. Errors are
// those documented for Method.Call. If ctx is done, the handler receives an error instead of the
// end of the items.
func (c *UploadCall[Up, Out]) CloseAndReceive() (out Out, err error) {
	if c.k.f == nil {
		return out, c.k.err
	}
	c.k.closeSend()
	defer c.k.streams.closeUse()
	if err = c.k.f.wait(context.Background()); err == nil { // not the caller's ctx, because the call itself ends when that is done
		err = c.k.f.err
	}
	if err != nil {
		return out, err
	}
	return c.out, nil
}

// Trailer returns the values set by the handler with SetTrailer. It is valid once CloseAndReceive
// has returned.
func (c *UploadCall[Up, Out]) Trailer() hg.Metadata { return c.k.trailer() }

// Close ends the call and waits for it to complete, as DuplexCall.Close does.
func (c *UploadCall[Up, Out]) Close() { c.k.close() }
