//go:build mutants

package mutant

import (
	"os"
	"strings"
)

// Planted tells that there are mutants in this program.
const Planted = true

// env names the mutant that is switched on.
const env = "QUICKSILVER_MUTANT"

// Blind tells that the tables of states are not to be looked at: a test that is named for a mutant has to notice it by itself.
var Blind = os.Getenv(blind) != ""

// blind is what says so.
const blind = "QUICKSILVER_MUTANT_BLIND"

// A planted bug: its name, what it does, and whose it was or what it breaks. H1 to H17 are hazards that Mercury has or had,
// F1 to F86 rows of the fault matrix, I1 to I18 invariants.
type planted struct{ name, bug, from string }

// all are the bugs, in order.
var all []planted

func plant(name, bug, from string) bool {
	all = append(all, planted{name, bug, from})
	return os.Getenv(env) == name
}

func init() {
	want := os.Getenv(env)
	names := make([]string, len(all))
	for i, m := range all {
		if names[i] = m.name; want == m.name {
			return
		}
	}
	if want != "" {
		panic("mutant: " + env + " is " + want + ", which is none of " + strings.Join(names, ", "))
	}
}

// The hazards of a call.
var (
	H1CancelBeforePost   = plant("h1-cancel-before-post", "a cancel while Forward posts is lost, and all later ones with it", "H1")
	H1CancelBetween      = plant("h1-cancel-between", "a cancel between the start of an operation and its post is lost", "H1")
	H2PartsLate          = plant("h2-parts-late", "the receive of the response can end before it is counted", "H2")
	H3DeafPull           = plant("h3-deaf-pull", "the pull of a large output cannot be canceled", "H3")
	H3bPullNotBegun      = plant("h3b-pull-not-begun", "a pull that could not begin is waited for", "H3b")
	H3bPullRefused       = plant("h3b-pull-refused", "a pull that ends at once, before anything is asked for, is waited for", "H3b")
	H4LoanOutlives       = plant("h4-loan-outlives", "the peer can read a large input after the call has ended", "H4")
	H5NarrowID           = plant("h5-narrow-id", "the generation of a call has 4 bits", "H5")
	H6LoansCollide       = plant("h6-loans-collide", "the loan of a request has the number of the peer's own call", "H6")
	H7ReceiveStays       = plant("h7-receive-stays", "the receive stays posted when the send has failed", "H7")
	H8SecondError        = plant("h8-second-error", "the error of the receive is ignored after that of the send", "H8")
	H9ErrorSwallowed     = plant("h9-error-swallowed", "an error of a call that is being canceled is ignored unless it says canceled", "H9")
	H10TwoOwners         = plant("h10-two-owners", "a cancel ends the call itself, and so do its parts", "H10, I1")
	H11ErrorAndCallback  = plant("h11-error-and-callback", "a Forward that returns an error runs the callback too", "H11, I2")
	H12CancelRefused     = plant("h12-cancel-refused", "the transport does not cancel a receive, and says nothing", "H12")
	H13OutputAfterCancel = plant("h13-output-after-cancel", "a call that failed has an output", "H13")
	H14StaleToken        = plant("h14-stale-token", "memory that was taken back can be reached", "H14, I8")
	H15NotTold           = plant("h15-not-told", "the target does not hear that nobody takes its large output", "H15")
	H16FirstFailureEnds  = plant("h16-first-failure-ends", "the first piece that fails ends a transfer whose others fly", "H16, I4")
	H17ClosedEarly       = plant("h17-closed-early", "a context is closed before its callbacks have run", "H17, I16")
)

// Of calls, beside the hazards.
var (
	DoubleEnd       = plant("double-end", "a response that ties with a cancel is counted twice", "I1, F39")
	CancelWins      = plant("cancel-wins", "a cancel after the response has arrived makes the call canceled", "F39")
	LateAnswer      = plant("late-answer", "the next call of a handle has the identity of the last", "I5, F45")
	FateNotRun      = plant("fate-not-run", "a call that was canceled after it had left says that it did not run", "I6")
	CallbackFirst   = plant("callback-first", "the callback runs before the handle is idle", "callback before state change")
	PooledEarly     = plant("pooled-early", "the handle of a response goes back to its pool before the callback runs", "I3")
	TimerStays      = plant("timer-stays", "the timer of a call that has ended runs on", "F48")
	RunsLate        = plant("runs-late", "a request whose deadline has passed is run", "F47")
	PlaceAtAbandon  = plant("place-at-abandon", "an abandon frees the place of a handler that still runs", "HTTP/2 rapid reset, F71")
	WithdrawnButRan = plant("withdrawn-but-ran", "a withdraw is answered with yes though the handler has run", "I6, IMPI cancel")
	AcceptWithdrawn = plant("accept-withdrawn", "a request that was withdrawn runs", "I6, IMPI cancel")
)

// Of operations and memory.
var (
	StaleTicket    = plant("stale-ticket", "the generation of an operation is not raised when it ends", "I1")
	HeldDelivered  = plant("held-delivered", "an operation is delivered while its memory is lent", "I4")
	FreeEarly      = plant("free-early", "a deregister does not wait for those who touch the memory", "I8, F58")
	UnguardedRange = plant("unguarded-range", "offset plus length may overflow", "I8, F59")
	AnyAccess      = plant("any-access", "the access mode of memory is not looked at", "I8, F59")
	SameMoveID     = plant("same-move-id", "the next get or put has the identity of the last", "I5")
	ReceiveStays   = plant("receive-stays", "a canceled receive stays in the table", "I4, F38")
	EnvelopeEarly  = plant("envelope-early", "the room of a message is used again before its bytes are read", "I3")
)

// Of sessions.
var (
	CreditOnCancel  = plant("credit-on-cancel", "a cancel at the origin gives the target's envelope back", "HTTP/2 rapid reset, I11")
	CreditPlusOne   = plant("credit-plus-one", "a sender uses one envelope more than there are", "I11, F65")
	CreditLeaks     = plant("credit-leaks", "a message that was withdrawn keeps its envelope", "I11")
	Unbounded       = plant("unbounded", "nobody counts envelopes", "I10, F65")
	StarvedForgot   = plant("starved-forgot", "messages that wait for an envelope do not hear of credit", "I7")
	CloseForgets    = plant("close-forgets", "the end of a session forgets the messages that wait for an envelope", "I1, I16")
	NoCRC           = plant("no-crc", "checksums are not looked at", "F25")
	LateCRC         = plant("late-crc", "the checksum of a message is looked at after it has been delivered", "F25")
	AnyIncarnation  = plant("any-incarnation", "a peer that restarted is taken for the one before", "I15, F11")
	Rebinds         = plant("rebinds", "an address bound to a session that has ended leads to the next one", "I15, F11")
	UserHeartbeats  = plant("user-heartbeats", "heartbeats are answered only where the user calls Progress", "F56")
	SilenceIgnored  = plant("silence-ignored", "a silent peer is never given up", "F9, F28, I7")
	OwnFreezeBlames = plant("own-freeze-blames", "a process that was frozen takes its peers for lost", "F10")
)
