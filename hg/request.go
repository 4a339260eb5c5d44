package hg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// arrived takes in a request: it finds the RPC, fetches an input that did not fit the message, or runs the handler.
func (c *Context) arrived(env *na.Envelope) (ran int) {
	s := c.newService(env)
	var req request
	meta, payload, err := req.parse(env.Data, env.Body)
	s.id, s.rpc = req.id, c.class.rpcs.find(req.id)
	s.most, s.named, s.version = na.RoomBytes(req.room), req.named, req.version
	s.lasting = s.named.count > 0 && s.rpc != nil && !s.rpc.own.CountAsCall
	s.oneWay, s.meta, s.codec = req.flags&flagOneWay != 0, meta, req.codec
	s.setBudget(req.budget)
	switch {
	case err != nil:
	case c.nctx.Draining() && (s.rpc == nil || !s.rpc.own.ServeDraining):
		err = errDraining
	case s.rpc == nil || s.rpc.Handler == nil:
		err = c.class.rpcs.unknown(req.id, c.class.cfg.Reflect)
	case s.rpc.OneWay != s.oneWay:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("RPC %q is one-way on one side only", s.rpc.Name))
	case s.late():
		err = errLate
	case req.flags&flagMore == 0 && int64(len(payload)) > c.class.cfg.MaxInput:
		err = na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes, the target's Config.MaxInput is %d", len(payload), c.class.cfg.MaxInput))
	default:
		err = checkCodec(s.rpc.Codec, req.codec)
	}
	// Also of a request that is refused: what it lends is given back, else it would stay pinned at the origin until the call ends.
	if req.flags&flagMore != 0 && len(payload) > 0 {
		s.ahead = ahead(req.flags, req.meta)
		key, keyErr := bodyKey(payload, s.ahead, req.size)
		switch {
		case keyErr != nil && err == nil:
			err = keyErr
		case keyErr != nil:
		case err != nil:
			c.nctx.Upper().GiveBack(s.addr, key)
		case key.Len-s.ahead > c.class.cfg.MaxInput:
			err = na.WithText(ErrOverflow, fmt.Sprintf("input of %d bytes, the target's Config.MaxInput is %d", key.Len-s.ahead, c.class.cfg.MaxInput))
			c.nctx.Upper().GiveBack(s.addr, key)
		case c.class.authorizes(s.rpc): // it sees the metadata before this side makes room for the input of who may not call
			if s.more, s.body = key.Len > s.ahead, key; s.ahead > 0 {
				if err = s.fetch(0, s.ahead, s.metaFetched); err == nil {
					return 0
				}
				s.more = false // it has been given back
			}
		default:
			s.body = key
			if err = s.fetchInput(); err == nil {
				return 0
			}
		}
	}
	if err != nil {
		s.reject(err)
		return 0
	}
	if !s.more {
		s.input = payload
	}
	return s.run()
}

// closed runs when the context has been closed: nothing waits for room any more, handlers are told, and nobody can answer.
func (c *Context) closed() {
	c.advance()
	for _, o := range c.all() {
		o.peersLost(errClosed)
	}
}

// fetchInput fetches an input that did not fit the message. It has given the body back if there is an error.
func (s *service) fetchInput() error {
	s.grantRoom()
	return s.fetch(s.skip, s.body.Len, s.inputFetched)
}

// grantRoom lets the origin send more such input at once if it is not too long for that.
func (s *service) grantRoom() {
	s.ctx.grantRoom(s.addr, s.body.Len-s.ahead-s.skip, requestSize+len(s.meta)+int(s.ahead))
}

// fetch fetches a part of what is at the origin.
func (s *service) fetch(at, end int64, done func([]byte, error) int) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arm(s.patience)
	s.gen++ // the next dispatch has a Request of its own
	if s.pull, err = s.ctx.fetch(s.addr, s.body, at, end, account{s.addr.Session(), s.rpc.own.Expedited}, done); err == nil {
		s.to(serviceFetching)
	}
	return err
}

// metaFetched has the authorizer asked about a request whose metadata did not fit the message.
func (s *service) metaFetched(b []byte, err error) (ran int) {
	if err != nil {
		s.more = false // it has been given back
	}
	if s.took(b, err, "metadata") {
		s.skip, s.input, s.fetched, s.meta = int64(len(b)), nil, nil, bytes.Clone(s.meta)
		slab.Put(b)
		ran = s.run()
	}
	return ran
}

// inputFetched goes on with a request whose input did not fit the message.
func (s *service) inputFetched(b []byte, err error) (ran int) {
	if s.took(b, err, "input") {
		ran = s.run()
	}
	return ran
}

// took takes in what has been fetched, or rejects the request.
func (s *service) took(b []byte, err error, what string) (ok bool) {
	s.mu.Lock()
	s.to(serviceArrived)
	s.pull = nil
	s.mu.Unlock()
	s.fetched = b
	if err == nil && s.ahead > 0 {
		s.meta, b, err = apart(b, s.ahead)
		s.ahead = 0
	}
	switch {
	case err != nil && s.late():
		s.reject(errLate)
	case err != nil:
		s.refuse(failure{code: na.CodeOf(err), fate: na.NotRun, text: fmt.Sprintf("fetching the %s: %v", what, bare(err))}) // whatever it is
	default:
		s.input = b
	}
	return err == nil
}

// reject answers a request whose handler will not run because of err.
func (s *service) reject(err error) { s.refuse(early(err)) }

// early is a refusal by the library.
func early(err error) failure {
	return failure{code: na.CodeOf(err), fate: na.NotRun, text: err.Error(), early: true}
}

// refuse answers a request whose handler will not run.
func (s *service) refuse(f failure) {
	if s.env.Accept() {
		s.refuseAccepted(f)
		return
	}
	s.mu.Lock()
	s.drop()
}

