package hg

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

func (k *call) onSent(_ *na.Op, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(sendEvent(r)))
	if na.CodeOf(r.Err) == na.ErrMsgSize && k.loan == nil && !k.canceling {
		if r.Err = k.resend(); r.Err == nil {
			return
		}
	}
	k.sent, k.sendEnded = r, true
	k.tell()
	if k.recalling() {
		k.withdrawal.sendEnded(r)
	}
	if r.Err != nil {
		k.stop() // nobody will answer
	}
	k.partEnded()
}

// resend lends the input when the peer takes shorter messages than this side.
func (k *call) resend() error {
	k.in[1] |= flagMore
	msg, err := k.lendInput()
	if err != nil {
		return err
	}
	return k.h.ctx.nctx.SendUnexpectedBy(k.send, k.h.addr, k.tag(), msg, k.by)
}

func (k *call) onReceived(_ *na.Op, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(endEvent(r.Err, evReceived, evReceiveFailed)))
	k.returnRoom()
	k.received = r
	k.sessionOver(r)
	if r.Err == nil {
		k.understand(k.message(r), r.Addr)
	}
	if k.pull == nil && k.loan != nil {
		k.loan.op.Cancel() // the target has what it needs, or never will
	}
	if r.Err != nil {
		k.send.Cancel()
	}
	k.partEnded()
}

// message returns the response that a receive has brought.
func (k *call) message(r na.Result) []byte {
	if r.Envelope == nil {
		return k.buf[:r.N]
	}
	k.env, k.received.Envelope = r.Envelope, nil
	return k.env.Data
}

// understand reads the response, and fetches its body if that is still at the target.
func (k *call) understand(b []byte, from na.Addr) {
	resp := &k.answer
	meta, payload, err := resp.parse(b)
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
	key, err := bodyKey(payload, resp.size)
	if err != nil {
		k.failure = err
		return
	}
	c := k.h.ctx
	switch {
	case k.canceling: // the whole response has not arrived
		k.failure = k.why
		c.nctx.GiveBack(from, key)
	case int64(resp.size) > c.class.cfg.MaxOutput || int64(resp.size) < 0:
		k.failure = na.WithText(ErrOverflow, "the output is larger than Config.MaxOutput allows")
		c.nctx.GiveBack(from, key)
	default:
		if k.pull, err = c.fetch(from, key, k.onPulled); err != nil { // it gave the body back
			k.failure = err
			return
		}
		k.parts++
	}
}

func (k *call) onPulled(body []byte, err error) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(endEvent(err, evPulled, evPullFailed)))
	k.pull = nil
	if err != nil {
		k.failure = err
	} else {
		k.output, k.answered = body, true
	}
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	k.partEnded()
}

func (k *call) onLoanEnded(_ *loan, r na.Result) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	defer k.note(k.found(evLoanEnded))
	k.loan = nil
	if k.h.rpc.OneWay && r.Err != nil {
		k.failure = r.Err
		k.sessionOver(r)
	}
	k.partEnded()
}

// partEnded queues the callback when no part is left. Locked.
func (k *call) partEnded() {
	if k.parts--; k.parts == 1 && k.timing {
		k.timer.Cancel()
	}
	if k.parts > 0 {
		return
	}
	k.phase = queued
	if k.recalling() {
		k.withdrawal.callEnds()
	}
	if k.waits {
		k.h.waiter.End()
		return
	}
	_ = k.h.ctx.post(&k.done) // a part has ended just now, in a callback
}
