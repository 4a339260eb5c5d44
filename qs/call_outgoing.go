package qs

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An outgoingCall is a Call at the node that makes it. run calls the interceptors, and each call of
// next by the innermost one makes an attempt, which is an exchange. Attempts may be made
// concurrently.
type outgoingCall struct {
	Call
	attemptControl
	m *method
	// home is the state of the Peer with which the call began. Interceptors may change Call.Peer.
	home      *peer
	callerCtx context.Context // the caller's context, bounded by Config.CallTimeout
	reply     any             // destination of the decoded response; nil if there is none
	streams   *callStreams    // item streams; nil for a plain method
	// answerMu guards *reply, decodeTarget, answered, and the results that next copies back to a
	// Call.
	answerMu     sync.Mutex
	decodeTarget any  // destination to which the codec decodes the current response
	answered     bool // an attempt has received a response
}

// begin sets up a call of m at to.
func (o *outgoingCall) begin(m *method, to Peer) {
	o.m, o.home = m, to.p
	o.Call.Method, o.Idempotent, o.Peer, o.Attempt, o.ctl, o.lends = m.name, m.o.idempotent, to, 1,
		&o.attemptControl, len(m.fields) > 0 || o.streams != nil
	o.top.fate = NotRun
}

// run makes a call that callPlain cannot handle: one with interceptors, a Future, streams or lent
// memory.
func (o *outgoingCall) run(ctx context.Context) (err error) {
	ctx, stop, err := o.prepare(ctx)
	if stop != nil {
		defer stop()
	}
	if err != nil {
		return err
	}
	return o.runInterceptors(ctx, o.allInterceptors(o.home.n), &o.top, &o.Call)
}

// prepare checks that the call has a Peer, reads the metadata of ctx, and returns the context for
// the call. That context is bounded by Config.CallTimeout if ctx has no deadline. The caller must
// call stop if it is not nil, even after an error.
func (o *outgoingCall) prepare(
	ctx context.Context,
) (_ context.Context, stop context.CancelFunc, err error) {
	if o.Peer.p == nil {
		return ctx, stop, errNoPeer(o.m.name)
	}
	n := o.Peer.p.n
	if n.cfg.CallTimeout > 0 && o.streams == nil { // streams have no default timeout
		if _, bounded := ctx.Deadline(); !bounded {
			ctx, stop = n.withTimeout(ctx, n.cfg.CallTimeout)
		}
	}
	o.callerCtx = ctx
	meta := metaOf(ctx)
	if meta.err != nil {
		return ctx, stop, o.notRun(meta.err)
	}
	o.Metadata = meta.m
	return ctx, stop, nil
}

// notRun returns the error of a call whose request was not sent because of err.
func (o *outgoingCall) notRun(err error) error {
	return &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun, Err: err}
}

// allInterceptors returns the interceptors of the call, outermost first: those of the node, then
// those of the method.
func (o *outgoingCall) allInterceptors(n *Node) []Interceptor {
	switch ofNode, ofMethod := n.cfg.ClientInterceptors, o.m.o.interceptors; {
	case len(ofMethod) == 0:
		return ofNode
	case len(ofNode) == 0:
		return ofMethod
	default:
		return slices.Concat(ofNode, ofMethod)
	}
}

// runInterceptors calls the first interceptor in is with c. Each call of next by that interceptor
// runs the remaining ones in a nested scope. If is is empty, runInterceptors makes one attempt.
// When it returns, no attempt in s is in flight.
func (o *outgoingCall) runInterceptors(
	ctx context.Context, is []Interceptor, s *callScope, c *Call,
) (err error) {
	returned := false
	defer func() {
		if quiet := o.closeScope(s); quiet != nil {
			_ = o.home.n.awaitDone(context.Background(), o.home.i, quiet)
		}
		if len(is) > 0 {
			o.answerMu.Lock()
			s.settled = true
			o.answerMu.Unlock()
		}
		if !returned { // an interceptor panicked or called runtime.Goexit
			return
		}
		if err != nil {
			err = o.withFate(ctx, s, o.m.name, err)
		}
	}()
	if len(is) == 0 {
		err = o.callOnce(ctx, s, c)
	} else {
		err = is[0](ctx, c, func(next context.Context) error {
			in := &nestedScope{callScope: callScope{parent: s, fate: NotRun}}
			o.answerMu.Lock()
			in.call, in.answersBefore = *c, s.answers
			if c.Out != nil { // concurrent calls of next must not share an output
				own := reflect.New(reflect.TypeOf(c.Out).Elem())
				own.Elem().Set(reflect.ValueOf(c.Out).Elem())
				in.call.Out = own.Interface()
			}
			o.answerMu.Unlock()
			err := errNextLate // remains if runInterceptors panics or the goroutine exits
			defer func() { o.resultFor(c, s, in, err) }()
			if err = in.call.addMetadata(ctx, next); err != nil {
				err = o.notRun(err)
				return err
			}
			err = o.runInterceptors(next, is[1:], &in.callScope, &in.call)
			return err
		})
	}
	returned = true
	return err
}

