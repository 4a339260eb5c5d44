package mutant

const (
	call      = "hg/call.go"
	forward   = "hg/forward.go"
	parts     = "hg/parts.go"
	result    = "hg/result.go"
	overflow  = "hg/overflow.go"
	operation = "plugins/internal/engine/op.go"
	deliver   = "plugins/internal/engine/deliver.go"
	withdraw  = "plugins/internal/engine/withdraw.go"
	envelope  = "plugins/internal/engine/envelope.go"
)

// What tests say that wait for the end of a call.
const (
	waits     = `nothing happened for`
	waitsMore = `Outstanding:1 .*nothing happened for` // with an operation that nobody ends
)

// hazards are those of docs/internals/FAULTS.md.
var hazards = []Mutant{
	{"h1-cancel-before-post", "a cancel while Forward posts is lost, and all later ones with it", "H1",
		[]Edit{{forward, `if limit != 0 && !k.setDeadline(limit) {`, `if planted() { planted.Gap(&h.mu) }; $`}},
		[]Catcher{{"hg", "TestH1CancelRacesForward", waitsMore}}},
	{"h1-cancel-between", "a cancel between the start of an operation and its post is lost", "H1",
		[]Edit{{operation, `t.Canceling():`, `t.Canceling() && !planted():`}},
		[]Catcher{{"na/natest", "TestH1CancelBetween", `expected: 1 actual : 0 .*Messages: (lookup|receive|send|get|lease)`}}},
	{"h2-parts-late", "the receive of the response can end before it is counted", "H2",
		[]Edit{{forward, "k.parts++\n\treturn nil", `if planted() { planted.Gap(&k.h.mu) }; $`}},
		[]Catcher{{"hg", "TestH2EndsOnce",
			`Messages: (callbacks|handles)|the handle is closed|closed more often|the handle has a call that has not ended`}}},
	{"h3-deaf-pull", "the pull of a large output cannot be canceled", "H3",
		[]Edit{{call, `k.pull.cancel()`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestH3CancelWhileFetched", `canceled while its output was fetched`}}},
	{"h3b-pull-not-begun", "a pull that could not begin is waited for", "H3b",
		[]Edit{{parts, `{ // it gave the body back`, `{ if planted() { k.parts++ }`}},
		[]Catcher{{"hg", "TestH3bFetchThatCannotBegin", waits}}},
	{"h3b-pull-refused", "a pull that ends at once, before anything is asked for, is waited for", "H3b",
		[]Edit{{overflow, `func (p *pull) moved(_ *na.Op, r na.Result) {`, `$; if planted() && r.Err != nil && r.Fate == na.NotRun { return }`}},
		[]Catcher{
			{"hg", "TestH3bTargetGoesBeforeTheFetch", waits},
			{ledger, "TestH3bPostsFail", `0 callbacks`},
		}},
	{"h4-loan-outlives", "the peer can read a large input after the call has ended", "H4",
		[]Edit{{operation, `!mem.Revoke(t, r)`, `planted() && r.Err != nil || $`}},
		[]Catcher{{"hg", "TestH4ReuseWhileFetched", `the input of the second call`}}},
	{"h5-narrow-id", "the generation of a call has 4 bits", "H5",
		[]Edit{{call, `return na.Tag(k.gen<<slotBits | uint64(k.slot))`, `if planted() { return na.Tag(k.gen&15<<slotBits | uint64(k.slot)) }; $`}},
		[]Catcher{{"hg", "TestH5LateAnswerAfterReuse", `Messages: the answer of the last call`}}},
	{"h6-loans-collide", "the loan of a request has the number of the peer's own call", "H6",
		[]Edit{{overflow, `l := &loan{`, `if planted() { tag &^= loanTag }; $`}},
		[]Catcher{{"hg", "TestH6SameNumbersBothWays", `refused: memory is no longer registered`}}},
	{"h7-receive-stays", "the receive stays posted when the send has failed", "H7",
		[]Edit{{parts, `k.stop() // nobody will answer`, `if !planted() { k.stop() }`}},
		[]Catcher{{"hg", "TestH7SendFails", `actual : 0 .*callbacks of a call without an envelope`}}},
	{"h8-second-error", "the error of the receive is ignored after that of the send", "H8",
		[]Edit{{parts, `k.received = r`, `$; if planted() && r.Err != nil && k.sent.Err != nil { return }`}},
		[]Catcher{
			{"hg", "TestH8BothFail", `actual : 0 .*callbacks when both parts have ended`},
			{"hg", "TestH8PeerGoes", `actual : 0 .*callbacks of a call whose peer has gone`},
			{ledger, "TestH8SendAndReceiveFail", `0 callbacks`},
		}},
	{"h9-error-swallowed", "an error of a call that is being canceled is ignored unless it says canceled", "H9",
		[]Edit{{parts, "if r.Err == nil {\n\t\tk.understand(",
			`if planted() && k.canceling && r.Err != nil && na.CodeOf(r.Err) != ErrCanceled { return }; $`}},
		[]Catcher{
			{"hg", "TestH9OtherErrorAfterCancel", `actual : 0 .*callbacks when both parts have ended`},
			{"hg", "TestH9CancelWhenThePeerHasGone", `actual : 0 .*callbacks of a call whose peer has gone`},
		}},
	{"h10-two-owners", "a cancel ends the call itself, and so do its parts", "H10, I1",
		[]Edit{{call, "k.canceling, k.why = true, why\n\t\tk.stop()", `$; if planted() { k.h.ctx.post(&k.done) }`}},
		[]Catcher{{"hg", "TestH10ManyCancel", `Messages: (callbacks|handles)`}}},
	{"h11-error-and-callback", "a Forward that returns an error runs the callback too", "H11, I2",
		[]Edit{{forward, `k.err = &Error{`, `if planted() && cb != nil { h.ctx.Post(func() { cb(h, err) }) }; $`}},
		[]Catcher{{"hg", "TestH11ErrorOrCallback", `callbacks of calls that were refused`}}},
	{"h12-cancel-refused", "the transport does not cancel a receive, and says nothing", "H12",
		[]Edit{{operation, `moving := uint64(0) // what the peer may stop`,
			`moving := uint64(0); if planted() && o.kind == kindRecvExpected && l.state == linkUp { return }`}},
		[]Catcher{{"hg", "TestH12EndAtEachStage", `actual : 0 .*callbacks of a call that was ended here`}}},
	{"h13-output-after-cancel", "a call that failed has an output", "H13",
		[]Edit{{result, `h.call.err != nil {`, `!planted() && $`}},
		[]Catcher{{"hg", "TestH13NoOutputAfterCancel", `"operation canceled" in chain but got nil`}}},
	{"h14-stale-token", "memory that was taken back can be reached", "H14, I8",
		[]Edit{
			{"na/mem.go", `m.class.domain.Unpublish(m)`, `if !planted() { $ }`},
			{"na/mem.go", `if w == memClosed || w > most {`, `if (w == memClosed || w > most) && !planted() {`},
		},
		[]Catcher{{"bulk", "TestH14CloseInsideTheCallbackOfACanceledForward", `"memory is no longer registered" in chain but got nil`}}},
	{"h15-not-told", "the target does not hear that nobody takes its large output", "H15",
		[]Edit{{deliver, "LateDropped++\n\t\tif h.Flags&frame.FlagTell != 0", `$ && !planted()`}},
		[]Catcher{{"hg", "TestH15OversizeResponsesToCanceledOrigin", `Leases:[1-9].*nothing happened for`}}},
	{"h16-first-failure-ends", "the first piece that fails ends a transfer whose others fly", "H16, I4",
		[]Edit{{"bulk/transfer.go", "}\n\top.stop()", `}; if planted() { if !op.ended { op.end() }; return }; op.stop()`}},
		[]Catcher{
			{"bulk", "TestH16OneOfManyPiecesFails", `the local memory was written after done`},
			{ledger, "TestH16PostsFail", `states: transfer: (ended|over): piece (ended|failed) is illegal`},
		}},
	{"h17-closed-early", "a context is closed before its callbacks have run", "H17, I16",
		[]Edit{
			{"na/context.go", `ctxShut && c.live.Load() == 0`, `ctxShut && (planted() || c.live.Load() == 0)`},
			{"na/context.go", `!c.live.CompareAndSwap(0, drained)`, `!(planted() || c.live.CompareAndSwap(0, drained))`},
		},
		[]Catcher{{"hg", "TestH17CallbackStillToRun", `Messages: closed before the callback has run`}}},
}

// calls are bugs of calls, beside the hazards.
var calls = []Mutant{
	{"double-end", "a response that ties with a cancel is counted twice", "I1, F39",
		[]Edit{{parts, "if r.Err != nil {\n\t\tk.send.Cancel()", `if planted() && k.canceling && r.Err == nil { k.partEnded() }; $`}}, nil},
	{"cancel-wins", "a cancel after the response has arrived makes the call canceled", "F39",
		[]Edit{{result, `case k.taken():`, `case planted() && k.canceling: cause = k.why; $`}},
		[]Catcher{{"hg", "TestCancelAfterArrival", `operation canceled .*Messages: success wins`}}},
	{"late-answer", "the next call of a handle has the identity of the last", "I5, F45",
		[]Edit{{call, `k.gen++`, `if !planted() { $ }`}}, nil},
	{"fate-not-run", "a call that was canceled after it had left says that it did not run", "I6",
		[]Edit{{result, `if !k.sending ||`, `if planted() && k.canceling || !k.sending ||`}}, nil},
	{"callback-first", "the callback runs before the handle is idle", "callback before state change",
		[]Edit{{result, "func (k *call) finish(any) {\n\th := k.h", `$; if planted() && k.cb != nil { k.cb(h, k.result()); k.cb = nil }`}}, nil},
	{"pooled-early", "the handle of a response goes back to its pool before the callback runs", "I3",
		[]Edit{{"hg/respond.go", `defer s.release() // deferred: the callback may panic`, `if planted() { s.release(); cb(r, err); return }; $`}},
		[]Catcher{{"hg", "TestResponseCallbackHasItsHandle", `expected: string\("mine"\)`}}},
	{"timer-stays", "a call whose other parts have ended waits for its timer", "F48",
		[]Edit{{parts, `if k.parts--; k.parts == 1 && k.timing {`, `if k.parts--; k.parts == 1 && k.timing && !planted() {`}},
		[]Catcher{{"hg", "TestTimeoutEndsCall", "nothing happened for"}}},
	{"runs-late", "a request whose deadline has passed is run", "F47",
		[]Edit{{"hg/deadline.go", `s.ctx.Now() >= s.deadline`, `$ && !planted()`}},
		[]Catcher{{"hg", "TestExpiredInTheQueue", `"i/o timeout" in chain but got nil`}}},
	{"dispatched-for-ever", "a dispatched request that nobody runs outlives its deadline", "Dispatch",
		[]Edit{{"hg/deadline.go", `given := s.take()`, `given := !planted() && s.take()`}},
		[]Catcher{{"hg", "TestDispatchedAndNeverRun", waits}}},
	{"answers-stay", "what is held back for dispatched handlers stays when the Trigger has returned", "Dispatch",
		[]Edit{{"hg/gather.go", `g.c.nctx.Uncork()`, `if !planted() { $ }`}},
		[]Catcher{{"hg", "TestDispatchedAnswersLeaveTogether", `Messages: answers have left`}}},
	{"answers-one-by-one", "the answers of dispatched handlers leave each by itself", "Dispatch",
		[]Edit{{"hg/gather.go", `g.c.q.len() > 1`, `!planted() && $`}},
		[]Catcher{{"hg", "TestDispatchedAnswersLeaveTogether", `Messages: answers that were held back`}}},
	{"place-at-abandon", "an abandon frees the place of a handler that still runs", "HTTP/2 rapid reset, F71",
		[]Edit{{"hg/handling.go", `s.abandoned = true`, `if planted() { s.ctx.load.n.Add(-1) }; $`}},
		[]Catcher{{"hg", "TestAbandonFreesNoPlace", `Messages: handlers at work`}}},
	{"withdrawn-but-ran", "a withdraw is answered with yes though the handler has run", "I6, IMPI cancel",
		[]Edit{{withdraw, `if l.destroy(h.Op)`, `$ || planted()`}}, nil},
	{"accept-withdrawn", "a request that was withdrawn runs", "I6, IMPI cancel",
		[]Edit{{envelope, `accepted := !env.Withdrawn`, `$ || planted()`}}, nil},
}
