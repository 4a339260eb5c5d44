package hg

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// ended goes on when the answer has come, or none will.
func (k *call) ended(_ *na.Op, r na.Result) (ran int) {
	k.h.mu.Lock()
	if r.Err != nil && na.CodeOf(r.Err) == na.ErrMsgSize && r.ID == 0 && !k.shortest() && !k.canceling {
		if r.Err = k.resend(); r.Err == nil {
			k.h.mu.Unlock()
			return 0
		}
	}
	k.asking, k.r = false, r
	k.returnRoom() // whatever came: nothing of this call arrives any more
	switch {
	case r.Err != nil:
		k.fails()
		if k.abandons && r.ID != 0 { // it left: the target need not work for an answer that nobody reads
			k.h.ctx.nctx.Upper().Abandon(r.Addr, r.ID)
		}
	case !k.h.rpc.OneWay:
		b, body := k.message(r)
		k.understand(b, body, r.Addr)
	}
	if k.recalling() {
		k.withdrawal.requestEnded(r)
	}
	k.goOn()
	return k.partEnded()
}

// goOn decides what the call waits for now that the operation has ended. Locked.
func (k *call) goOn() {
	if k.loan != nil && (k.r.Err != nil || !k.h.rpc.OneWay && k.pull == nil) {
		k.loan.op.Cancel() // the target has what it needs, or never will
	}
	switch {
	case k.phase == callEnding || k.parts == 1:
	case k.pull != nil:
		k.to(callFetching)
		k.startTimer()
	case k.h.rpc.OneWay:
		k.to(callLending)
		k.startTimer()
	default:
		k.to(callLeaving)
	}
}

// shortest reports whether the message was as short as it can be.
func (k *call) shortest() bool { return k.loan != nil && len(k.msg) <= minMessage }

// resend lends the input, and the metadata if need be, when the peer takes shorter messages than this side.
func (k *call) resend() error {
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.in.gone > 0 { // a part of the input was the caller's memory, which has been given back
		return na.ErrMsgSize
	}
	k.in.b[1] |= flagMore
	to := k.h.ctx.nctx.Upper().Current(k.h.addr)
	msg, err := k.lendInput(to, minMessage)
	if err != nil {
		return err
	}
	return k.ask(to, msg)
}

// message returns the response that a receive has brought, and what came beside it.
func (k *call) message(r na.Result) (b, body []byte) {
	if r.Envelope == nil {
		return k.buf[:r.N], nil
	}
	k.env, k.r.Envelope = r.Envelope, nil
	return k.env.Data, k.env.Body
}

// understand reads the response, and fetches its body if that is still at the target.
func (k *call) understand(b, body []byte, from na.Addr) {
	resp := &k.answer
	meta, payload, err := resp.parse(b, body)
	if err != nil {
		k.failure = err
		return
	}
	k.meta, k.understood = meta, true
	if resp.flags&flagMore == 0 {
		if limit := k.h.ctx.class.cfg.MaxOutput; int64(len(payload)) > limit && resp.code == na.OK {
			k.failure = na.WithText(ErrOverflow, fmt.Sprintf("output of %d bytes, Config.MaxOutput is %d", len(payload), limit))
			return
		}
		k.output, k.answered = payload, true
		return
	}
	key, err := bodyKey(payload, ahead(resp.flags, resp.meta), resp.size)
	if err != nil {
		k.failure = err
		return
	}
	c := k.h.ctx
	switch {
	case k.canceling: // too late for the answer: the whole of it has not arrived
		k.failure = k.why
		c.nctx.Upper().GiveBack(from, key)
	case int64(resp.size) > c.class.cfg.MaxOutput || int64(resp.size) < 0:
		k.failure = na.WithText(ErrOverflow, "the output is larger than Config.MaxOutput allows")
		c.nctx.Upper().GiveBack(from, key)
	default:
		c.grantRoom(from, key.Len-ahead(resp.flags, resp.meta), 0)
		if k.pull, err = c.fetch(from, key, 0, key.Len, account{}, k.onPulled); err != nil { // it gave the body back
			k.failure = err
			return
		}
		k.parts++
	}
}

func (k *call) onPulled(body []byte, err error) (ran int) {
	k.h.mu.Lock()
	k.pull, k.fetched = nil, body
	if n := ahead(k.answer.flags, k.answer.meta); err == nil && n > 0 {
		k.meta, body, err = apart(body, n)
	}
	if err != nil {
		k.failure = err
	} else {
		k.output, k.answered = body, true
	}
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	return k.partEnded()
}

func (k *call) onLoanEnded(l *loan, r na.Result) (ran int) {
	k.h.mu.Lock()
	if k.loan != l { // the one before: see resend
		return k.partEnded()
	}
	k.loan = nil
	if k.h.rpc.OneWay && r.Err != nil {
		k.failure, k.lent = r.Err, r
	}
	return k.partEnded()
}

// partEnded runs the callback when no part is left. Locked, and unlocks.
func (k *call) partEnded() (ran int) {
	if k.parts--; k.parts == 1 && k.timing { // only the timer is left, and it is a part so that it cannot outlive the call
		k.timer.Cancel()
		if k.phase != callEnding && k.phase != callLeaving {
			k.to(callLeaving)
		}
	}
	if k.parts > 0 {
		k.h.mu.Unlock()
		return 0
	}
	k.to(callQueued)
	switch {
	case k.recalling():
		k.withdrawal.callEnds()
		k.postponed = true // the target's word may have come, and decides the result
		k.h.ctx.nctx.Upper().Follow(&k.done)
	case k.waits:
		k.endWait()
	default:
		o := k.settle()
		k.h.mu.Unlock()
		return o.run()
	}
	k.h.mu.Unlock()
	return 0
}
