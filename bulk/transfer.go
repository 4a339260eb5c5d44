package bulk

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Dir is the direction of a transfer, seen from the process that starts it.
type Dir uint8

// The directions.
const (
	Pull Dir = iota // remote memory to local
	Push            // local memory to remote
)

// String returns "pull" or "push".
func (d Dir) String() string {
	if d == Push {
		return "push"
	}
	return "pull"
}

// The defaults of a Spec.
const (
	DefaultChunk  = 1 << 20
	DefaultWindow = 8
	maxWindow     = 64
	minChunk      = 4 << 10
)

// A Spec describes a transfer. Size, offsets and chunks are in bytes.
type Spec struct {
	Dir Dir
	// Peer owns the remote memory: in a handler r.Peer(). It may be left out when Remote is bound.
	Peer         na.Addr
	Remote       *Handle
	RemoteOffset int64
	Local        *Handle
	LocalOffset  int64
	Size         int64
	// Chunk is the length of one piece. Zero means 1 MiB; at least 4 KiB.
	Chunk int64
	// Window is how many pieces are under way at a time. Zero means 8; at most 64.
	Window int
	// OnProgress, if set, runs in Trigger with the bytes moved so far, which grow from call to call: never concurrently,
	// not after done, and before a done without error with all of them, unless there were none.
	OnProgress func(op *Op, moved int64)
}

// A DoneFunc is called with the outcome of a transfer. It runs in Trigger, once.
type DoneFunc func(op *Op, err error)

// An Op is a transfer under way. It is split into pieces; the next starts when one has ended.
//
//	Transfer ─► piece piece piece … (Window at a time) ─ each ends ─► the next, or, when none is left, done
//	Cancel ───► every piece that is under way is canceled, none is started
//
// It stays with the session in which its first piece ended: when that is lost the transfer ends with ErrPeerLost, also
// if another process listens at the address by then.
type Op struct {
	hctx  *hg.Context
	spec  Spec
	peer  na.Addr
	done  DoneFunc
	of    owner
	begun time.Duration
	moved atomic.Int64

	mu      sync.Mutex     // guards the fields below
	phase   fsmcheck.State // written by enter
	to      na.Addr        // peer; bound to its session once a piece has arrived there
	next    int64          // offset of the first piece that was not started
	running int
	err     error    // the first
	first   *opSet   // the first DefaultWindow pieces; nil once ended
	more    []*na.Op // pieces of a larger window
	pieces  int      // of first and more that have been used
	told    int64    // how much moved by the last OnProgress
	posted  bool     // tell is queued, or runs
	tell    func()   // in Trigger
}

// An owner is the request in whose handler a transfer is made; zero if that is not known.
type owner struct {
	id  uint64 // as in inspect.Call
	rpc string
}

// ownerOf returns the owner of a transfer that is made with ctx.
func ownerOf(ctx context.Context) (of owner) {
	of.id, of.rpc = hghook.RequestOf(ctx)
	return of
}

// The phases of a transfer.
const (
	opNew    fsmcheck.State = iota
	opMoving                // pieces are under way
	opEnding                // and it was canceled, or one failed; no other is started
	opEnded                 // every piece has ended; finish waits for Trigger and for OnProgress to return
	opOver                  // done runs, or has
)

var opPhases = fsmcheck.New("transfer",
	[]string{"new", "moving", "ending", "ended", "over"},
	[][]fsmcheck.State{
		opNew:    {opMoving, opEnded},
		opMoving: {opEnding, opEnded},
		opEnding: {opEnded},
		opEnded:  {opOver},
		opOver:   {},
	})

// enter writes the phase. Locked.
func (op *Op) enter(next fsmcheck.State) {
	opPhases.Move(op.phase, next)
	op.phase = next
}

// Transfer starts to move spec.Size bytes and returns without waiting. The memory belongs to the transfer until done,
// which may be nil, has run. An error means that nothing was started and done will not run: it matches hg.ErrInvalid for
// a spec that cannot be and for offsets and sizes that do not fit the handles, na.ErrPermission for an access mode that
// does not allow it, hg.ErrClosed when the local handle or hctx is closed.
func Transfer(hctx *hg.Context, spec Spec, done DoneFunc) (*Op, error) {
	return transfer(hctx, spec, owner{}, done)
}

