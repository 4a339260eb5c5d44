package hg

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Request is a request at its target. It is a small value that may be copied, is safe for
// concurrent use, and need not be closed. Once the request has been answered and its handler has
// returned, the methods of all copies return na.ErrAnswered or zero values.
type Request struct {
	s   *service
	gen uint64
}

// request returns a Request for the request that s is serving. The caller must hold s.mu or a
// reference to s.
func (s *service) request() Request { return Request{s, s.gen} }

// lockService locks the record of r and returns it. If r has ended, it returns false and the record
// is not locked.
func (r Request) lockService() (*service, bool) {
	if r.s == nil {
		return nil, false
	}
	r.s.mu.Lock()
	if r.s.gen != r.gen {
		r.s.mu.Unlock()
		return nil, false
	}
	return r.s, true
}

// endedError returns the error with which the method op fails if the request has ended.
func endedError(op string) error {
	return misuseError(op, "", na.Addr{}, na.ErrAnswered, "the request has ended")
}

// Input decodes the request's input into v. If a handler returns the error of Input, the response
// is ErrBadInput. The error matches na.ErrAnswered if the request has been answered.
func (r Request) Input(v any) error {
	b, rpc, err := r.inputRaw()
	if err != nil {
		return err
	}
	if err := rpc.Codec.Decode(b, v); err != nil {
		return r.badInput(rpc, err)
	}
	return nil
}

// badInput returns the error for an input of rpc that the codec could not decode because of err.
func (r Request) badInput(rpc *RPC, err error) error {
	return &Error{Op: "input of", RPC: rpc.Name, Peer: r.Peer(), Fate: na.Ran, Err: &codedError{ErrBadInput, err}}
}

// decodePlain implements hghook.DecodePlain. It acquires no lock, because the fields that it reads
// are not written before the running handler responds.
func (r *Request) decodePlain(decode func(b []byte, v any) error, v any) (plain bool, err error) {
	s := r.s
	if s.named.count > 0 || len(s.meta) > 0 {
		return false, nil
	}
	b, rpc := s.input, s.rpc
	if raceflag.Enabled || s.ctx.class.cfg.Trace {
		if b, _, err = r.inputRaw(); err != nil {
			return true, err
		}
	}
	if err = decode(b, v); err != nil {
		err = r.badInput(rpc, err)
	}
	return true, err
}

// InputRaw returns the request's encoded input. The bytes are valid until the request is answered.
// A request that is not detached is answered no later than when its handler returns. With
// Config.Trace, and under the race detector, the bytes are a copy that is then overwritten.
func (r Request) InputRaw() ([]byte, error) {
	b, _, err := r.inputRaw()
	return b, err
}

func (r Request) inputRaw() ([]byte, *RPC, error) {
	s, ok := r.lockService()
	if !ok {
		return nil, nil, endedError("input")
	}
	defer s.mu.Unlock()
	if s.env != nil && s.phase < serviceRunning {
		return nil, nil, s.notRun("input of")
	}
	if s.env == nil {
		return nil, nil, misuseError("input of", s.rpcName(), s.addr, na.ErrAnswered, "the request has been answered and its input released")
	}
	if !raceflag.Enabled && !s.ctx.class.cfg.Trace {
		return s.input, s.rpc, nil
	}
	if s.inputCopy == nil {
		s.inputCopy = append([]byte{}, s.input...)
	}
	return s.inputCopy, s.rpc, nil
}

// Meta returns the request's metadata. It is empty once the request has been answered.
func (r Request) Meta() Metadata {
	s, ok := r.lockService()
	if !ok {
		return Metadata{}
	}
	defer s.mu.Unlock()
	return Metadata{bytes.Clone(s.meta)}
}

// Peer returns the address of the origin, bound to the session on which the request arrived.
func (r Request) Peer() (peer na.Addr) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		peer = s.addr
	}
	return peer
}

// Caller returns the sender of the request. Once the request has been answered, only Addr is set
// and nothing is verified.
func (r Request) Caller() (from Caller) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		from.Addr = s.addr
		if s.env != nil {
			from.Identity = s.env.Identity()
		}
	}
	return from
}

