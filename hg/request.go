package hg

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/internal/states"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// arrived takes in a request: it finds the RPC, fetches an input that did not fit the message, and queues the handler.
func (c *Context) arrived(_ *na.Op, r na.Result) {
	if r.Err != nil {
		c.closed()
		return
	}
	h := c.newTarget(r.Envelope)
	if c.nctx.RecvUnexpected(c.recv) != nil {
		h.release()
		c.closed()
		return
	}
	s := h.service
	req, meta, payload, err := parseRequest(r.Envelope.Data)
	h.id, h.rpc = req.id, c.class.rpcs.find(req.id)
	s.oneWay, s.meta, s.codec = req.flags&flagOneWay != 0, meta, req.codec
	h.setBudget(req.budget)
	switch {
	case err != nil:
	case c.nctx.Draining():
		err = errClosing
	case h.rpc == nil || h.rpc.Handler == nil:
		err = c.class.rpcs.unknown(req.id, c.class.cfg.Authorize == nil)
	case h.rpc.OneWay != s.oneWay:
		err = na.WithText(ErrProtocol, fmt.Sprintf("RPC %q is one-way on one side only", h.rpc.Name))
	case h.late():
		err = errLate
	default:
		err = takes(h.rpc.Codec, req.codec)
	}
	if req.flags&flagMore != 0 && len(payload) > 0 {
		key, keyErr := bodyKey(payload, req.size)
		switch {
		case keyErr != nil && err == nil:
			err = keyErr
		case keyErr != nil:
		case err != nil:
			c.nctx.GiveBack(h.addr, key)
		case key.Len > c.class.cfg.MaxInput:
			err = na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes, the target's Config.MaxInput is %d", key.Len, c.class.cfg.MaxInput))
			c.nctx.GiveBack(h.addr, key)
		case c.class.cfg.Authorize != nil:
			s.more, s.body = true, key
		default:
			if err = h.fetchInput(key); err == nil {
				return
			}
		}
	}
	if err != nil {
		h.reject(err)
		return
	}
	if !s.more {
		s.input = payload
	}
	_ = c.PostTask(&s.dispatch)
}

// closed runs when the context has been closed: nothing waits for room any more, and handlers hear of it.
func (c *Context) closed() {
	c.advance()
	c.handlings.end(nil, errClosed)
}

// fetchInput fetches an input that did not fit the message. It has given the body back if there is an error.
func (h *Handle) fetchInput(key na.Key) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arm()
	s := h.service
	s.found(evFetch)
	if s.pull, err = h.ctx.fetch(h.addr, key, h.inputFetched); err == nil {
		s.note(evFetch)
	}
	return err
}

// inputFetched goes on with a request whose input did not fit the message.
func (h *Handle) inputFetched(body []byte, err error) {
	h.mu.Lock()
	e := h.service.found(endEvent(err, evFetched, evFetchFailed))
	h.service.pull = nil
	h.service.note(e)
	h.mu.Unlock()
	switch {
	case err != nil && h.late():
		h.reject(errLate)
		return
	case err != nil:
		h.reject(fmt.Errorf("fetching the input: %w", bare(err)))
		return
	}
	h.service.input = body
	_ = h.ctx.PostTask(&h.service.dispatch)
}

// reject answers a request whose handler will not run.
func (h *Handle) reject(err error) {
	if !h.accept() {
		return
	}
	if err == errLate {
		h.service.noted(evExpired)
	} else {
		h.service.noted(evRefused)
	}
	h.answerError(failure{code: na.CodeOf(err), fate: na.NotRun, text: err.Error()})
	h.release()
}

// accept takes the request for good. When the origin has withdrawn or abandoned it nothing comes of it, and h is gone.
func (h *Handle) accept() bool {
	if h.service.env.Accept() {
		return true
	}
	h.service.noted(evGone)
	h.service.oneWay = true // nobody waits for an answer
	h.release()
	return false
}

// run runs the handler in Trigger.
func (h *Handle) run(any) {
	if h.ctx.class.cfg.Authorize != nil && !h.pass() || !h.ctx.admit(h) {
		return
	}
	if h.late() {
		h.reject(errLate)
		return
	}
	closing := h.ctx.nctx.Closing()
	switch {
	case h.ctx.nctx.Draining() && !closing:
		h.reject(errClosing)
		return
	case h.ctx.class.cfg.Authorize != nil && !h.service.allowed && !closing: // cannot be
		h.reject(ErrPermission)
		return
	}
	if !h.accept() {
		return
	}
	s := h.service
	if closing {
		s.noted(evClosed)
		h.release()
		return
	}
	s.found(evBegan)
	s.runs.Store(h.rpc)
	s.note(evBegan)
	returned := false
	defer func() { // a handler may end its goroutine
		if !returned {
			h.returned()
			h.answerError(failure{code: ErrPanic, fate: na.Ran, text: "the handler of " + h.Name() + " ended its goroutine"})
			h.release()
		}
	}()
	f := h.callHandler()
	returned = true
	h.returned()
	if f.code != na.OK {
		h.answerError(f)
	}
	h.release()
}

// returned notes that the handler has.
func (h *Handle) returned() {
	if states.Checking() {
		h.mu.Lock()
		h.service.noted(evReturned)
		h.mu.Unlock()
	}
}

// callHandler runs the handler and returns what its error says. A panic, of that too, is an error and ends nothing else. It
// is logged with its stack and a random id; the origin gets only the id, since the value may be confidential.
func (h *Handle) callHandler() (f failure) {
	defer func() {
		if p := recover(); p != nil {
			var id [8]byte
			h.ctx.class.na.Rand(id[:])
			slog.Error("handler panicked", "rpc", h.Name(), "peer", h.addr.String(), "id", fmt.Sprintf("%x", id), "panic", p,
				"stack", string(debug.Stack()))
			f = failure{code: ErrPanic, fate: na.Ran, text: fmt.Sprintf("the handler of %s panicked; the target's log has it as %x", h.Name(), id)}
		}
	}()
	if err := h.rpc.Handler(h); err != nil {
		return failureOf(err)
	}
	return failure{}
}
