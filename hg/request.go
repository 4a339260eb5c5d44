package hg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// onRequest handles the arrival of a request. It looks up the RPC, and then either begins to fetch
// an input that did not fit in the message, continues the request in Trigger, or refuses it.
func (c *Context) onRequest(env *na.Envelope) (ran int) {
	s := c.newService(env)
	var req request
	meta, payload, err := req.parse(env.Data, env.Body)
	s.id, s.rpc = req.id, c.class.rpcs.findRPC(req.id)
	s.maxInline, s.named, s.version = na.RoomBytes(req.room), req.named, req.version
	s.isStream = s.named.count > 0 && s.rpc != nil && !s.rpc.own.CountAsCall
	s.oneWay, s.meta, s.codec = req.flags&flagOneWay != 0, meta, req.codec
	s.setBudget(req.budget)
	switch {
	case err != nil:
	case c.nctx.Draining() && (s.rpc == nil || !s.rpc.own.ServeDraining):
		err = errDraining
	case s.rpc == nil || s.rpc.Handler == nil:
		err = c.class.rpcs.noMethodError(req.id, c.class.cfg.Reflect)
	case s.rpc.OneWay != s.oneWay:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("RPC %q is one-way at one side only", s.rpc.Name))
	case s.isLate():
		err = errDeadlinePassed
	case req.flags&flagMore == 0 && int64(len(payload)) > c.class.cfg.MaxInput:
		err = inputLimitError("the target's", int64(len(payload)), c.class.cfg.MaxInput)
	default:
		err = checkCodec(s.rpc.Codec, req.codec)
	}
	// A refused request must return its lent input as well. Otherwise the input would stay pinned
	// at the origin until the call completes.
	if req.flags&flagMore != 0 && len(payload) > 0 {
		s.metaAheadLen = metaAhead(req.flags, req.meta)
		key, keyErr := bodyKey(payload, s.metaAheadLen, req.size)
		switch {
		case keyErr != nil && err == nil:
			err = keyErr
		case keyErr != nil:
		case err != nil:
			c.nctx.Upper().GiveBack(s.addr, key)
		case key.Len-s.metaAheadLen > c.class.cfg.MaxInput:
			err = inputLimitError("the target's", key.Len-s.metaAheadLen, c.class.cfg.MaxInput)
			c.nctx.Upper().GiveBack(s.addr, key)
		// The authorizer sees the metadata before this side fetches input from an unauthorized
		// caller.
		case c.class.hasAuthorizer():
			if s.inputPending, s.body = key.Len > s.metaAheadLen, key; s.metaAheadLen > 0 {
				if err = s.fetchPart(0, s.metaAheadLen, s.metaFetched); err == nil {
					return 0
				}
				s.inputPending = false // fetchPart has returned the loan
			}
		default:
			s.body = key
			if err = s.fetchInput(); err == nil {
				return 0
			}
		}
	}
	if err != nil {
		s.rejectRequest(err)
		return 0
	}
	if !s.inputPending {
		s.input = payload
	}
	return s.runInTrigger()
}

// onClosed is called after the context has been closed. It refuses waiting requests, cancels the
// contexts of handlers, and ends detached requests.
func (c *Context) onClosed() {
	c.dispatchWaiting()
	for _, o := range c.allOpen() {
		o.onPeersLost(errClosed)
	}
}

// fetchInput begins to fetch an input that did not fit in the message. If it returns an error, it
// has returned the loan.
func (s *service) fetchInput() error {
	s.grantRoom()
	return s.fetchPart(s.metaLen, s.body.Len, s.inputFetched)
}

// grantRoom allows the origin to send later inputs of this size inline, unless they are too large
// for that.
func (s *service) grantRoom() {
	s.ctx.grantRoom(s.addr, s.body.Len-s.metaAheadLen-s.metaLen, requestSize+len(s.meta)+int(s.metaAheadLen))
}

// fetchPart begins to fetch the memory that the origin has lent, from offset at up to, but not
// including, offset end. done is called in Trigger when the bytes have been fetched or fetching has
// failed. If fetchPart returns an error, it has returned the loan and does not call done.
func (s *service) fetchPart(at, end int64, done func([]byte, error) int) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armTimerLocked(s.waitDeadline)
	s.gen++ // the next dispatch gets a new Request, which that of the first dispatch must not refer to
	if s.pull, err = s.ctx.fetchBody(s.addr, s.body, at, end, account{s.addr.Session(), s.rpc.own.Expedited}, done); err == nil {
		s.setPhaseLocked(serviceFetching)
	}
	return err
}