// Name returns the name of the RPC.
func (r Request) Name() (name string) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		name = s.rpcName()
	}
	return name
}

// ID returns the ID of the RPC.
func (r Request) ID() (id ID) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		id = s.id
	}
	return id
}

// HG returns the context at which the request arrived.
func (r Request) HG() *Context {
	if r.s == nil {
		return nil
	}
	return r.s.ctx
}

// SetData stores an arbitrary value in the request.
func (r Request) SetData(v any) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		s.data = v
	}
}

// Data returns the value stored by SetData, or nil if there is none.
func (r Request) Data() (v any) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		v = s.data
	}
	return v
}

// TimeLeft returns the time left until the origin's deadline. ok is false if the request has no
// deadline, either because the origin set no timeout, or because the timeout does not fit in the
// header (see [Handle.SetTimeout]). left is at least 1 ns, so it can be passed to SetTimeout.
func (r Request) TimeLeft() (left time.Duration, ok bool) {
	s, ok := r.lockService()
	if !ok {
		return 0, false
	}
	defer s.mu.Unlock()
	if s.deadline == 0 {
		return 0, false
	}
	return max(s.deadline-s.ctx.Now(), 1), true
}

// Context returns a context.Context for the handler's work. It is canceled
//
//   - at the deadline of the request, with context.DeadlineExceeded;
//   - when the origin abandons the call, with a cause that matches context.Canceled;
//   - when the session with the origin ends, with a cause that matches ErrPeerLost;
//   - when the context or class is closed, with a cause that matches ErrClosed;
//   - when the request has ended, with a cause that matches context.Canceled.
//
// Except at the deadline, ctx.Err() is context.Canceled. Use context.Cause to distinguish the
// cases. An origin abandons the call when its own deadline passes, which may be slightly early by
// the target's clock. An abandonment when no more than an eighth of the time is left (but no less
// than 1 ms and no more than 250 ms) therefore ends the context as the deadline does. A handler
// that returns early for this reason returns an error or responds as usual; the response may be
// dropped.
//
// Every call returns the same context. It is created by the first call, so a handler that does not
// use it incurs no cost. It is canceled in Trigger, so a handler that waits for it without driving
// Progress and Trigger needs another goroutine that does. The context has a Deadline only if
// TimeLeft returns one. Deadline returns the wall time that corresponded to the deadline when the
// context was created. It is informational; [Request.TimeLeft] is exact. If the Request has ended,
// the returned context is already canceled.
func (r Request) Context() context.Context {
	s, ok := r.lockService()
	if !ok {
		return endedContext
	}
	g := s.handlerCtx
	fresh := g == nil
	if fresh {
		g = s.newHandlerContextLocked()
		s.handlerCtx = g
	}
	s.mu.Unlock()
	if fresh {
		g.checkEnded()
	}
	return g.ctx
}

// endedContext is the context of requests that have ended.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errRequestEnded)
	return ctx
}()

// Detach allows the handler to return before the request is answered. The program must then respond
// exactly once, from any goroutine. Until then the request counts as active and its input stays
// valid. If the program does not respond, the library responds with ErrTimeout at the deadline, or
// with na.ErrNoResponse when the class shuts down. If the origin's session ends, so does the
// request. Trigger logs requests that have been detached for more than a minute, once per minute.
// The error matches na.ErrAnswered if the request has been answered, and ErrUnsupported for a
// one-way RPC.
func (r Request) Detach() error {
	s, ok := r.lockService()
	if !ok {
		return endedError("detach")
	}
	s.ctx.watchFaults() // before releaseHold checks the session
	defer s.mu.Unlock()
	if err := s.checkAnswerableLocked("detach"); err != nil {
		return err
	}
	s.detached, s.sent, s.detachedAt = true, na.Result{}, s.ctx.Now()
	s.ctx.scheduleOverdueLog()
	s.armTimerLocked(s.deadline)
	return nil
}

// nameOf returns the name of an RPC, or its ID in hexadecimal if it is not registered.
func nameOf(id ID, rpc *RPC) string {
	if rpc == nil {
		return fmt.Sprintf("%#x", uint64(id))
	}
	return rpc.Name
}
