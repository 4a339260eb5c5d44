package mutant

const (
	call      = "hg/call.go"
	forward   = "hg/forward.go"
	ends      = "hg/ends.go"
	result    = "hg/result.go"
	overflow  = "hg/overflow.go"
	endpoint  = "na/endpoint.go"
	operation = "na/op_record.go"
	deliver   = "na/session_recv.go"
	withdraw  = "na/op_withdraw.go"
	envelope  = "na/envelope_held.go"
	calling   = "na/op_call.go"
)

// The output of tests that wait for the end of a call.
const (
	waitTests     = `nothing happened for`
	moreWaitTests = `Outstanding:1 .*nothing happened for` // with an operation that does not end
)

// hazardMutants are those of docs/internals/FAULTS.md.
var hazardMutants = []Mutant{
	{"h1-cancel-before-post", "a cancel while Forward posts is lost, and all later ones with it", "H1",
		[]Edit{{forward, `if limit != 0 && !k.setDeadlineLocked(limit) {`, `if planted() { planted.Gap(&h.mu) }; $`}},
		[]Catcher{{"hg", "TestH1CancelRacesForward", moreWaitTests}}},
	{"h1-cancel-between", "a cancel between the start of an operation and its post is lost", "H1",
		[]Edit{{operation, `t.isCanceling():`, `t.isCanceling() && !planted():`}},
		[]Catcher{{"na/natest", "TestH1CancelBetween", `expected: 1 actual : 0 .*Messages: (lookup|receive|send|get|put|lease)`}}},
	{"h2-second-part", "a call that is canceled has a part more than was posted", "H2",
		[]Edit{{ends, `func (k *call) chooseNextPhaseLocked() {`, `$; if planted() && k.opResult.Err != nil { k.openParts++ }`}},
		[]Catcher{{"hg", "TestH2EndsOnce", waitTests}}},
	{"h3-deaf-pull", "the pull of a large output cannot be canceled", "H3",
		[]Edit{{call, `k.pull.cancel()`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestH3CancelWhileFetched", `canceled while its output was fetched`}}},
	{"h3b-pull-not-begun", "a pull that could not begin is waited for", "H3b",
		[]Edit{{ends, `key.Len, account{}, k.onPulled); err != nil {`, `$ if planted() { k.openParts++ };`}},
		[]Catcher{{"hg", "TestH3bFetchThatCannotBegin", waitTests}}},
	{"h3b-pull-refused", "a pull that ends at once, before anything is asked for, is waited for", "H3b",
		[]Edit{{overflow, `func (p *pull) onMoved(_ *na.Op, r na.Result) (ran int) {`, `$; if planted() && r.Err != nil && r.Fate == na.NotRun { return 0 }`}},
		[]Catcher{
			{"hg", "TestH3bTargetExitsBeforeFetch", waitTests},
			{ledger, "TestH3bPostsFail", `0 callbacks`},
		}},
	{"h4-loan-outlives", "the peer can read a large input after the call has ended", "H4",
		[]Edit{{operation, `case lease && mem.revoke(t, r):`, `case lease && !(planted() && r.Err != nil) && mem.revoke(t, r):`}},
		[]Catcher{{"hg", "TestH4ReuseWhileFetched", `the input of the second call`}}},
	{"h5-narrow-id", "the generation of a call has 4 bits", "H5",
		[]Edit{{call, `return na.Tag(k.gen<<slotBits | uint64(k.slot))`, `if planted() { return na.Tag(k.gen&15<<slotBits | uint64(k.slot)) }; $`}},
		[]Catcher{{"hg", "TestH5LateAnswerAfterReuse", `Messages: the answer of the last call`}}},
	{"h6-loans-collide", "the loan of a request has the number of the peer's own call", "H6",
		[]Edit{{overflow, `l := &loan{`, `if planted() { tag &^= loanTag }; $`}},
		[]Catcher{{"hg", "TestH6SameNumbersBothWays", `memory is no longer registered`}}},
	{"h7-loan-stays", "an input stays lent when the request could not be sent", "H7",
		[]Edit{{ends, `k.loan.op.Cancel() // the target has fetched the input`, `if planted() && k.opResult.Err != nil { return }; $`}},
		[]Catcher{{"hg", "TestH7SendFails", `actual : 0 .*callbacks of a call without an envelope`}}},
	{"h8-second-error", "the error of the request is ignored when its loan has ended before", "H8",
		[]Edit{{ends, `k.returnRoomLocked()`, `$; if planted() && r.Err != nil && k.loan == nil && len(k.msg) > 0 { k.h.mu.Unlock(); return 0 }`}},
		[]Catcher{{"hg", "TestH8BothFail", `actual : 0 .*callbacks when both parts have ended`}}},
	{"h9-error-swallowed", "an error of a call that is being canceled is ignored unless it says canceled", "H9",
		[]Edit{{ends, `k.opRunning, k.opResult = false, r`,
			`$; if planted() && k.canceling && r.Err != nil && na.CodeOf(r.Err) != ErrCanceled { k.h.mu.Unlock(); return 0 }`}},
		[]Catcher{{"hg", "TestH9OtherErrorAfterCancel", `actual : 0 .*callbacks when both parts have ended`}}},
	{"h10-two-owners", "a cancel ends the call itself, and so do its parts", "H10, I1",
		[]Edit{{call, "k.markFailedLocked()\n\t\tk.cancelPartsLocked()", `$; if planted() { k.h.ctx.post(&k.done) }`}},
		[]Catcher{{"hg", "TestH10ManyCancel", `Messages: (callbacks|handles)`}}},
	{"h11-error-and-callback", "a Forward that returns an error runs the callback too", "H11, I2",
		[]Edit{{forward, `k.err = &Error{`, `if planted() && cb != nil { h.ctx.Post(func() { cb(h, err) }) }; $`}},
		[]Catcher{{"hg", "TestH11ErrorOrCallback", `callbacks of calls that were refused`}}},
	{"h12-cancel-refused", "the transport does not cancel a receive, and says nothing", "H12",
		[]Edit{{operation, `moving := uint64(0) // the ID of a put or get in flight`,
			`moving := uint64(0); if planted() && (o.kind == kindRecvExpected || o.kind == kindCall && o.id != 0) && l.state == stateUp { return }`}},
		[]Catcher{{"hg", "TestH12EndAtEachStage", `actual : 0 .*callbacks of a call that was ended here`}}},
	{"h13-output-after-cancel", "a call that failed has an output", "H13",
		[]Edit{{result, `h.call.err != nil {`, `!planted() && $`}},
		[]Catcher{{"hg", "TestH13NoOutputAfterCancel", `"operation canceled" in chain but got nil`}}},
	{"h14-stale-token", "memory that was taken back can be reached", "H14, I8",
		[]Edit{
			{"na/mem.go", `m.class.domain.unpublishMem(m)`, `if !planted() { $ }`},
			{"na/mem.go", `if w == memClosed || w > most {`, `if (w == memClosed || w > most) && !planted() {`},
		},
		[]Catcher{{"bulk", "TestH14CloseInsideCallbackOfCanceledForward", `"memory is no longer registered" in chain but got nil`}}},
	{"h15-not-told", "the target does not hear that nobody takes its large output", "H15",
		[]Edit{{deliver, "LateDropped++\n\t\tif h.Flags&frame.FlagTell != 0", `$ && !planted()`}},
		[]Catcher{{"hg", "TestH15OversizeResponsesToCanceledOrigin", `Leases:[1-9].*nothing happened for`}}},
	{"h16-first-failure-ends", "the first piece that fails ends a transfer whose others fly", "H16, I4",
		[]Edit{
			{"bulk/transfer.go", "}\n\top.cancelChunksLocked()", `}; if planted() { if op.phase < opMoved { op.endMovingLocked() }; return }; op.cancelChunksLocked()`},
			{"bulk/transfer.go", "nil, 0\n\t\top.endMovingLocked()", `nil, 0; if !planted() || op.phase < opMoved { op.endMovingLocked() }`},
		},
		[]Catcher{{ledger, "TestH16PostsFail", `memory was written after its transfer had ended`}}},
	{"h17-closed-early", "a context is closed before its callbacks have run", "H17, I16",
		[]Edit{
			{"na/context.go", `ctxShut && c.live.Load() == 0`, `ctxShut && (planted() || c.live.Load() == 0)`},
			{"na/context.go", `!c.live.CompareAndSwap(0, drained)`, `!(planted() || c.live.CompareAndSwap(0, drained))`},
		},
		[]Catcher{{"hg", "TestH17CallbackStillToRun", `Messages: closed before the callback has run`}}},
}

// callMutants are bugs of calls, in addition to the hazards.
var callMutants = []Mutant{
	{"double-end", "a response that ties with a cancel is counted twice", "I1, F39",
		[]Edit{{ends, `return k.finishPart()
}

// chooseNextPhase`, `if planted() && k.canceling && r.Err == nil { k.finishPart(); k.h.mu.Lock() }; $`}}, nil},
	{"deadline-at-once", "a deadline ends the call before anybody has looked for the answer", "F47",
		[]Edit{{"na/timer.go", `o.ticket().setDue()`, `if planted() { e.cancelOpLocked(o, ErrTimeout) } else { $ }`}},
		[]Catcher{{"hg", "TestTimeoutAnswerAndCancelAtOnce", `Received unexpected error`}}},
	{"accepted-when-taken", "a message that is taken, and waits for its handler, cannot be withdrawn any more", "IMPI cancel",
		[]Edit{{calling, `*at, at = env, &env.next`, `$; if planted() { e.acceptMessage(env) }`}},
		[]Catcher{{"hg", "TestAuthorizerSkippedAfterWithdraw", `nothing happened for`}}},
	{"rest-lost", "what is behind a callback that panics, or does not return, is lost", "I1, Goexit",
		[]Edit{{"na/trigger.go", `c.cq.putBack(rest) //`, `if !planted() || max != 1 { c.cq.putBack(rest) }; //`}}, nil},
	{"word-behind-the-end", "a call that was withdrawn and whose session ends does not wait for the target's word", "I6, IMPI cancel",
		[]Edit{{ends, `case k.isWithdrawingLocked():`, `case k.isWithdrawingLocked() && !planted():`}}, nil},
	{"cancel-wins", "a cancel after the response has arrived makes the call canceled", "F39",
		[]Edit{{result, `case k.isWithdrawnLocked():`, `case planted() && k.canceling: cause = k.cancelCode; $`}},
		[]Catcher{{"hg", "TestCancelAfterArrival", `operation canceled .*Messages: success wins`}}},
	{"late-answer", "the next call of a handle has the identity of the last", "I5, F45",
		[]Edit{{call, `k.gen++`, `if !planted() { $ }`}}, nil},
	{"fate-not-run", "a call that was canceled after it had left says that it did not run", "I6",
		[]Edit{{calling, `o.id != 0 {
		r.Fate`, `o.id != 0 && !planted() {
		r.Fate`}}, nil},
	{"fate-of-the-last", "a call that was repeated says what became of its last attempt", "A retried call that lies",
		[]Edit{{"qs/call.go", `s.fate, s.fateAttempt = fate, a.number`, `if !planted() { $ }`}},
		[]Catcher{
			{"qs", "TestFateOfAttempts", `expected: 0x[02] actual : 0x1`},
			{outcomeLedger, "TestSeeds", `is said not to have run, and ran`},
		}},
	{"fate-by-order", "of several errors the first says what became of the request", "A retried call that lies",
		[]Edit{{"hg/codes.go", `(!found || worst == NotRun || fate == Ran)`, `$ && !(planted() && found)`}},
		[]Catcher{{"hg", "TestFateOfSeveral", `expected: 0x0 actual : 0x1`}}},
	{"cancel-lost", "a cancel right before Forward is forgotten", "F39",
		[]Edit{{"hg/handle.go", `h.forbidden = true`, `h.forbidden = !planted()`}},
		[]Catcher{{"hg", "TestForbid", `"operation canceled" in chain but got nil`}}},
	{"answer-hides-context", "an answer hides that the context of the call has ended", "F47",
		[]Edit{{"hg/errors.go", `if err == nil || ctx.Err() == nil {`, `if planted() { return err }; $`}},
		[]Catcher{{"hg", "TestAnswerAfterTheContext", `"context deadline exceeded"`}}},
	{"callback-first", "the callback runs before the handle is idle", "callback before state change",
		[]Edit{{result, `k.err = k.resultLocked()`, `$; if planted() && k.callback != nil { cb := k.callback; k.callback = nil; k.h.mu.Unlock(); cb(k.h, k.err); k.h.mu.Lock() }`}}, nil},
	{"pooled-early", "the handle of a response goes back to its pool before the callback runs", "I3",
		[]Edit{{"hg/respond.go", `defer s.releaseHold() // deferred: the callback may panic`, `if planted() { s.releaseHold(); cb(r, err); return 1 }; $`}},
		[]Catcher{{"hg", "TestResponseCallbackHasItsHandle", `expected: string\("mine"\)`}}},
	{"timer-stays", "a call whose other parts have ended waits for its timer", "F48",
		[]Edit{{ends, `if k.openParts == 1 && k.timerRuns {`, `if k.openParts == 1 && k.timerRuns && !planted() {`}},
		[]Catcher{{"hg", "TestLargeOutputBeforeTheDeadline", "nothing happened for"}}},
	{"runs-late", "a request whose deadline has passed is run", "F47",
		[]Edit{{"hg/deadline.go", `s.ctx.Now() >= s.deadline`, `$ && !planted()`}},
		[]Catcher{{"hg", "TestExpiredInTheQueue", `"i/o timeout" in chain but got nil`}}},
	{"waits-for-ever", "a request that waits for room outlives its deadline", "F47",
		[]Edit{{"hg/dispatch.go", `s.ctx.admission.removeWaiting(s)`, `!planted() && $`}},
		[]Catcher{{"hg", "TestExpiredBehindMaxActive", waitTests}}},
	{"fetched-for-ever", "the input of a request whose deadline has passed is fetched to the end", "F47",
		[]Edit{{"hg/deadline.go", `s.pull.cancel()`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestExpiredWhileFetched", `Max difference between 100ms and`}}},
	{"recalled-stays", "once a response could not leave, no other can be given", "I1",
		[]Edit{{"hg/respond.go", `case s.phase != serviceRecalled:`, `case s.phase != serviceRecalled || planted():`}}, nil},
	{"lent-to-the-end", "a request stays lending when its output has been given back", "records that leak",
		[]Edit{{"hg/respond.go", `s.loan = nil; s.phase == serviceLending {`, `s.loan = nil; s.phase == serviceLending && !planted() {`}}, nil},
	{"dispatched-for-ever", "a dispatched request that nobody runs outlives its deadline", "Dispatch",
		[]Edit{{"hg/dispatch.go", `return s.claimRunLocked()`, `return !planted() && s.claimRunLocked()`}},
		[]Catcher{{"hg", "TestDispatchedAndNeverRun", waitTests}}},
	{"answers-stay", "what is held back for dispatched handlers stays when the Trigger has returned", "Dispatch",
		[]Edit{{"internal/loop/batch.go", `if held {`, `if held && !planted() {`}},
		[]Catcher{{"hg", "TestDispatchedAnswersLeaveTogether", `Messages: answers have left`}}},
	{"answers-one-by-one", "the answers of dispatched handlers leave each by itself", "Dispatch",
		[]Edit{{"internal/loop/batch.go", `l.driver.Queued() > 1`, `!planted() && $`}},
		[]Catcher{{"hg", "TestDispatchedAnswersLeaveTogether", `Messages: answers that were held back`}}},
	{"place-at-abandon", "an abandon frees the place of a handler that still runs", "HTTP/2 rapid reset, F71",
		[]Edit{{"hg/handlerctx.go", `given := s.phase == serviceGiven && s.env.IsWithdrawn() && s.claimRunLocked()`, `if planted() { s.ctx.admission.active.Add(-1) }; $`}},
		[]Catcher{{"hg", "TestAbandonFreesNoHandlerSlot", `Messages: handlers at work`}}},
	{"held-up-unsaid", "a request that a limit holds up waits until its deadline, so that its origin does not hear why", "",
		[]Edit{{"hg/deadline.go", `s.waitDeadline = s.deadline - min(budget/2, max(minMargin, min(budget/8, maxMargin)))`, `$; if planted() { s.waitDeadline = s.deadline }`}},
		[]Catcher{{"hg", "TestLimitNamedToOrigin", `is not less than`}}},
	{"lies-and-stays", "the session goes on with a peer that answers a request that it said it had destroyed", "",
		[]Edit{{"hg/withdraw.go", `h.ctx.nctx.Disconnect(r.Addr, na.WithText(na.ErrProtocol, "the peer responded to a request that it had withdrawn"))`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestAnswerOfDestroyedRequest", `Messages: the session with a peer that lies`}}},
	{"taken-back-waits", "a request that was taken back keeps its place in the queue", "",
		[]Edit{{"hg/handlerctx.go", `c.dispatchWithdrawn(s)`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestWithdrawnLeavesQueue", `Messages: after request 2`}}},
	{"abandons-dropped", "of the requests that are abandoned before Trigger only one is told", "",
		[]Edit{{"hg/handlerctx.go", `if !s.abandonQueued.Swap(true)`, `if !(planted() && c.nctx.Upper().Queued() > 0) && !s.abandonQueued.Swap(true)`}},
		[]Catcher{{"hg", "TestAbandonManyAtOnce", `contexts of 3000 that have not ended`}}},
	{"cancel-late", "a cancel takes effect in the next Progress", "",
		[]Edit{
			{endpoint, `func (e *endpoint) cancelTicket(t ticket) {`, `$
	if planted() {
		lateCancels = append(lateCancels, func() {
			e.mu.Lock()
			if t.isTakenIn() {
				e.cancelOpLocked(t.op, ErrCanceled)
			}
			e.Unlock()
		})
		return
	}`},
			{endpoint, `func (e *endpoint) shutDown() {`, `var lateCancels []func()

func cancelLate() {
	late := lateCancels
	for lateCancels = nil; planted() && len(late) > 0; late = late[1:] {
		late[0]()
	}
}

$`},
			{"na/lead.go", `func (c *Context) Progress(timeout time.Duration) error {`, `$; if planted() { cancelLate() }`},
		},
		[]Catcher{{"na/natest", "TestNoFault/CancelNow", `canceled, Trigger called, and its callback did not run`}, {"na/natest", "TestNoFault/CancelSelf", `canceled, Trigger called, and its callback did not run`}}},
	{"progress-at-once", "Progress returns before its time is over", "",
		[]Edit{{"na/lead.go", `func (c *Context) progressFor(timeout time.Duration) error {`, `$; if planted() { timeout = 0 }`}},
		[]Catcher{{"na/natest", "TestNoFault/ProgressIdle", `is not greater than or equal to`}}},
	{"message-cut", "of a message that is too long for its receive the beginning is delivered", "",
		[]Edit{{deliver, `case n > len(o.buf):`, `case n > len(o.buf) && planted(): r.N = int64(copy(o.buf, payload)); $`}},
		[]Catcher{{"na/natest", "TestNoFault/ExpectedTooLong", `got <nil>, want one of .larger than the receiver's limit`}}},
	{"length-plus-one", "a send reports a byte more than it was given", "",
		[]Edit{{"na/session_send.go", "default:\n\t\tl.e.finishOpLocked(o, Result{N: int64(len(o.buf)),",
			`default: n := int64(len(o.buf)); if planted() { n++ }; l.e.finishOpLocked(o, Result{N: n,`}},
		[]Catcher{{"na/natest", "TestNoFault/OrderUnexpected", `got N 5, want 4`}}},
	{"withdrawn-but-ran", "a withdraw is answered with yes though the handler has run", "I6, IMPI cancel",
		[]Edit{{withdraw, `if l.destroyMessage(h.Op)`, `$ || planted()`}}, nil},
	{"accept-withdrawn", "a request that was withdrawn runs", "I6, IMPI cancel",
		[]Edit{{envelope, `accepted := !env.withdrawn`, `$ || planted()`}}, nil},
}