// refuseAccepted is refuse of a request that was accepted.
func (s *service) refuseAccepted(f failure) {
	s.mu.Lock()
	s.to(serviceRejected)
	f.early = f.early || s.named.count > 0 // its streams were not opened
	if s.oneWay {
		s.ctx.dropped.Add(1)
		s.says(f.code, na.NotRun, 0, f.text)
	} else {
		s.answerFor(f)
	}
	s.holds--
	s.unlock()
}

// drop ends a request for whose answer nobody waits: its origin has withdrawn or abandoned it before it was accepted, or nobody can answer.
// Locked, and unlocks.
func (s *service) drop() {
	s.to(serviceAnswered)
	s.holds--
	s.unlock()
}

// again goes on with a request that has waited for room.
func (s *service) again(any) (ran int) {
	s.mu.Lock()
	s.to(serviceArrived)
	s.mu.Unlock()
	return s.run()
}

// run goes on with a request in Trigger.
func (s *service) run() (ran int) {
	c := s.ctx
	switch dispatch := c.class.cfg.Dispatch != nil; {
	case dispatch && (!s.rpc.Inline || c.class.authorizes(s.rpc) && !c.class.cfg.AuthorizeQuick):
		if c.admit(s) && !s.give() {
			s.proceed()
		}
	case !s.pass() || !c.admit(s):
	case dispatch:
		s.beginInline()
	default:
		s.mu.Lock()
		s.begin()
	}
	return 1
}

// begin runs the handler, unless the request is to be refused. Locked, and unlocks.
func (s *service) begin() {
	closing := s.ctx.nctx.Closing()
	if why := s.refusal(closing); why != nil {
		s.mu.Unlock()
		s.reject(why)
		return
	}
	if !s.env.Accept() || closing {
		s.drop()
		return
	}
	if s.named.count > 0 {
		if err := s.openStreams(); err != nil {
			s.mu.Unlock()
			s.refuseAccepted(early(err))
			return
		}
	}
	s.to(serviceRunning)
	s.began = true
	s.begins()
	r, rpc := s.incoming(), s.rpc
	s.mu.Unlock()
	f := failure{code: ErrPanic, fate: na.Ran} // a handler may end its goroutine
	defer func() { s.handlerReturned(r, f) }()
	f = s.ctx.callHandler(r, rpc)
}

// refusal returns why the handler does not begin; nil if it does, or if nobody can be told.
func (s *service) refusal(closing bool) error {
	switch {
	case s.late():
		return errLate
	case closing:
	case s.ctx.nctx.Draining() && !s.rpc.own.ServeDraining:
		return errDraining
	case s.ctx.class.authorizes(s.rpc) && !s.allowed: // cannot be
		return ErrPermission
	}
	return nil
}

// handlerReturned ends the handler of r, whose error is f.
func (s *service) handlerReturned(r Request, f failure) {
	if f.code == ErrPanic && f.text == "" {
		f.text = "the handler of " + r.Name() + " ended its goroutine"
	}
	defer func() {
		s.mu.Lock()
		if s.returned = true; s.phase > serviceRejected && len(s.streams) > 0 {
			s.endStreams()
		}
		s.holds--
		s.unlock()
	}()
	if f.code == na.OK { // it has answered, or will: see Detach
		return
	}
	if s.ctx.cutOff.Load() && f.code < codes.ErrNotFound && f.code != ErrPanic && f.fate != na.NotRun {
		f.code = ErrAborted // this end interrupted it: the request may be made elsewhere
	}
	over := false
	defer func() {
		if !over { // the codec has ended this goroutine at the detail
			f.detail = nil
			s.ctx.answerError(r, f)
		}
	}()
	s.ctx.answerError(r, f)
	over = true
}

// answerError answers with the error that a handler has returned. One that cannot be an answer is counted, and logged if it
// comes after the answer.
func (c *Context) answerError(r Request, f failure) {
	switch err := r.respondFailure(f, nil); na.CodeOf(err) {
	case ErrUnsupported:
		c.dropped.Add(1)
	case na.ErrAnswered:
		c.late.Add(1)
		c.class.log().Warn("handler returned an error after its answer", "rpc", r.Name(), "peer", r.Peer().Label(), "error", f.text)
	}
}

// callHandler runs a handler and returns what its error says. A panic, of that too, is an error and ends nothing else. It
// is logged with its stack and a random id; the origin gets only the id, since the value may be confidential.
func (c *Context) callHandler(r Request, rpc *RPC) (f failure) {
	defer func() {
		if p := recover(); p != nil {
			var id [8]byte
			c.class.na.Rand(id[:])
			c.class.log().Error("handler panicked", "rpc", rpc.Name, "peer", r.Peer().Label(), "id", fmt.Sprintf("%x", id), "panic", p,
				"stack", string(debug.Stack()))
			f = failure{code: ErrPanic, fate: na.Ran, text: fmt.Sprintf("the handler of %s panicked; the target's log has it as %x", rpc.Name, id)}
		}
	}()
	err := rpc.Handler(r)
	if err == nil {
		return failure{}
	}
	f = failureOf(err)
	// The context of the handler has ended at the deadline of the request: the answer says that, rather than an error of the handler.
	if f.code < codes.ErrNotFound && errors.Is(err, context.DeadlineExceeded) {
		switch late, bounded := r.timedOut(); {
		case late && bounded: // the origin does not know of that deadline
			f.code, f.early = ErrTimeout, true
			f.text = fmt.Sprintf("%s has %v at the target, which have passed: %s", rpc.Name, rpc.Timeout, f.text)
		case late && f.code == ErrHandler:
			f.code = ErrTimeout
		}
	}
	return f
}
