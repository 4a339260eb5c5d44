package ledger

import (
	"encoding/binary"
	"errors"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// answerAll deals with every request that was kept.
func (a *actor) answerAll() {
	a.runGiven(len(a.given))
	a.kept = append(a.kept, a.nevers...)
	a.nevers = nil
	a.answerKept(len(a.kept))
}

// answerKept deals with n of the requests that were kept.
func (a *actor) answerKept(n int) {
	for ; n > 0 && len(a.kept) > 0; n-- {
		i := a.rng.IntN(len(a.kept))
		h := a.kept[i]
		a.kept = append(a.kept[:i], a.kept[i+1:]...)
		if in, err := h.InputRaw(); err == nil && a.rng.IntN(8) > 0 {
			_ = a.respond(h, binary.LittleEndian.Uint64(in), in)
		} else {
			_ = h.RespondError(na.ErrNoResponse, nil)
		}
	}
}

// answerMoved answers a request whose transfer has ended.
func (a *actor) answerMoved(h hg.Request, token uint64, err error) {
	if err == nil {
		_ = a.respond(h, token, binary.LittleEndian.AppendUint64(nil, token))
	} else {
		why := func(cb hg.RespondFunc) error { return h.RespondError(err, cb) }
		_ = a.answer(h, token, why, why)
	}
}

// respond answers the call with that token.
func (a *actor) respond(h hg.Request, token uint64, out []byte) error {
	return a.answer(h, token, func(cb hg.RespondFunc) error { return h.RespondRaw(out, cb) },
		func(cb hg.RespondFunc) error { return h.RespondRaw(binary.LittleEndian.AppendUint64(nil, token), cb) }) // out has been reused by then
}

// answer writes a response into the ledger, and cancels some. Half of those that were canceled are
// given again.
func (a *actor) answer(h hg.Request, token uint64, give, again func(cb hg.RespondFunc) error) error {
	s := a.s
	c := a.beginCall("response")
	c.of = s.entry(token)
	if of := c.of; of.callbacks > 0 && of.handle != nil && of.handle.busy && of.handle.call != of {
		s.reach[reachReused]++
	}
	if err := give(func(h hg.Request, err error) {
		c.handleEnd(err)
		if na.CodeOf(err) == na.ErrCanceled && a.rng.IntN(2) == 0 {
			_ = a.answer(h, token, again, again)
		}
		a.doInCallback(nil)
	}); err != nil {
		a.recordRefusal(c, err)
		return err
	}
	c.of.response = c
	if a.rng.IntN(8) == 0 && s.isOn(actCancel) && !a.hasEnded() {
		c.canceled = true
		h.Cancel()
	}
	return nil
}

// auditResponse: the response left, or its error has the reason.
func (s *scenario) auditResponse(c *callEntry) {
	kind := outcomeOf(c.err)
	s.outcomes["response "+kind]++
	switch {
	case kind == "ok":
		if c.of.response != c {
			s.fail("response %x to call %x left, and so did response %x", c.token, c.of.token, c.of.response.token)
		}
	case kind == "lost", kind == "canceled" && c.canceled, kind == "closed" && c.by.closing:
	case (kind == na.ErrAgain.Error() || kind == na.ErrNoMemory.Error()) && s.Faults.Again > 0:
	default:
		s.fail("response %x to call %x ended with %v", c.token, c.of.token, c.err)
	}
}

// isAnswered reports whether a response to a call has left, as far as the ledger shows.
func (c *callEntry) isAnswered() bool {
	r := c.response
	return r != nil && (r.callbacks > 0 && r.err == nil || r.by.crashed)
}

// noResponse reports whether a call ended because its own handler returned without a response; a
// relay returns such an error of another call.
func noResponse(err error) bool {
	r, ok := errors.AsType[*hg.RemoteError](err)
	return ok && r.Text == na.ErrNoResponse.Error()
}
