package hg

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Request is one request at its target: a small value that is copied freely, used by any goroutine, and never closed. It
// holds the number of its request. Once that has been answered and its handler has returned, the methods of every copy return
// na.ErrAnswered or zero values, although the record behind it serves another request by then.
type Request struct {
	s   *service
	gen uint64
}

// request returns the request that s serves. Locked, or with a hold.
func (s *service) request() Request { return Request{s, s.gen} }

// lockService locks the record of r. It reports false, with no lock held, when r has ended.
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

// endedError is what methods of a request return that has.
func endedError(op string) error {
	return misuseError(op, "", na.Addr{}, na.ErrAnswered, "the request has ended")
}

// Input decodes the request's input into v. A handler that returns the error answers ErrBadInput. It matches na.ErrAnswered when the
// request has been answered.
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

// badInput is the error of an input that the codec refuses with err.
func (r Request) badInput(rpc *RPC, err error) error {
	return &Error{Op: "input of", RPC: rpc.Name, Peer: r.Peer(), Fate: na.Ran, Err: &codedError{ErrBadInput, err}}
}

// decodePlain is hghook.DecodePlain. While the handler runs, and has not answered, nobody writes what it reads.
func (r *Request) decodePlain(v any) (plain bool, err error) {
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
	if err = rpc.Codec.Decode(b, v); err != nil {
		err = r.badInput(rpc, err)
	}
	return true, err
}

// InputRaw returns the request's encoded input. The bytes are borrowed until the request is answered; one that is not
// detached is answered when its handler returns. With Config.Trace, and under the race detector, they are a copy, which is
// overwritten then.
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
		return nil, nil, misuseError("input of", s.rpcName(), s.addr, na.ErrAnswered, "the request has been answered, its input is gone")
	}
	if !raceflag.Enabled && !s.ctx.class.cfg.Trace {
		return s.input, s.rpc, nil
	}
	if s.inputCopy == nil {
		s.inputCopy = append([]byte{}, s.input...)
	}
	return s.inputCopy, s.rpc, nil
}

// Meta returns the metadata that came with the request. It is empty once the request has been answered.
func (r Request) Meta() Metadata {
	s, ok := r.lockService()
	if !ok {
		return Metadata{}
	}
	defer s.mu.Unlock()
	return Metadata{bytes.Clone(s.meta)}
}

// Peer returns the origin, bound to the session that the request came on.
func (r Request) Peer() (peer na.Addr) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		peer = s.addr
	}
	return peer
}

// Caller returns who sent the request. Once that has been answered only Addr is set, and nothing is verified.
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

// ID returns the id of the RPC.
func (r Request) ID() (id ID) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		id = s.id
	}
	return id
}

// HG returns the context that the request came to.
func (r Request) HG() *Context {
	if r.s == nil {
		return nil
	}
	return r.s.ctx
}

// SetData keeps a value of the program's with the request.
func (r Request) SetData(v any) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		s.data = v
	}
}

// Data returns what SetData kept.
func (r Request) Data() (v any) {
	if s, ok := r.lockService(); ok {
		defer s.mu.Unlock()
		v = s.data
	}
	return v
}

// TimeLeft returns how much of the time that the origin has given the call is left; ok is false when it has set no
// timeout, or one that does not fit the header: see [Handle.SetTimeout]. It is at least 1 ns, so that a handler that makes a call of its own can give it to SetTimeout.
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

// Context returns a context.Context for the work of a handler. It ends
//
//   - at the deadline that the origin has set, with context.DeadlineExceeded;
//   - when the origin abandons the call, with a cause that matches context.Canceled;
//   - when the session with the origin ends, with one that matches ErrPeerLost;
//   - when the queue is closed, with one that matches ErrClosed;
//   - when the request has ended, with one that matches context.Canceled.
//
// Otherwise ctx.Err is context.Canceled; context.Cause tells which it was. An origin abandons the call when its own time is up,
// which by the clocks here may be a little before the deadline: an abandon when little of the time is left, an eighth, but at least 1 ms and
// at most 250 ms, ends the context as the deadline does. A handler that returns early because of it
// returns an error or responds as always, and the response may be of use to nobody.
//
// The same context is returned each time. It is made by the first call: a handler that does not ask for it pays nothing.
// It ends in Trigger, so a handler that waits for it without driving Progress and Trigger needs another goroutine that
// does. Its Deadline is that by the clock on the wall, as it was when the context was made; nothing goes by it, and
// [Request.TimeLeft] is exact. It has none where TimeLeft knows of none. A Request that has ended returns a context that has ended, too.
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

// Detach lets the handler return before the request is answered. The program that detaches answers once, from any goroutine.
// Until then the request counts as active and its input stays. The library answers if nobody does: ErrTimeout at the deadline,
// na.ErrNoResponse when the class shuts down; with the session of the origin the request ends. Trigger logs, once a minute, which
// requests have been detached for longer than that. The error matches na.ErrAnswered when
// the request has been answered, and ErrUnsupported for a one-way RPC.
func (r Request) Detach() error {
	s, ok := r.lockService()
	if !ok {
		return endedError("detach")
	}
	s.ctx.watchFaults() // before the session is looked at, in over
	defer s.mu.Unlock()
	if err := s.checkAnswerableLocked("detach"); err != nil {
		return err
	}
	s.detached, s.sent, s.detachedAt = true, na.Result{}, s.ctx.Now()
	s.ctx.scheduleOverdueLog()
	s.armTimerLocked(s.deadline)
	return nil
}

// nameOf returns the name of an RPC, or its id if it is not known.
func nameOf(id ID, rpc *RPC) string {
	if rpc == nil {
		return fmt.Sprintf("%#x", uint64(id))
	}
	return rpc.Name
}
