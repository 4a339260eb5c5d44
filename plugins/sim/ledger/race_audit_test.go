package ledger

import (
	"errors"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A raceCall is one line of the ledger of a race.
type raceCall struct {
	token     uint64
	by        *racer
	to        int
	oneWay    bool
	large     bool
	canceled  bool // Cancel was called while it was in flight
	bounded   bool // a withdraw of it had a bound on the wait
	ran       int
	callbacks int
	err       error
	asks      []withdrawal
}

// A withdrawal is one Withdraw.
type withdrawal struct {
	over     bool // the call had ended or was canceled
	ended    bool // its callback had run
	bounded  bool // or an earlier ask had a bound on the wait, after which the call is canceled
	reported int
	r        hg.WithdrawResult
}

func (c *raceCall) handleEnd(err error) {
	c.callbacks++
	c.err = err
	c.by.s.w.Note("end", c.token, uint64(na.CodeOf(err)))
}

// audit reads the ledger when everything has ended.
func (s *race) audit() {
	for _, c := range s.calls {
		if c.ran > 1 {
			s.fail("call %d ran %d times", c.token, c.ran)
		}
		if c.by.crashed {
			if c.callbacks > 1 {
				s.fail("call %d of a crashed node had %d callbacks", c.token, c.callbacks)
			}
			for _, k := range c.asks {
				if k.reported > 1 {
					s.fail("a withdraw of call %d of a crashed node had %d callbacks", c.token, k.reported)
				}
				if k.reported == 1 && k.r == hg.Withdrawn && c.ran > 0 {
					s.fail("call %d was withdrawn from a node that has crashed, and ran", c.token)
				}
			}
			continue
		}
		if c.callbacks != 1 {
			s.fail("call %d had %d callbacks", c.token, c.callbacks)
			continue
		}
		s.auditCall(c)
		for i := range c.asks {
			s.auditAsk(c, &c.asks[i])
			if k, first := &c.asks[i], &c.asks[0]; !k.ended && k.r != first.r {
				s.fail("withdraws of call %d before its callback gave %v and %v", c.token, first.r, k.r)
			}
		}
	}
}

func (s *race) auditCall(c *raceCall) {
	fate := hg.FateOf(c.err)
	switch {
	case c.err == nil && !c.oneWay && c.ran != 1:
		s.fail("call %d succeeded and ran %d times", c.token, c.ran)
	case c.err != nil && fate == na.NotRun && c.ran != 0:
		s.fail("call %d did not run according to %q, and ran", c.token, c.err)
	case c.err != nil && fate == na.Ran && c.ran != 1:
		s.fail("call %d ran according to %q, and did not", c.token, c.err)
	}
}

// auditAsk: withdrawn and not run, or too late and run; indeterminate only after a failure.
func (s *race) auditAsk(c *raceCall, k *withdrawal) {
	if k.reported != 1 {
		s.fail("a withdraw of call %d had %d callbacks", c.token, k.reported)
		return
	}
	switch k.r {
	case hg.Withdrawn:
		switch {
		case k.ended, k.over && k == &c.asks[0]:
			s.fail("call %d was over, its withdraw gave %v", c.token, k.r)
		case c.ran != 0:
			s.fail("call %d was withdrawn and ran", c.token)
		case !errors.Is(c.err, hg.ErrCanceled):
			s.fail("call %d was withdrawn and ended with %v", c.token, c.err)
		case hg.FateOf(c.err) != na.NotRun:
			s.fail("call %d was withdrawn and its error is %v", c.token, hg.FateOf(c.err))
		}
	case hg.TooLate:
		lost := !s.opts.isClean() && (c.oneWay || errors.Is(c.err, hg.ErrPeerLost) || errors.Is(c.err, hg.ErrUnreachable))
		dropped := c.oneWay && c.canceled // it had left, but its body had not
		if c.ran != 1 && !k.over && !k.bounded && !lost && !dropped {
			s.fail("withdraw of call %d was too late, and it did not run; it ended with %v", c.token, c.err)
		}
	case hg.Indeterminate:
		switch {
		case k.ended, k.over && k == &c.asks[0]:
			s.fail("call %d was over, its withdraw gave %v", c.token, k.r)
		case s.opts.isClean() && !c.canceled && !c.bounded:
			s.fail("the outcome of call %d is unknown, and nothing failed; it ended with %v", c.token, c.err)
		case c.err == nil && !c.oneWay:
			s.fail("the outcome of call %d is unknown, and it succeeded", c.token)
		}
	default:
		s.fail("withdraw of call %d gave %v", c.token, k.r)
	}
}