// transfer is Transfer for the request of.
func transfer(hctx *hg.Context, spec Spec, of owner, done DoneFunc) (*Op, error) {
	peer, err := spec.check()
	if err != nil {
		return nil, err
	}
	refused := func(err error) (*Op, error) {
		return nil, &Error{Dir: spec.Dir, Peer: peer, Size: spec.Size, Err: err}
	}
	if hctx.NA().Closing() {
		return refused(na.WithText(hg.ErrClosed, "the context is closed"))
	}
	if !spec.Local.mem().Acquire() { // until finish
		return refused(na.WithText(hg.ErrClosed, "the local handle is closed"))
	}
	op := &Op{hctx: hctx, spec: spec, peer: peer, to: peer, done: done, of: of, begun: hctx.Now()}
	op.tell = op.run
	op.mu.Lock()
	defer op.mu.Unlock()
	hghook.Track(hctx, (*tracked)(op))
	if spec.Size == 0 || spec.Dir == Pull && spec.Remote.data != nil {
		op.copyEager()
		return op, nil
	}
	op.enter(opMoving)
	op.first = opPool.Get().(*opSet)
	for op.running < op.spec.Window && op.next < spec.Size {
		if err := op.start(op.newPiece()); err != nil {
			if op.running == 0 {
				op.first.putBack()
				hghook.Untrack(hctx, (*tracked)(op))
				spec.Local.mem().Release()
				return refused(err)
			}
			op.fail(err)
			break
		}
	}
	return op, nil
}

// check fills in the defaults and says what is wrong.
func (s *Spec) check() (peer na.Addr, err error) {
	invalid := func(format string, args ...any) (na.Addr, error) { return na.Addr{}, invalid(s.Dir, format, args...) }
	switch {
	case s.Dir > Push:
		return invalid("Spec.Dir is %d, want Pull or Push", s.Dir)
	case s.Remote == nil:
		return invalid("Spec.Remote is not set")
	case s.Local == nil:
		return invalid("Spec.Local is not set")
	case s.Local.Remote():
		return invalid("Spec.Local is a handle of a peer's memory")
	case s.Size < 0:
		return invalid("Spec.Size is %d, want a number of bytes", s.Size)
	case !na.InRange(s.LocalOffset, s.Size, s.Local.Len()):
		return invalid("Spec.LocalOffset is %d: %d bytes from there lie outside the local handle of %d bytes",
			s.LocalOffset, s.Size, s.Local.Len())
	case !na.InRange(s.RemoteOffset, s.Size, s.Remote.Len()):
		return invalid("Spec.RemoteOffset is %d: %d bytes from there lie outside the remote handle of %d bytes",
			s.RemoteOffset, s.Size, s.Remote.Len())
	}
	if err := checkPieces("Spec", s.Dir, &s.Chunk, &s.Window); err != nil {
		return na.Addr{}, err
	}
	return checkRemote("Spec", s.Dir, s.Remote, s.Peer)
}

// copyEager serves a transfer of nothing, or a pull from the data that came along with the handle. Locked.
func (op *Op) copyEager() {
	s := &op.spec
	if s.Size > 0 {
		from := s.Remote.data[s.RemoteOffset : s.RemoteOffset+s.Size]
		if op.err = copyAt(Push, s.Local.mem(), s.LocalOffset, from); op.err == nil {
			op.moved.Store(s.Size)
			s.Remote.countMoved(s.Size)
		}
	}
	op.end()
}

// end ends the moving. Locked.
func (op *Op) end() {
	op.enter(opEnded)
	op.post()
}

// newPiece returns one more operation. Locked.
func (op *Op) newPiece() *na.Op {
	i := op.pieces
	op.pieces++
	nop := op.piece(i)
	nop.InitStep(op.hctx.NA(), pieceEnded, op)
	return nop
}

// piece returns operation i.
func (op *Op) piece(i int) *na.Op {
	if i < len(op.first.ops) {
		return &op.first.ops[i]
	}
	if i -= len(op.first.ops); i == len(op.more) {
		op.more = append(op.more, &na.Op{})
	}
	return op.more[i]
}

// start begins the next piece. Locked.
func (op *Op) start(nop *na.Op) error {
	s := &op.spec
	n := min(s.Chunk, s.Size-op.next)
	nctx := op.hctx.NA()
	var err error
	if s.Dir == Pull {
		err = nctx.Get(nop, s.Local.mem(), s.LocalOffset+op.next, op.to, s.Remote.key(), s.RemoteOffset+op.next, n)
	} else {
		err = nctx.Put(nop, s.Local.mem(), s.LocalOffset+op.next, op.to, s.Remote.key(), s.RemoteOffset+op.next, n)
	}
	if err == nil {
		op.next += n
		op.running++
	}
	return err
}

// fail fixes the first error and stops the pieces that are under way. Locked.
func (op *Op) fail(err error) {
	if op.err == nil {
		op.err = err
	}
	op.stop()
}