// metaFetched continues a request whose metadata did not fit in the message, once the metadata b
// has been fetched. The next step is to call the authorizer.
func (s *service) metaFetched(b []byte, err error) (ran int) {
	if err != nil {
		s.inputPending = false // fetchBody has returned the loan
	}
	if s.onFetched(b, err, "metadata") {
		s.metaLen, s.input, s.fetched, s.meta = int64(len(b)), nil, nil, bytes.Clone(s.meta)
		slab.Put(b)
		ran = s.runInTrigger()
	}
	return ran
}

// inputFetched continues a request whose input did not fit in the message, once the input b has
// been fetched.
func (s *service) inputFetched(b []byte, err error) (ran int) {
	if s.onFetched(b, err, "input") {
		ran = s.runInTrigger()
	}
	return ran
}

// onFetched handles completion of a fetch. It stores the bytes that were fetched and returns true,
// or rejects the request and returns false. what names the fetched data in error texts.
func (s *service) onFetched(b []byte, err error, what string) (ok bool) {
	s.mu.Lock()
	s.setPhaseLocked(serviceArrived)
	s.pull = nil
	s.mu.Unlock()
	s.fetched = b
	if err == nil && s.metaAheadLen > 0 {
		s.meta, b, err = splitBody(b, s.metaAheadLen)
		s.metaAheadLen = 0
	}
	switch {
	case err != nil && s.isLate():
		s.rejectRequest(errDeadlinePassed)
	case err != nil:
		// The code may be anything, so it is not marked as set by the library.
		s.refuseWith(errorBody{code: na.CodeOf(err), fate: na.NotRun, text: fmt.Sprintf("fetching the %s: %v", what, unwrapNA(err))})
	default:
		s.input = b
	}
	return err == nil
}

// rejectRequest responds to a request whose handler does not run because of err.
func (s *service) rejectRequest(err error) { s.refuseWith(refusalError(err)) }

// refusalError returns the error response with which the library refuses a request because of err.
func refusalError(err error) errorBody {
	return errorBody{code: na.CodeOf(err), fate: na.NotRun, text: err.Error(), byLibrary: true}
}

// refuseWith responds with f to a request whose handler does not run. It sends no response if the
// origin has withdrawn the request.
func (s *service) refuseWith(f errorBody) {
	if s.env.Accept() {
		s.refuseAccepted(f)
		return
	}
	s.mu.Lock()
	s.dropRequest()
}

// refuseAccepted responds with f to a request that has been accepted but whose handler does not
// run.
func (s *service) refuseAccepted(f errorBody) {
	s.mu.Lock()
	s.setPhaseLocked(serviceRejected)
	f.byLibrary = f.byLibrary || s.named.count > 0 // its streams were not opened
	if s.oneWay {
		s.ctx.dropped.Add(1)
		s.observeAnswerLocked(f.code, na.NotRun, 0, f.text)
	} else {
		s.answerForLocked(f)
	}
	s.holds--
	s.unlock()
}

// dropRequest ends a request that needs no response, because its origin withdrew or abandoned it
// before it was accepted, or because no response can be sent. The caller must hold s.mu, which
// dropRequest releases.
func (s *service) dropRequest() {
	s.setPhaseLocked(serviceAnswered)
	s.holds--
	s.unlock()
}

// proceedAgain continues, in Trigger, a request that was waiting to be admitted.
func (s *service) proceedAgain(any) (ran int) {
	s.mu.Lock()
	s.setPhaseLocked(serviceArrived)
	s.mu.Unlock()
	return s.runInTrigger()
}

// runInTrigger authorizes and admits a request. It then runs the handler or passes the request to
// Config.Dispatch. It is called in Trigger.
func (s *service) runInTrigger() (ran int) {
	c := s.ctx
	switch dispatch := c.class.cfg.Dispatch != nil; {
	case dispatch && (!s.rpc.Inline || c.class.hasAuthorizer() && !c.class.cfg.AuthorizeQuick):
		if c.admitRequest(s) && !s.handToDispatch() {
			s.proceed()
		}
	case !s.tryProceed() || !c.admitRequest(s):
	case dispatch:
		s.beginInline()
	default:
		s.mu.Lock()
		s.beginHandler()
	}
	return 1
}

// beginHandler runs the handler, unless the request must be refused. The caller must hold s.mu,
// which beginHandler releases.
func (s *service) beginHandler() {
	closing := s.ctx.nctx.Closing()
	if why := s.refusalReason(closing); why != nil {
		s.mu.Unlock()
		s.rejectRequest(why)
		return
	}
	if !s.env.Accept() || closing {
		s.dropRequest()
		return
	}
	if s.named.count > 0 {
		if err := s.openStreams(); err != nil {
			s.mu.Unlock()
			s.refuseAccepted(refusalError(err))
			return
		}
	}
	s.setPhaseLocked(serviceRunning)
	s.handlerBegan = true
	s.observeBeginLocked()
	r, rpc := s.request(), s.rpc
	s.mu.Unlock()
	f := errorBody{code: ErrPanic, fate: na.Ran} // the result if the handler calls runtime.Goexit
	defer func() { s.handlerReturned(r, f) }()
	f = s.ctx.callHandler(r, rpc)
}

