package mutant

// outcomeLedger is the ledger of the outcomes that callers of package qs get.
const outcomeLedger = "internal/test/ledger"

// outcomeMutants are bugs of the outcomes that callers get.
var outcomeMutants = []Mutant{
	{"told-not-run", "a call whose session was lost says that it did not run", "I6",
		[]Edit{{result, `return k.opResult.Fate`, `if planted() && na.CodeOf(k.opResult.Err) == ErrPeerLost { return na.NotRun }; $`}},
		[]Catcher{{outcomeLedger, "TestSeeds", `is said not to have run, and ran`}}},
	{"taken-back-early", "a Future that is canceled right before its request leaves goes on", "F39",
		[]Edit{
			{"qs/call.go", `a.h == nil || hghook.Forbid(a.h)`, `a.h == nil || !planted() && hghook.Forbid(a.h)`},
			{"qs/call_future.go", `f.o.stopAttempts(how)`, `if f.o.stopAttempts(how) && planted() { return }`},
		},
		[]Catcher{
			{"qs", "TestFutureEndedAtEachPoint", `encoding/(cancel|abandon|withdraw)`},
			{outcomeLedger, "TestSeeds", `was canceled .* before its deadline, and went on until then`},
		}},
	{"withdrawn-unasked", "a withdraw says withdrawn and asks nobody", "I6",
		[]Edit{{"hg/withdraw.go", `w.op.InitStep(nctx, w.onAnswer, nil)`, `if planted() { w.settleLocked(Withdrawn); if w.k.isInFlightLocked() { w.k.markFailedLocked(); w.k.cancelPartsLocked() }; return }; $`}},
		[]Catcher{{outcomeLedger, "TestSeeds", `was withdrawn, and ran`}}},
	{"repeats-without-leave", "Retry repeats what may have run and is not idempotent", "I6",
		[]Edit{{"qs/retry.go", `!c.Idempotent {`, `!c.Idempotent && !planted() {`}},
		[]Catcher{{outcomeLedger, "TestSeeds", `ran \d times, in \d+ attempts, and may 1 times`}}},
	{"hedge-waits", "Hedge has an answer, and the slower attempt is not ended", "a client that hedges and gains nothing",
		[]Edit{{"qs/hedge.go", "if isAnswered(h.err) {", `if isAnswered(h.err) && !planted() {`}},
		[]Catcher{{"qs", "TestHedge", `is not less than`}}},
	{"hedge-overtaken", "Hedge takes what a handler says that was told to stop for the answer", "seen under load: canceled, though the other had answered",
		[]Edit{{"qs/hedge.go", `!errors.Is(err, ErrCanceled)`, `(planted() || $)`}},
		[]Catcher{{"qs", "TestHedgeOvertaken", `Received unexpected error`}}},
	{"first-leaves", "First leaves the other calls under way", "memory that is lent longer than it is said",
		[]Edit{{"qs/call_future.go", `other.Abandon()`, `if !planted() { $ }`}},
		[]Catcher{{"qs", "TestFirst", `expected: "operation canceled"`}}},
	{"been-there", "a call that was refused asks the same address again", "a target that refuses at once has the fewest calls, and gets all",
		[]Edit{{"qs/peer_backends.go", `if !t.Failing && c.hasTriedAddr(at.addr) {`, `if !planted() && !t.Failing && c.hasTriedAddr(at.addr) {`}},
		[]Catcher{{"qs", "TestRefusedCallUsesNextAddress", `Should be empty`}}},
	{"lone-uncounted", "a handler that the goroutine which drives runs is not one of Config.MaxConcurrent", "a limit with a way around it",
		[]Edit{
			{"internal/executor/inline.go", "e.running++\n\tjob := e.pop()", "if !planted() { e.running++ }\n\tjob := e.pop()"},
			{"internal/executor/inline.go", "maxBlocked; over {\n\t\t\te.running--", "maxBlocked; over {\n\t\t\tif !planted() { e.running-- }"},
		},
		[]Catcher{{"qs", "TestSingleRequestIsCounted", `a second handler was at work`}}},
	{"pause-in-a-pause", "jobs that are slow in a pause of inline running double it", "a second without inline running after one pass of 31 jobs",
		[]Edit{{"internal/executor/inline.go", `if begun < t.again {`, `if begun < t.again && !planted() {`}},
		[]Catcher{{"internal/executor", "TestInlinePausesOncePerPass", `Messages: after the pause`}}},
	{"left-to-all", "a pass of one context ends what is left to the driver of another", "one count for all contexts",
		[]Edit{
			{"internal/executor/inline.go", `// NewInline returns`, "var leftToAll int // with planted()\n\n$"},
			{"internal/executor/inline.go", `e.giveLocked(job, i.left)`, `left := i.left; if planted() { left = leftToAll }; e.giveLocked(job, left)`},
			{"internal/executor/inline.go", `i.left = left`, `$; if planted() { leftToAll = left }`},
			{"internal/executor/inline.go", "i.left = 0\n\tn := e.waiting()", "if planted() { leftToAll = 0 }; $"},
		},
		[]Catcher{{"internal/executor", "TestInlinesOfOneExecutor", `expected: 2 actual : 0`}}},
	{"budget-as-deadline", "the largest time that a request can carry is taken for its deadline", "calls of hours that end after 71 minutes",
		[]Edit{{"hg/deadline.go", `us == na.MaxBudget {`, `us == na.MaxBudget && !planted() {`}},
		[]Catcher{{"qs", "TestDeadlineBeyondTheWire", `the handler has a deadline`}}},
	{"addresses-stay", "a Peer does not look at what its Resolver says later", "names that are resolved once",
		[]Edit{{"qs/peer.go", `if changed {`, `if changed && !planted() {`}},
		[]Catcher{{"qs", "TestResolver", `Should be zero, but was`}}},
}