// stop cancels the pieces that are under way. Locked.
func (op *Op) stop() {
	if op.phase == opMoving {
		op.enter(opEnding)
	}
	op.hctx.NA().Batch(func() {
		for i := range op.pieces {
			op.piece(i).Cancel()
		}
	})
}

// pieceEnded runs in Trigger.
func pieceEnded(nop *na.Op, r na.Result) (ran int) {
	op := nop.Data().(*Op)
	op.mu.Lock()
	defer op.mu.Unlock()
	op.running--
	if r.Err == nil {
		op.moved.Add(r.N)
		op.spec.Remote.countMoved(r.N)
		if op.news() {
			op.post()
		}
		if !r.Addr.IsZero() {
			op.to = r.Addr // the other pieces do not go to a process that takes its place
		}
	} else {
		op.fail(r.Err)
	}
	if op.phase == opMoving && op.next < op.spec.Size {
		if err := op.start(nop); err != nil {
			op.fail(err)
		}
	}
	if op.running == 0 {
		op.first.putBack()
		op.first, op.pieces = nil, 0
		op.end()
	}
	return 0
}

// news reports whether OnProgress has to be called. Locked.
func (op *Op) news() bool { return op.spec.OnProgress != nil && op.moved.Load() != op.told }

// post queues run, unless it is queued or runs. Locked.
func (op *Op) post() {
	if !op.posted {
		op.posted = true
		_ = op.hctx.Post(op.tell)
	}
}

// run calls OnProgress, once, and done when every piece has ended and nothing is left to tell.
func (op *Op) run() {
	op.mu.Lock()
	if op.news() {
		op.progress()
	}
	if op.news() || op.phase != opEnded {
		op.again()
		op.mu.Unlock()
		return
	}
	op.finish()
}

// progress calls OnProgress. Locked, but during the call.
func (op *Op) progress() {
	moved := op.moved.Load()
	op.told = moved
	op.mu.Unlock()
	returned := false
	defer func() {
		op.mu.Lock()
		if !returned { // it has panicked, or ends the goroutine
			op.again()
			op.mu.Unlock()
		}
	}()
	op.spec.OnProgress(op, moved)
	returned = true
}

// again ends a run that was not the last. Locked.
func (op *Op) again() {
	op.posted = false
	if op.news() || op.phase == opEnded {
		op.post()
	}
}

// finish calls done. Locked, and unlocks.
func (op *Op) finish() {
	op.enter(opOver)
	err := op.err
	if err == nil && op.moved.Load() < op.spec.Size {
		err = hg.ErrCanceled
	}
	op.mu.Unlock()
	hghook.Untrack(op.hctx, (*tracked)(op))
	op.spec.Local.mem().Release()
	took := max(op.hctx.Now()-op.begun, 1)
	op.observe(err, took)
	if err != nil {
		err = &Error{Dir: op.spec.Dir, Peer: op.peer, Took: took, Moved: op.moved.Load(), Size: op.spec.Size, Err: err}
	}
	if op.done != nil {
		op.done(op, err)
	}
}

// observe has the end of the transfer observed.
func (op *Op) observe(err error, took time.Duration) {
	e := inspect.Event{Kind: inspect.EventTransfer, RPC: op.spec.Dir.String(), Of: op.of.rpc, Peer: op.peer, Code: hg.CodeOf(err), Fate: hg.Ran, Took: took}
	if err != nil {
		e.Fate, e.Text = hg.MaybeRan, err.Error()
	}
	if moved := op.moved.Load(); op.spec.Dir == Push {
		e.Sent = moved
	} else {
		e.Received = moved
	}
	hghook.Observe(op.hctx, e)
}

// tracked is what hg.Context.Calls knows of an Op.
type tracked Op

// Inspect implements hghook.Tracked.
func (t *tracked) Inspect() inspect.Call {
	op := (*Op)(t)
	op.mu.Lock()
	defer op.mu.Unlock()
	return inspect.Call{
		Kind: inspect.EventTransfer, RPC: op.spec.Dir.String(), Peer: op.peer, State: opPhases.State(op.phase), Age: max(op.hctx.Now()-op.begun, 1),
		Of: op.of.id, Moved: op.Moved(), Size: op.Size(),
	}
}

// Cancel ends the transfer, unless it has ended. It does not block and waits for no peer. done runs once in any case:
// in the next Trigger, no Progress is needed, or as soon as a copy that is being made at this moment is. It runs without
// error if every piece had arrived.
func (op *Op) Cancel() {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.phase == opMoving {
		op.stop()
	}
}

// Moved returns how many bytes are known to have been moved: whole pieces, in no order.
func (op *Op) Moved() int64 { return op.moved.Load() }

// Size returns how many bytes are to be moved.
func (op *Op) Size() int64 { return op.spec.Size }
