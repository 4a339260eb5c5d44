package ledger

// The rare states that seeds are to reach.
const (
	reachTooLate          = iota // canceled when its end had come and its callback had not
	reachCallback                // something is canceled inside a callback
	reachTie                     // canceled at the very time of its deadline
	reachReused                  // an answer leaves for a call that is over, and its handle has another call by now
	reachFree                    // memory is taken back while it is being moved
	reachRestart                 // a node crashes, and somebody has operations under way
	reachNoCredit                // requests that had to wait for an envelope
	reachFinalize                // a class is closed in the middle of everything
	reachFinalizeCanceled        // and callbacks of canceled calls are to come
	reachEnd
)

var reachText = [reachEnd]string{"cancel too late", "cancel in callback", "deadline tie", "late answer, handle reused", "free in transfer",
	"restart in flight", "credit exhausted", "finalize in flight", "finalize, cancel pending"}

type reach [reachEnd]int64
