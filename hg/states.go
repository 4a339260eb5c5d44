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

// in makes a list of states.
func in(list ...fsmcheck.State) []fsmcheck.State { return list }

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

	{On: evRespond, In: in(serviceArrived, serviceRejected), To: in(serviceSending, serviceAnswered, serviceArrived, serviceRejected)}, // by reject
	{On: evRespond, In: in(serviceGiven), Refused: "ErrInvalid"},
	{On: evRespond, In: in(serviceRunning), To: in(serviceSending, serviceLending, serviceAnswered, serviceRunning)}, // one-way: ErrUnsupported
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