// refusalReason returns the error with which the request must be refused instead of running its
// handler. It returns nil if the handler may run, or if no response can be sent.
func (s *service) refusalReason(closing bool) error {
	switch {
	case s.isLate():
		return errDeadlinePassed
	case closing:
	case s.ctx.nctx.Draining() && !s.rpc.own.ServeDraining:
		return errDraining
	// Defensive check: the request has already been authorized.
	case s.ctx.class.hasAuthorizer() && !s.allowed:
		return ErrPermission
	}
	return nil
}

// handlerReturned completes or continues r after its handler has returned. f is the error returned
// by the handler. If f.code is na.OK, the handler returned nil.
func (s *service) handlerReturned(r Request, f errorBody) {
	if f.code != na.OK { // otherwise it has responded or is detached
		defer func() { // deferred, because a codec may panic or call runtime.Goexit
			s.mu.Lock()
			s.releaseReturned()
		}()
		s.answerFailed(r, f)
		return
	}
	s.mu.Lock()
	if s.hasDraft { // otherwise it has responded, or will: see Detach
		_ = s.respondLocked(response{fate: na.Ran, codec: s.rpc.Codec.ID()}, nil, s.draft, nil) // on error releaseReturned responds
	}
	s.releaseReturned()
}

// releaseReturned releases the reference that the handler held until it returned. The caller must
// hold s.mu, which releaseReturned releases.
func (s *service) releaseReturned() {
	if s.hasReturned = true; s.phase > serviceRejected && len(s.streams) > 0 {
		s.endStreamsLocked()
	}
	s.holds--
	s.unlock()
}

// answerFailed responds to r after its handler has returned the error f.
func (s *service) answerFailed(r Request, f errorBody) {
	if f.code == ErrPanic && f.text == "" {
		f.text = "the handler of " + r.Name() + " called runtime.Goexit"
	}
	if s.ctx.cutOff.Load() != nil && f.code < codes.ErrNotFound && f.code != ErrPanic && f.fate != na.NotRun {
		// The shutdown interrupted the handler, so the request may be made at another target.
		f.code, f.byLibrary = ErrAborted, false
		if why := s.ctx.closeReason().Error(); !strings.Contains(f.text, why) {
			f.text = why + ": " + f.text
		}
	}
	over := false
	defer func() {
		if !over { // the codec called runtime.Goexit while encoding the detail
			f.detail = nil
			s.ctx.answerError(r, f)
		}
	}()
	s.ctx.answerError(r, f)
	over = true
}

// answerError responds to r with f, the error returned by its handler. If r is one-way or already
// answered, answerError counts the error instead. If r is already answered, it also logs the error.
func (c *Context) answerError(r Request, f errorBody) {
	switch err := r.respondFailure(f, nil); na.CodeOf(err) {
	case ErrUnsupported:
		c.dropped.Add(1)
	case na.ErrAnswered:
		c.late.Add(1)
		c.class.logger().Warn("handler returned an error after its response", "rpc", r.Name(), "peer", r.Peer().Label(), "error", f.text)
	}
}

// callHandler runs a handler and returns its error as an error response. A panic, including one in
// the error's methods, is turned into ErrPanic and has no other effect. It is logged with its stack
// and a random ID. The origin receives only the ID, since the panic value may be confidential.
func (c *Context) callHandler(r Request, rpc *RPC) (f errorBody) {
	defer func() {
		if p := recover(); p != nil {
			var id [8]byte
			c.class.na.Rand(id[:])
			c.class.logger().Error("handler panicked", "rpc", rpc.Name, "peer", r.Peer().Label(), "id", fmt.Sprintf("%x", id), "panic", p,
				"stack", string(debug.Stack()))
			f = errorBody{code: ErrPanic, fate: na.Ran, text: fmt.Sprintf("the handler of %s panicked (id %x in the target's log)", rpc.Name, id)}
		}
	}()
	err := rpc.Handler(r)
	if err == nil {
		return errorBody{}
	}
	f = failureOf(err)
	// The handler's context ended at the request's deadline. Respond with that rather than with an
	// error of the handler.
	if f.code < codes.ErrNotFound && errors.Is(err, context.DeadlineExceeded) {
		switch late, bounded := r.timedOut(); {
		case late && bounded: // the deadline is RPC.Timeout, which the origin does not know
			f.code, f.byLibrary = ErrTimeout, true
			f.text = fmt.Sprintf("%s did not complete within its timeout of %v at the target (set by qs.Timeout or hg.RPC.Timeout): %s",
				rpc.Name, rpc.Timeout, f.text)
		case late && f.code == ErrHandler:
			f.code = ErrTimeout
		}
	}
	return f
}
