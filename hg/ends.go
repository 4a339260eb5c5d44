package hg

import (
	"math"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// onOpEnded continues a call after its operation has completed with a response or an error.
func (k *call) onOpEnded(_ *na.Op, r na.Result) (ran int) {
	k.h.mu.Lock()
	if r.Err != nil && na.CodeOf(r.Err) == na.ErrMsgSize && r.ID == 0 && !k.isShortest() && !k.canceling {
		if r.Err = k.resendAsLoan(); r.Err == nil {
			k.h.mu.Unlock()
			return 0
		}
	}
	k.opRunning, k.opResult = false, r
	k.returnRoomLocked() // no inline response to this call can arrive anymore
	switch {
	case r.Err != nil:
		k.markFailedLocked()
		if k.abandonPending && r.ID != 0 { // the request has been sent; let the target stop working on it
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

// chooseNextPhaseLocked sets the phase of the call after its operation has completed, and cancels a
// loan that is no longer needed. The caller must hold k.h.mu.
func (k *call) chooseNextPhaseLocked() {
	if k.loan != nil && (k.opResult.Err != nil || !k.h.rpc.OneWay && k.pull == nil) {
		k.loan.op.Cancel() // the target has fetched the input, or never will
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

// isShortest reports whether the request was sent with its input lent and in a message that every
// peer accepts, so that it cannot be sent in a shorter form.
func (k *call) isShortest() bool { return k.loan != nil && len(k.msg) <= minMessage }

// resendAsLoan sends the request again because the peer accepts only shorter messages than this
// side. The input is lent, and so is the metadata if necessary.
func (k *call) resendAsLoan() error {
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.in.droppedLen > 0 { // the input was the caller's memory, which the caller owns again
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

// receivedMessage returns the response b that the operation received. If the body arrived in a
// separate message, it also returns the body.
func (k *call) receivedMessage(r na.Result) (b, body []byte) {
	if r.Envelope == nil {
		return k.buf[:r.N], nil
	}
	k.env, k.opResult.Envelope = r.Envelope, nil
	return k.env.Data, k.env.Body
}

// parseResponse parses the response b with the given body, and begins to fetch the body if the
// target has lent it.
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
			k.failure = &outputLimitError{int64(len(payload)), limit}
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
	case k.canceling: // canceled before the whole response arrived
		k.failure = k.cancelCode
		c.nctx.Upper().GiveBack(from, key)
	case int64(resp.size) > c.class.cfg.MaxOutput || int64(resp.size) < 0:
		k.failure = &outputLimitError{int64(min(resp.size, math.MaxInt64)), c.class.cfg.MaxOutput}
		c.nctx.Upper().GiveBack(from, key)
	default:
		c.grantRoom(from, key.Len-metaAhead(resp.flags, resp.meta), 0)
		if k.pull, err = c.fetchBody(from, key, 0, key.Len, account{}, k.onPulled); err != nil { // fetchBody has returned the loan
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
	if k.loan != l { // the loan that preceded resendAsLoan
		return k.finishPart()
	}
	k.loan = nil
	if k.h.rpc.OneWay && r.Err != nil {
		k.failure, k.loanResult = r.Err, r
	}
	return k.finishPart()
}

// finishPart records that one part of the call has completed. If no part remains, finishPart
// completes the call by running the callback or waking the waiting goroutine. The caller must hold
// k.h.mu, which finishPart releases.
func (k *call) finishPart() (ran int) {
	k.openParts--
	if k.openParts == 1 && k.timerRuns {
		// Only the timer is left. It counts as a part so that it cannot outlive the call.
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
		k.endPostponed = true // the response to the withdrawal may be queued, and it determines the result
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
