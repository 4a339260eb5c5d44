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

// An outgoingCall is a Call at its origin.
//
//	run ─ interceptors ─► attempt: lend ─► hg.Handle.Call ─► take back what was lent: nobody touches it any more
//	                         ▲ again, or beside, by an interceptor that calls next again
type outgoingCall struct {
	Call
	attemptControl
	m            *method
	home         *peer           // that the call began with
	callerCtx    context.Context // what it was given
	reply        any             // where the answer is decoded to
	streams      *callStreams    // of items; else nil
	answerMu     sync.Mutex      // guards what reply points to, into, taken, and what next gives back to a Call
	decodeTarget any             // where the codec decodes the answer to
	answered     bool            // there was an answer
}

func (o *outgoingCall) begin(m *method, to Peer) {
	o.m, o.home = m, to.p
	o.Call.Method, o.Idempotent, o.Peer, o.Attempt, o.ctl, o.lends = m.name, m.o.idempotent, to, 1, &o.attemptControl, len(m.fields) > 0 || o.streams != nil
	o.top.fate = NotRun
}

// run is call that interceptors, a Future and what was lent may take part in.
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

// prepare returns the context of the call, of which the time is bounded until stop, if that is not nil.
func (o *outgoingCall) prepare(ctx context.Context) (_ context.Context, stop context.CancelFunc, err error) {
	if o.Peer.p == nil {
		return ctx, stop, errNoPeer(o.m.name)
	}
	n := o.Peer.p.n
	if n.cfg.CallTimeout > 0 {
		if _, bounded := ctx.Deadline(); !bounded {
			ctx, stop = n.withTimeout(ctx, n.cfg.CallTimeout)
		}
	}
	o.callerCtx = ctx
	if c, ok := ctx.Value(metaKey{}).(metaFromContext); ok {
		if c.err != nil {
			return ctx, stop, &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun, Err: c.err}
		}
		o.Metadata = c.m
	}
	return ctx, stop, nil
}

// allInterceptors returns what wraps the call: those of the node around those of the method.
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

// runInterceptors runs interceptors, and the attempts that they make, in s, which c is of.
func (o *outgoingCall) runInterceptors(ctx context.Context, is []Interceptor, s *callScope, c *Call) (err error) {
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
		if !returned { // it panics, or ends the goroutine
			return
		}
		if err != nil {
			err = o.withFate(ctx, s, o.m.name, err)
		}
	}()
	if len(is) == 0 {
		err = o.callOnce(ctx, s, c)
	} else {
		err = is[0](ctx, c, func(ctx context.Context) error {
			in := &nestedScope{callScope: callScope{parent: s, fate: NotRun}}
			o.answerMu.Lock()
			in.call, in.answersBefore = *c, s.answers
			if c.Out != nil { // others at once have theirs
				own := reflect.New(reflect.TypeOf(c.Out).Elem())
				own.Elem().Set(reflect.ValueOf(c.Out).Elem())
				in.call.Out = own.Interface()
			}
			o.answerMu.Unlock()
			err := errNextLate // if it does not return
			defer func() { o.resultFor(c, s, in, err) }()
			err = o.runInterceptors(ctx, is[1:], &in.callScope, &in.call)
			return err
		})
	}
	returned = true
	return err
}

// resultFor gives an interceptor, which is in s, what is known after next. What an attempt that was overtaken leaves says nothing of the answer:
// neither after an error, nor when another next has succeeded since this one began; and nothing is said once the interceptor has returned.
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

// callOnce makes the call once.
func (o *outgoingCall) callOnce(ctx context.Context, s *callScope, c *Call) (err error) {
	x := exchange{o: o, c: c}
	defer func() { x.finish(&err) }() // deferred: a codec may panic, or end the goroutine
	if err = x.prepareHandle(ctx, s); err != nil {
		return err
	}
	return x.takeAnswer(x.ctx, x.h.Call(x.ctx, x.in, nil))
}

// checkWhole reports why another attempt would not get all that the call lends: what a Reader has given, or a Writer has taken, is gone.
func (o *outgoingCall) checkWhole() error {
	if why := o.spentReason(); why != "" {
		return &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun, Err: na.WithText(ErrInvalid, why)}
	}
	return nil
}

// decodeAnswer decodes the answer that h has got for c. Memory that the caller gave is used once: decoders add to maps, and what is there may
// be the answer.
func (o *outgoingCall) decodeAnswer(c *Call, h *hg.Handle) error {
	if o.reply == nil {
		return nil
	}
	o.answerMu.Lock()
	defer o.answerMu.Unlock()
	again := o.answered
	o.answered = true
	if c.Out == nil || c.Out == o.Call.Out { // there is no interceptor between, and so no other attempt
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

// takeBack takes back what was lent, and says how far the Sinks were filled.
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