// resultFor copies the results of one call of next from in to the Call that the interceptor
// received. err is the error of next, and s is the scope of the interceptor. If several calls of
// next run concurrently, only the results of the first response are copied. The results of a failed
// attempt are not copied once another attempt has received a response. resultFor copies nothing
// once the interceptor has returned.
func (o *outgoingCall) resultFor(to *Call, s *callScope, in *nestedScope, err error) {
	o.answerMu.Lock()
	defer o.answerMu.Unlock()
	if s.settled {
		return
	}
	from := &in.call
	to.Attempt, to.retryDepth = max(to.Attempt, from.Attempt), max(to.retryDepth, from.retryDepth)
	switch {
	case err == nil && s.answers == in.answersBefore:
		s.answers++
		if to.Out != nil && from.Out != nil {
			reflect.ValueOf(to.Out).Elem().Set(reflect.ValueOf(from.Out).Elem())
		}
	case err == nil || o.answered:
		return
	}
	to.ResponseMetadata, to.BytesMoved = from.ResponseMetadata, from.BytesMoved
}

// callOnce makes one attempt in scope s and returns its error.
func (o *outgoingCall) callOnce(ctx context.Context, s *callScope, c *Call) (err error) {
	x := exchange{o: o, c: c}
	defer func() { x.finish(&err) }() // deferred because a codec may panic or call runtime.Goexit
	if err = x.prepareHandle(ctx, s); err != nil {
		return err
	}
	return x.takeAnswer(x.ctx, x.h.Call(x.ctx, x.in, nil))
}

// checkWhole returns an error if another attempt could not transfer all bytes, because an earlier
// attempt has read some from a Reader or written some to a Writer.
func (o *outgoingCall) checkWhole() error {
	if why := o.spentReason(); why != "" {
		return &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun,
			Err: na.WithText(ErrInvalid, why)}
	}
	return nil
}

// decodeAnswer decodes the response of h. It decodes directly into the caller's memory at most
// once, because codecs add to existing maps and the memory may hold the result of another attempt.
func (o *outgoingCall) decodeAnswer(c *Call, h *hg.Handle) error {
	if o.reply == nil {
		return nil
	}
	o.answerMu.Lock()
	defer o.answerMu.Unlock()
	again := o.answered
	o.answered = true
	if c.Out == nil || c.Out == o.Call.Out { // without an interceptor there is only one attempt
		o.decodeTarget = o.reply
		return h.Output((*decodedOutput)(o))
	}
	out := reflect.ValueOf(c.Out).Elem()
	if again {
		out.SetZero()
	}
	o.decodeTarget = c.Out
	return h.Output((*decodedOutput)(o))
}

// takeBack revokes the lent memory, waits until it is no longer in use, and records the number of
// bytes written to each Sink. err is the error of the attempt. takeBack returns it, or an error
// that replaces it.
func (l *loanSet) takeBack(o *outgoingCall, c *Call, err error) error {
	left := false
	for _, g := range l.pumps {
		left = g.close() || left
		if _, failed := g.pumpedBytes(); failed != nil && err != nil && !errors.Is(err, failed) {
			err = failedBy(err, failed)
		}
	}
	o.answerMu.Lock()
	defer o.answerMu.Unlock()
	c.BytesMoved = l.movedBytes()
	o.addSpent(l.spentBytes(), left)
	for _, h := range l.handles {
		l.revokeHandle(h)
	}
	for _, g := range l.pumps {
		g.release()
	}
	for _, m := range l.files {
		_ = m.Close()
	}
	if err == nil {
		err = l.fillSinks()
	}
	for _, s := range l.sinks {
		switch {
		case s.fileSink != nil:
			s.fileSink.used.Store(false)
		case s.into == nil:
			s.used.Store(false)
		}
	}
	return err
}
