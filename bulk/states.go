package bulk

import (
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
)

// The machine of a transfer: what it can be in the middle of, what can happen to it then, and what may come of it.
// docs/internals/STATES.md draws it. Nothing here decides anything: each event is checked against the table, in tests.

// The events.
const (
	evTransfer     fsmcheck.Event = iota // Transfer
	evPieceEnded                         // a piece was moved
	evPieceFailed                        // and was not
	evCancel                             // Cancel
	evProgressTold                       // OnProgress has returned
	evFinish                             // Trigger runs finish
)

// The states.
const (
	opNew    fsmcheck.State = iota
	opMoving                // pieces are under way
	opEnding                // and it was canceled, or one failed; no other is started
	opEnded                 // every piece has ended; finish waits for Trigger and for OnProgress to return
	opOver                  // done runs, or has
)

var transfers = fsmcheck.New("transfer",
	[]string{"new", "moving", "ending", "ended", "over"},
	[]string{"transfer", "piece ended", "piece failed", "cancel", "progress told", "finish"},
	[]fsmcheck.Row{
		{On: evTransfer, In: in(opNew), To: in(opMoving, opEnding, opEnded, opNew)},
		{On: evPieceEnded, In: in(opMoving), To: in(opMoving, opEnding, opEnded)},
		{On: evPieceEnded, In: in(opEnding), To: in(opEnding, opEnded)},
		{On: evPieceFailed, In: in(opMoving, opEnding), To: in(opEnding, opEnded)},
		{On: evCancel, In: in(opMoving, opEnding), To: in(opEnding)},
		{On: evCancel, In: in(opEnded, opOver)},
		{On: evProgressTold, In: in(opMoving, opEnding, opEnded)},
		{On: evFinish, In: in(opEnded), To: in(opOver)},
	})

// in makes a list of states.
func in(list ...fsmcheck.State) []fsmcheck.State { return list }

// state derives the state of a transfer. Locked.
func (op *Op) state() fsmcheck.State {
	switch {
	case op.over:
		return opOver
	case op.ended:
		return opEnded
	case op.running == 0:
		return opNew
	case op.canceling || op.err != nil:
		return opEnding
	}
	return opMoving
}

// found begins the taking in of e, and returns it for note, which ends it. Locked.
func (op *Op) found(e fsmcheck.Event) fsmcheck.Event {
	if fsmcheck.Checking() {
		op.check(e)
	}
	return e
}

func (op *Op) check(e fsmcheck.Event) { op.track.Found(transfers, e, op.state()) }

func (op *Op) note(e fsmcheck.Event) {
	if fsmcheck.Checking() {
		op.count(e)
	}
}

func (op *Op) count(e fsmcheck.Event) { op.track.Moved(transfers, e, op.state()) }
