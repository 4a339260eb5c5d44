package hg

import (
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The machines of this package: what a call, a withdrawal and a service (the target's side of a call) can be in the
// middle of, what can happen to them then, and what may come of it. docs/internals/STATES.md draws them. Nothing here decides
// anything: each event is checked against its table, in tests, between found and note.

// The events of all three machines.
const (
	evForward       fsmcheck.Event = iota // Forward or ForwardRaw
	evSent                                // the request, or the response, has left
	evSendFailed                          // and will not
	evTooLong                             // the peer takes shorter messages
	evReceived                            // a response came
	evReceiveFailed                       // and will not
	evPulled                              // the body of the output is there
	evPullFailed
	evLoanEnded     // nobody can read the input, or the output, any more
	evDeadline      // the time is up
	evTimerEnded    // and cannot be any more
	evCancel        // Cancel
	evAbandon       // Abandon
	evWithdraw      // Withdraw
	evDestroyed     // the target says that it has destroyed the request
	evKept          // that it has not
	evUnknown       // nobody knows
	evCallEnds      // every part of the call has ended
	evTrigger       // Trigger runs the callback
	evReset         // Reset
	evOutput        // Output or OutputRaw
	evArrived       // a request came
	evFetch         // its input did not fit
	evFetched       // and is there
	evFetchFailed   // and will not be
	evNoRoom        // as many handlers are at work as may be
	evGiven         // to Config.Dispatch
	evTaken         // by Run, or by what ends it before
	evDispatched    // there is room, or no use in waiting
	evRefused       // its handler will not run: no such RPC, and the like
	evExpired       // its handler will not run: the deadline has passed
	evGone          // the origin has withdrawn or abandoned it
	evClosed        // the context is closed
	evBegan         // its handler begins
	evReturned      // and has returned
	evRespond       // Respond, or an answer of our own
	evSilent        // the last reference goes, and nobody has answered
	evGivenUp       // nor can be answered
	evLastReference // the last Close
)

var eventNames = []string{
	"forward", "sent", "send failed", "too long", "received", "receive failed", "pulled",
	"pull failed", "loan ended", "deadline", "timer ended", "cancel", "abandon", "withdraw", "destroyed", "kept", "unknown",
	"call ends", "trigger", "reset", "output", "arrived", "fetch", "fetched", "fetch failed", "no room", "given", "taken", "dispatched",
	"refused", "expired", "gone", "closed", "began", "returned", "respond", "silent", "given up",
	"last reference",
}

// endEvent names the end of a part.
func endEvent(err error, ended, failed fsmcheck.Event) fsmcheck.Event {
	if err != nil {
		return failed
	}
	return ended
}

func sendEvent(r na.Result) fsmcheck.Event {
	if na.CodeOf(r.Err) == na.ErrMsgSize {
		return evTooLong
	}
	return endEvent(r.Err, evSent, evSendFailed)
}

// wordEvent names what is known about a request that was to be destroyed. An answer says that it was not.
func wordEvent(code na.Code, answered bool) fsmcheck.Event {
	switch {
	case answered, code == na.ErrTooLate, code == na.ErrUnsupported:
		return evKept
	case code == na.OK:
		return evDestroyed
	}
	return evUnknown
}

// in makes a list of states.
func in(list ...fsmcheck.State) []fsmcheck.State { return list }

// The states of a call.
const (
	callIdle     fsmcheck.State = iota
	callAsking                  // the request has not left
	callWaiting                 // it has; no response yet
	callEarly                   // the response is there before the request is known to have left
	callFetching                // the output is being pulled
	callLending                 // one-way: the target has not given the input back
	callLeaving                 // what it comes to is certain; a loan or the timer, which are of no use, have not ended
	callEnding                  // this side has ended it, or a part failed; others have not ended
	callQueued                  // the callback waits for Trigger
)

var (
	callStates = []string{"idle", "asking", "waiting", "early", "fetching", "lending", "leaving", "ending", "queued"}

	underWay = in(callAsking, callWaiting, callFetching, callLending) // and callEarly, which is rare
	notIdle  = in(callAsking, callWaiting, callFetching, callLending, callLeaving, callEnding, callQueued)
)

var calls = fsmcheck.New("call", callStates, eventNames, []fsmcheck.Row{
	{On: evForward, In: in(callIdle), To: in(callAsking, callEnding, callIdle)},
	{On: evForward, In: notIdle, Refused: "ErrBusy"},
	{On: evForward, In: in(callEarly), Refused: "ErrBusy", Race: true},

	{On: evSent, In: in(callAsking), To: in(callWaiting, callLending, callLeaving, callQueued)},
	{On: evSent, In: in(callEarly), To: in(callLeaving, callQueued), Race: true},
	{On: evSent, In: in(callFetching), Race: true},
	{On: evSent, In: in(callEnding), To: in(callEnding, callQueued)},
	{On: evSendFailed, In: in(callAsking, callEnding), To: in(callEnding, callQueued)},
	{On: evSendFailed, In: in(callEarly), To: in(callEnding, callQueued), Race: true},
	{On: evSendFailed, In: in(callFetching), To: in(callEnding), Race: true},
	{On: evTooLong, In: in(callAsking), To: in(callAsking, callEnding, callQueued)},
	{On: evTooLong, In: in(callEnding), To: in(callEnding, callQueued)},

	{On: evReceived, In: in(callAsking), To: in(callEarly, callFetching), Race: true},
	{On: evReceived, In: in(callWaiting), To: in(callFetching, callLeaving, callQueued)},
	{On: evReceived, In: in(callEnding), To: in(callEnding, callQueued)},
	{On: evReceiveFailed, In: in(callAsking), To: in(callEnding)},
	{On: evReceiveFailed, In: in(callWaiting, callEnding), To: in(callEnding, callQueued)},
	{On: evPulled, In: in(callFetching), To: in(callEarly, callLeaving, callQueued)},
	{On: evPullFailed, In: in(callFetching), To: in(callEarly, callLeaving, callQueued)},
	{On: evPulled, In: in(callEnding), To: in(callEnding, callQueued)},
	{On: evPullFailed, In: in(callEnding), To: in(callEnding, callQueued)},

	{On: evLoanEnded, In: in(callAsking, callWaiting)},
	{On: evLoanEnded, In: in(callEarly, callFetching), Race: true},
	{On: evLoanEnded, In: in(callLending), To: in(callLeaving, callQueued)},
	{On: evLoanEnded, In: in(callLeaving), To: in(callLeaving, callQueued), Race: true},
	{On: evLoanEnded, In: in(callEnding), To: in(callEnding, callQueued)},
	{On: evDeadline, In: underWay, To: in(callEnding)},
	{On: evDeadline, In: in(callEarly), To: in(callEnding), Race: true},
	{On: evDeadline, In: in(callLeaving, callEnding), To: in(callEnding, callQueued)},
	{On: evTimerEnded, In: underWay},
	{On: evTimerEnded, In: in(callEarly), Race: true},
	{On: evTimerEnded, In: in(callLeaving), To: in(callLeaving, callQueued)},
	{On: evTimerEnded, In: in(callEnding), To: in(callEnding, callQueued)},

	{On: evCancel, In: underWay, To: in(callEnding)},
	{On: evCancel, In: in(callEarly), To: in(callEnding), Race: true},
	{On: evCancel, In: in(callLeaving, callEnding), To: in(callEnding)},
	{On: evCancel, In: in(callIdle, callQueued)},
	{On: evAbandon, In: underWay, To: in(callEnding)},
	{On: evAbandon, In: in(callEarly), To: in(callEnding), Race: true},
	{On: evAbandon, In: in(callLeaving, callEnding), To: in(callEnding)},
	{On: evAbandon, In: in(callIdle, callQueued)},
	{On: evWithdraw, In: in(callIdle, callQueued, callLeaving, callEnding)},
	{On: evWithdraw, In: underWay},
	{On: evWithdraw, In: in(callEarly), Race: true},
	{On: evDestroyed, In: in(callWaiting), To: in(callEnding)},
	{On: evDestroyed, In: in(callEnding, callQueued)},
	{On: evKept, In: in(callWaiting, callFetching, callLeaving, callEnding, callQueued)},
	{On: evUnknown, In: in(callWaiting), To: in(callEnding)},
	{On: evUnknown, In: in(callAsking, callEarly, callFetching), To: in(callEnding), Race: true},
	{On: evUnknown, In: in(callEnding, callQueued)},

	{On: evTrigger, In: in(callQueued), To: in(callIdle)},
	{On: evReset, In: in(callIdle)},
	{On: evReset, In: notIdle, Refused: "ErrBusy"},
	{On: evReset, In: in(callEarly), Refused: "ErrBusy", Race: true},
	{On: evOutput, In: in(callIdle)},
	{On: evOutput, In: notIdle, Refused: "ErrBusy"},
	{On: evOutput, In: in(callEarly), Refused: "ErrBusy", Race: true},
	{On: evLastReference, In: in(callIdle)},
})

// state derives the state of a call. Locked.
func (k *call) state() fsmcheck.State {
	switch k.phase {
	case idle:
		return callIdle
	case queued:
		return callQueued
	}
	sending := k.sending && !k.sendEnded
	receiving := k.parts // without the others
	for _, part := range []bool{sending, k.loan != nil, k.pull != nil, k.timing} {
		if part {
			receiving--
		}
	}
	switch {
	case k.canceling || k.taken() || k.sent.Err != nil || k.received.Err != nil:
		return callEnding
	case k.pull != nil:
		return callFetching
	case sending && (receiving > 0 || k.h.rpc.OneWay):
		return callAsking
	case sending:
		return callEarly
	case receiving > 0:
		return callWaiting
	case k.loan != nil && k.h.rpc.OneWay:
		return callLending
	}
	return callLeaving
}

// found begins the taking in of e, and returns it for note, which ends it. Locked.
func (k *call) found(e fsmcheck.Event) fsmcheck.Event {
	if fsmcheck.Checking() {
		k.check(e)
	}
	return e
}

func (k *call) check(e fsmcheck.Event) { k.h.track.Found(calls, e, k.state()) }

func (k *call) note(e fsmcheck.Event) {
	if fsmcheck.Checking() {
		k.count(e)
	}
}

func (k *call) count(e fsmcheck.Event) { k.h.track.Moved(calls, e, k.state()) }

// The states of a withdrawal.
const (
	withdrawalNew       fsmcheck.State = iota
	withdrawalRecalling                // the send was canceled and has not ended
	withdrawalAsking                   // the target was asked
	withdrawalLost                     // nobody will say; the call was canceled and has not ended
	withdrawalSettled                  // the callbacks wait for Trigger
	withdrawalTold
)

var withdrawals = fsmcheck.New("withdrawal", []string{"new", "recalling", "asking", "lost", "settled", "told"}, eventNames, []fsmcheck.Row{
	{On: evWithdraw, In: in(withdrawalNew), To: in(withdrawalRecalling, withdrawalAsking, withdrawalLost, withdrawalSettled)},
	{On: evWithdraw, In: in(withdrawalRecalling, withdrawalAsking)}, // another one, which waits for the same
	{On: evWithdraw, In: in(withdrawalLost), Race: true},
	{On: evSent, In: in(withdrawalRecalling), To: in(withdrawalAsking, withdrawalLost, withdrawalSettled)},
	{On: evSent, In: in(withdrawalLost), Race: true},
	{On: evSendFailed, In: in(withdrawalRecalling), To: in(withdrawalSettled, withdrawalLost)},
	{On: evSendFailed, In: in(withdrawalLost), Race: true},
	{On: evDestroyed, In: in(withdrawalAsking), To: in(withdrawalSettled)},
	{On: evKept, In: in(withdrawalAsking), To: in(withdrawalSettled)},
	{On: evUnknown, In: in(withdrawalAsking), To: in(withdrawalSettled, withdrawalLost)},
	{On: evDeadline, In: in(withdrawalRecalling), To: in(withdrawalLost), Race: true},
	{On: evDeadline, In: in(withdrawalAsking)},
	{On: evTimerEnded, In: in(withdrawalRecalling), Race: true},
	{On: evTimerEnded, In: in(withdrawalAsking)},
	{On: evCallEnds, In: in(withdrawalAsking)},
	{On: evCallEnds, In: in(withdrawalLost), To: in(withdrawalSettled)},
	{On: evTrigger, In: in(withdrawalSettled), To: in(withdrawalTold)},
})

// state derives the state of a withdrawal. Locked.
func (w *withdrawal) state() fsmcheck.State {
	switch {
	case w.settled && w.cbs == nil:
		return withdrawalTold
	case w.settled:
		return withdrawalSettled
	case w.cbs == nil:
		return withdrawalNew
	case w.lost:
		return withdrawalLost
	case w.asking:
		return withdrawalAsking
	}
	return withdrawalRecalling
}

func (w *withdrawal) found(e fsmcheck.Event) fsmcheck.Event {
	if fsmcheck.Checking() {
		w.track.Found(withdrawals, e, w.state())
	}
	return e
}

func (w *withdrawal) note(e fsmcheck.Event) {
	if fsmcheck.Checking() {
		w.track.Moved(withdrawals, e, w.state())
	}
}

// The states of a service.
const (
	serviceSpare    fsmcheck.State = iota // of no request
	serviceArrived                        // new, or in the queue of Trigger
	serviceFetching                       // the input is being fetched
	serviceWaiting                        // for room
	serviceGiven                          // to Config.Dispatch; Run has not come
	serviceRunning                        // the handler has begun, and nobody has answered
	serviceSending                        // the response has not left
	serviceRecalled                       // it was canceled before it left; the callback waits for Trigger
	serviceLending                        // it has left; the origin has not given the output back
	serviceAnswered                       // it has left, or cannot any more
	serviceRejected                       // the handler will not run, and the answer that says so could not leave
)

var serviceStates = []string{"spare", "arrived", "fetching", "waiting", "given", "running", "sending", "recalled", "lending", "answered", "rejected"}

var services = fsmcheck.New("service", serviceStates, eventNames, []fsmcheck.Row{
	{On: evArrived, In: in(serviceSpare), To: in(serviceArrived)},
	{On: evFetch, In: in(serviceArrived), To: in(serviceFetching)},
	{On: evFetched, In: in(serviceFetching), To: in(serviceArrived)},
	{On: evFetchFailed, In: in(serviceFetching), To: in(serviceArrived)},
	{On: evNoRoom, In: in(serviceArrived), To: in(serviceWaiting)},
	{On: evDispatched, In: in(serviceWaiting), To: in(serviceArrived)},
	{On: evGiven, In: in(serviceArrived), To: in(serviceGiven)},
	{On: evTaken, In: in(serviceGiven), To: in(serviceArrived)},
	{On: evRefused, In: in(serviceArrived)},
	{On: evExpired, In: in(serviceArrived)},
	{On: evGone, In: in(serviceArrived)},
	{On: evClosed, In: in(serviceArrived)},
	{On: evBegan, In: in(serviceArrived), To: in(serviceRunning)},
	{On: evReturned, In: in(serviceRunning, serviceSending, serviceRecalled, serviceLending, serviceAnswered)},

	{On: evRespond, In: in(serviceArrived, serviceRejected), To: in(serviceSending, serviceArrived, serviceRejected)}, // by reject
	{On: evRespond, In: in(serviceGiven), Refused: "ErrInvalid"},
	{On: evRespond, In: in(serviceRunning), To: in(serviceSending, serviceRunning)}, // one-way: ErrUnsupported
	{On: evRespond, In: in(serviceSending, serviceRecalled, serviceLending, serviceAnswered), Refused: "ErrAnswered"},
	{On: evSent, In: in(serviceSending), To: in(serviceLending, serviceAnswered)},
	{On: evSendFailed, In: in(serviceSending), To: in(serviceLending, serviceAnswered, serviceRecalled, serviceRunning, serviceRejected)},
	{On: evTooLong, In: in(serviceSending), To: in(serviceSending, serviceLending, serviceAnswered, serviceRecalled, serviceRunning, serviceRejected)},
	{On: evLoanEnded, In: in(serviceRunning, serviceSending, serviceRecalled)},
	{On: evLoanEnded, In: in(serviceLending), To: in(serviceAnswered, serviceLending)}, // or that of an earlier response
	{On: evLoanEnded, In: in(serviceAnswered), Race: true},                             // that of an earlier response
	{On: evTrigger, In: in(serviceRecalled), To: in(serviceRunning)},
	{On: evTrigger, In: in(serviceLending, serviceAnswered)},
	{On: evCancel, In: in(serviceGiven, serviceRunning, serviceSending, serviceRecalled, serviceLending, serviceAnswered)},

	{On: evSilent, In: in(serviceRunning, serviceRejected)},
	{On: evGivenUp, In: in(serviceRunning), To: in(serviceAnswered), Race: true},
	{On: evGivenUp, In: in(serviceArrived, serviceRejected), To: in(serviceAnswered)},
	{On: evLastReference, In: in(serviceArrived, serviceRunning, serviceAnswered, serviceRejected), To: in(serviceSpare)},
})

// state derives the state of a service. Until its handler begins whoever has it to do with the request owns it, and from
// then on it is guarded by the handle's lock.
func (s *service) state() fsmcheck.State {
	switch {
	case s.pull != nil:
		return serviceFetching
	case s.waits:
		return serviceWaiting
	case s.given:
		return serviceGiven
	case s.answer == sending:
		return serviceSending
	case s.answer == answered && s.retry:
		return serviceRecalled
	case s.answer == answered && s.loan != nil:
		return serviceLending
	case s.answer == answered:
		return serviceAnswered
	case s.runs.Load() != nil:
		return serviceRunning
	case s.env == nil && s.failed:
		return serviceRejected
	case s.env == nil:
		return serviceSpare
	}
	return serviceArrived
}

func (s *service) found(e fsmcheck.Event) fsmcheck.Event {
	if fsmcheck.Checking() {
		s.check(e)
	}
	return e
}

func (s *service) check(e fsmcheck.Event) { s.track.Found(services, e, s.state()) }

func (s *service) note(e fsmcheck.Event) {
	if fsmcheck.Checking() {
		s.count(e)
	}
}

func (s *service) count(e fsmcheck.Event) { s.track.Moved(services, e, s.state()) }

// noted is an event that changes nothing.
func (s *service) noted(e fsmcheck.Event) { s.note(s.found(e)) }
