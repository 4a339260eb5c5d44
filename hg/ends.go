package hg

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// onOpEnded goes on when the answer has come, or none will.
func (k *call) onOpEnded(_ *na.Op, r na.Result) (ran int) {
	k.h.mu.Lock()
	if r.Err != nil && na.CodeOf(r.Err) == na.ErrMsgSize && r.ID == 0 && !k.isShortest() && !k.canceling {
		if r.Err = k.resendAsLoan(); r.Err == nil {
			k.h.mu.Unlock()
			return 0
		}
	}
	k.opRunning, k.opResult = false, r
	k.returnRoomLocked() // whatever came: nothing of this call arrives any more
	switch {
	case r.Err != nil:
		k.markFailedLocked()
		if k.abandonPending && r.ID != 0 { // it left: the target need not work for an answer that nobody reads
			k.h.ctx.nctx.Upper().Abandon(r.Addr, r.ID)
		}
	case !k.h.rpc.OneWay:
		b, body := k.receivedMessage(r)
		k.parseResponse(b, body, r.Addr)
	}
	if k.isWithdrawingLocked() {
		k.withdrawal.onRequestEndedLocked(r)
	}
	k.chooseNextPhaseLocked()
	return k.finishPart()
}

// chooseNextPhaseLocked sets what the call waits for next, after the end of the operation.
func (k *call) chooseNextPhaseLocked() {
	if k.loan != nil && (k.opResult.Err != nil || !k.h.rpc.OneWay && k.pull == nil) {
		k.loan.op.Cancel() // the target has what it needs, or never will
	}
	switch {
	case k.phase == callEnding || k.openParts == 1:
	case k.pull != nil:
		k.setPhaseLocked(callFetching)
		k.startTimerLocked()
	case k.h.rpc.OneWay:
		k.setPhaseLocked(callLending)
		k.startTimerLocked()
	default:
		k.setPhaseLocked(callLeaving)
	}
}

// isShortest reports whether the message was as short as it can be.
func (k *call) isShortest() bool { return k.loan != nil && len(k.msg) <= minMessage }

// resendAsLoan lends the input, and the metadata if need be, when the peer takes shorter messages than this side.
func (k *call) resendAsLoan() error {
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.in.droppedLen > 0 { // a part of the input was the caller's memory, which has been given back
		return na.ErrMsgSize
	}
	k.in.b[1] |= flagMore
	to := k.h.ctx.nctx.Upper().Current(k.h.addr)
	msg, err := k.lendInputLocked(to, minMessage)
	if err != nil {
		return err
	}
	return k.sendRequestLocked(to, msg)
}

// receivedMessage returns the response that a receive has brought, and what came beside it.
func (k *call) receivedMessage(r na.Result) (b, body []byte) {
	if r.Envelope == nil {
		return k.buf[:r.N], nil
	}
	k.env, k.opResult.Envelope = r.Envelope, nil
	return k.env.Data, k.env.Body
}

// parseResponse reads the response, and fetches its body if that is still at the target.
func (k *call) parseResponse(b, body []byte, from na.Addr) {
	resp := &k.answer
	meta, payload, err := resp.parse(b, body)
	if err != nil {
		k.failure = err
		return
	}
	k.meta, k.isParsed = meta, true
	if resp.flags&flagMore == 0 {
		if limit := k.h.ctx.class.cfg.MaxOutput; int64(len(payload)) > limit && resp.code == na.OK {
			k.failure = na.WithText(ErrOverflow, fmt.Sprintf("output of %d bytes, Config.MaxOutput is %d", len(payload), limit))
			return
		}
		k.output, k.isAnswered = payload, true
		return
	}
	key, err := bodyKey(payload, metaAhead(resp.flags, resp.meta), resp.size)
	if err != nil {
		k.failure = err
		return
	}
	c := k.h.ctx
	switch {
	case k.canceling: // too late for the answer: the whole of it has not arrived
		k.failure = k.cancelCode
		c.nctx.Upper().GiveBack(from, key)
	case int64(resp.size) > c.class.cfg.MaxOutput || int64(resp.size) < 0:
		k.failure = na.WithText(ErrOverflow, "the output is larger than Config.MaxOutput allows")
		c.nctx.Upper().GiveBack(from, key)
	default:
		c.grantRoom(from, key.Len-metaAhead(resp.flags, resp.meta), 0)
		if k.pull, err = c.fetchBody(from, key, 0, key.Len, account{}, k.onPulled); err != nil { // it gave the body back
			k.failure = err
			return
		}
		k.openParts++
	}
}

func (k *call) onPulled(body []byte, err error) (ran int) {
	k.h.mu.Lock()
	k.pull, k.fetched = nil, body
	if n := metaAhead(k.answer.flags, k.answer.meta); err == nil && n > 0 {
		k.meta, body, err = splitBody(body, n)
	}
	if err != nil {
		k.failure = err
	} else {
		k.output, k.isAnswered = body, true
	}
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	return k.finishPart()
}

func (k *call) onLoanEnded(l *loan, r na.Result) (ran int) {
	k.h.mu.Lock()
	if k.loan != l { // the one before: see resend
		return k.finishPart()
	}
	k.loan = nil
	if k.h.rpc.OneWay && r.Err != nil {
		k.failure, k.loanResult = r.Err, r
	}
	return k.finishPart()
}

// finishPart runs the callback when no part is left. Locked, and unlocks.
func (k *call) finishPart() (ran int) {
	if k.openParts--; k.openParts == 1 && k.timerRuns { // only the timer is left, and it is a part so that it cannot outlive the call
		k.timerOp.Cancel()
		if k.phase != callEnding && k.phase != callLeaving {
			k.setPhaseLocked(callLeaving)
		}
	}
	if k.openParts > 0 {
		k.h.mu.Unlock()
		return 0
	}
	k.setPhaseLocked(callQueued)
	switch {
	case k.isWithdrawingLocked():
		k.withdrawal.onCallEndLocked()
		k.endPostponed = true // the target's word may have come, and decides the result
		k.h.ctx.nctx.Upper().Follow(&k.done)
	case k.hasWaiter:
		k.wakeWaiterLocked()
	default:
		o := k.settleLocked()
		k.h.mu.Unlock()
		return o.runCallback()
	}
	k.h.mu.Unlock()
	return 0
}
