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
	// Chunk is the length of one chunk. Zero means 1 MiB; at least 4 KiB.
	Chunk int64
	// Window is how many chunks are in flight at a time. Zero means 8; at most 64.
	Window int
	// OnProgress, if set, runs in Trigger with the number of bytes moved so far, which grows from
	// call to call. It is never called concurrently and never after done. Before a done without
	// error it has been called with Size, unless Size is 0.
	OnProgress func(op *Op, moved int64)
}

// A DoneFunc is called with the outcome of a transfer. It runs in Trigger, once.
type DoneFunc func(op *Op, err error)

// An Op is a transfer in flight. It is split into chunks; when one has completed the next one is
// started.
//
//	Transfer ─► chunk chunk chunk … (Window at a time) ─ each completes ─► the next, or, when none is left, done
//	Cancel ───► every chunk in flight is canceled, none is started
//
// An Op is bound to the session in which its first chunk completed: when that session is lost the
// transfer ends with ErrPeerLost, also if another process listens at the address by then.
type Op struct {
	hctx      *hg.Context
	spec      Spec
	peer      na.Addr
	done      DoneFunc
	request   requestInfo
	startedAt time.Duration
	moved     atomic.Int64

	mu         sync.Mutex     // guards the fields below
	phase      fsmcheck.State // written by enter
	boundPeer  na.Addr        // peer, bound to its session once a chunk has completed
	nextOffset int64          // offset of the first chunk that was not started
	inFlight   int            // chunks started and not completed
	err        error          // the first error
	// operations of the first DefaultWindow chunks in flight; nil once the moving has ended
	firstOps   *chunkOps
	moreOps    []*na.Op // further operations, when Window is larger
	opsUsed    int      // operations of firstOps and moreOps that have been used
	reported   int64    // moved, as of the last OnProgress
	taskQueued bool     // task is queued or runs
	task       func()   // runTask, bound once; runs in Trigger
}

// requestInfo names the request in whose handler a transfer is started; zero if there is none.
type requestInfo struct {
	id  uint64 // as in inspect.Call
	rpc string
}

// requestOf returns the request that ctx belongs to.
func requestOf(ctx context.Context) (of requestInfo) {
	of.id, of.rpc = hghook.RequestOf(ctx)
	return of
}

// The phases of a transfer.
const (
	opNew      fsmcheck.State = iota
	opMoving                  // chunks are in flight
	opStopping                // canceled or failed: chunks are still in flight, no other one is started
	// no chunk is in flight; finishLocked waits for Trigger and for OnProgress to return
	opMoved
	opDone // done runs or has returned
)

var opPhases = fsmcheck.New("transfer",
	[]string{"new", "moving", "ending", "ended", "over"},
	[][]fsmcheck.State{
		opNew:      {opMoving, opMoved},
		opMoving:   {opStopping, opMoved},
		opStopping: {opMoved},
		opMoved:    {opDone},
		opDone:     {},
	})

// setPhaseLocked moves the transfer to another phase.
func (op *Op) setPhaseLocked(next fsmcheck.State) {
	opPhases.Move(op.phase, next)
	op.phase = next
}

// Transfer starts to move spec.Size bytes and calls done with the outcome; done may be nil.
//
//   - It does not block, and may be called by several goroutines.
//   - The local memory belongs to the transfer until done has run.
//   - After an error nothing was started and done does not run. The error matches hg.ErrInvalid if
//     spec is invalid or its offsets and sizes do not fit the handles, na.ErrPermission if the
//     access mode of the remote handle does not allow the direction, and hg.ErrClosed if the local
//     handle or hctx is closed.
func Transfer(hctx *hg.Context, spec Spec, done DoneFunc) (*Op, error) {
	return transfer(hctx, spec, requestInfo{}, done)
}

// transfer is Transfer on behalf of the request of.
func transfer(hctx *hg.Context, spec Spec, of requestInfo, done DoneFunc) (*Op, error) {
	peer, err := spec.normalize()
	if err != nil {
		return nil, err
	}
	refused := func(err error) (*Op, error) {
		return nil, &Error{Dir: spec.Dir, Peer: peer, Size: spec.Size, Err: err}
	}
	if hctx.NA().Closing() {
		return refused(na.WithText(hg.ErrClosed, "the context is closed"))
	}
	if !spec.Local.mem().Acquire() { // finishLocked or an error below releases it
		return refused(na.WithText(hg.ErrClosed, "the local handle is closed"))
	}
	op := &Op{hctx: hctx, spec: spec, peer: peer, boundPeer: peer, done: done, request: of, startedAt: hctx.Now()}
	op.task = op.runTask
	op.mu.Lock()
	defer op.mu.Unlock()
	hghook.Track(hctx, (*trackedOp)(op))
	if spec.Size == 0 || spec.Dir == Pull && spec.Remote.eagerData != nil {
		op.copyEagerLocked()
		return op, nil
	}
	op.setPhaseLocked(opMoving)
	op.firstOps = chunkOpsPool.Get().(*chunkOps)
	for op.inFlight < op.spec.Window && op.nextOffset < spec.Size {
		if err := op.startChunkLocked(op.newChunkOpLocked()); err != nil {
			if op.inFlight == 0 {
				op.firstOps.release()
				hghook.Untrack(hctx, (*trackedOp)(op))
				spec.Local.mem().Release()
				return refused(err)
			}
			op.failLocked(err)
			break
		}
	}
	return op, nil
}

// normalize sets the defaults, checks s, and returns the owner of the remote memory.
func (s *Spec) normalize() (peer na.Addr, err error) {
	invalid := func(format string, args ...any) (na.Addr, error) {
		return na.Addr{}, invalidError(s.Dir, format, args...)
	}
	switch {
	case s.Dir > Push:
		return invalid("Spec.Dir is %d, want Pull or Push", s.Dir)
	case s.Remote == nil:
		return invalid("Spec.Remote is not set")
	case s.Local == nil:
		return invalid("Spec.Local is not set")
	case s.Local.Remote():
		return invalid("Spec.Local is a remote handle")
	case s.Size < 0:
		return invalid("Spec.Size is %d, want a number of bytes", s.Size)
	case !na.InRange(s.LocalOffset, s.Size, s.Local.Len()):
		return invalid("%d bytes at Spec.LocalOffset %d lie outside the local handle of %d bytes",
			s.Size, s.LocalOffset, s.Local.Len())
	case !na.InRange(s.RemoteOffset, s.Size, s.Remote.Len()):
		return invalid("%d bytes at Spec.RemoteOffset %d lie outside the remote handle of %d bytes",
			s.Size, s.RemoteOffset, s.Remote.Len())
	}
	if err := checkChunks("Spec", s.Dir, &s.Chunk, &s.Window); err != nil {
		return na.Addr{}, err
	}
	return checkRemote("Spec", s.Dir, s.Remote, s.Peer)
}

// copyEagerLocked does a transfer that needs no peer: of 0 bytes, or a pull from data that traveled
// with the handle.
func (op *Op) copyEagerLocked() {
	s := &op.spec
	if s.Size > 0 {
		from := s.Remote.eagerData[s.RemoteOffset : s.RemoteOffset+s.Size]
		if op.err = copyAt(Push, s.Local.mem(), s.LocalOffset, from); op.err == nil {
			op.moved.Store(s.Size)
			s.Remote.addMoved(s.Size)
		}
	}
	op.endMovingLocked()
}

// endMovingLocked is called when no chunk is in flight any more and none will be started.
func (op *Op) endMovingLocked() {
	op.setPhaseLocked(opMoved)
	op.queueTaskLocked()
}

// newChunkOpLocked returns an operation that was not used before.
func (op *Op) newChunkOpLocked() *na.Op {
	i := op.opsUsed
	op.opsUsed++
	nop := op.chunkOp(i)
	nop.InitStep(op.hctx.NA(), onChunkDone, op)
	return nop
}

// chunkOp returns operation i, of firstOps or moreOps.
func (op *Op) chunkOp(i int) *na.Op {
	if i < len(op.firstOps.ops) {
		return &op.firstOps.ops[i]
	}
	i -= len(op.firstOps.ops)
	if i == len(op.moreOps) {
		op.moreOps = append(op.moreOps, &na.Op{})
	}
	return op.moreOps[i]
}

// startChunkLocked starts the next chunk with nop.
func (op *Op) startChunkLocked(nop *na.Op) error {
	s := &op.spec
	n := min(s.Chunk, s.Size-op.nextOffset)
	nctx := op.hctx.NA()
	var err error
	if s.Dir == Pull {
		err = nctx.Get(nop, s.Local.mem(), s.LocalOffset+op.nextOffset, op.boundPeer, s.Remote.key(), s.RemoteOffset+op.nextOffset, n)
	} else {
		err = nctx.Put(nop, s.Local.mem(), s.LocalOffset+op.nextOffset, op.boundPeer, s.Remote.key(), s.RemoteOffset+op.nextOffset, n)
	}
	if err == nil {
		op.nextOffset += n
		op.inFlight++
	}
	return err
}

// failLocked records err, if it is the first error, and cancels the chunks in flight.
func (op *Op) failLocked(err error) {
	if op.err == nil {
		op.err = err
	}
	op.cancelChunksLocked()
}

// cancelChunksLocked cancels the chunks in flight. No other one is started.
func (op *Op) cancelChunksLocked() {
	if op.phase == opMoving {
		op.setPhaseLocked(opStopping)
	}
	op.hctx.NA().Batch(func() {
		for i := range op.opsUsed {
			op.chunkOp(i).Cancel()
		}
	})
}

// onChunkDone is the callback of a chunk. It runs in Trigger, and starts the next chunk if there is
// one.
func onChunkDone(nop *na.Op, r na.Result) (ran int) {
	op := nop.Data().(*Op)
	op.mu.Lock()
	defer op.mu.Unlock()
	op.inFlight--
	if r.Err == nil {
		op.moved.Add(r.N)
		op.spec.Remote.addMoved(r.N)
		if op.hasProgressLocked() {
			op.queueTaskLocked()
		}
		if !r.Addr.IsZero() {
			op.boundPeer = r.Addr // bound to the session: a process that replaces the peer gets no chunk
		}
	} else {
		op.failLocked(r.Err)
	}
	if op.phase == opMoving && op.nextOffset < op.spec.Size {
		if err := op.startChunkLocked(nop); err != nil {
			op.failLocked(err)
		}
	}
	if op.inFlight == 0 {
		op.firstOps.release()
		op.firstOps, op.opsUsed = nil, 0
		op.endMovingLocked()
	}
	return 0
}

// hasProgressLocked reports whether OnProgress has to be called: bytes were moved since the last call.
func (op *Op) hasProgressLocked() bool {
	return op.spec.OnProgress != nil && op.moved.Load() != op.reported
}

// queueTaskLocked queues runTask, unless it is queued or runs.
func (op *Op) queueTaskLocked() {
	if !op.taskQueued {
		op.taskQueued = true
		_ = op.hctx.Post(op.task)
	}
}

// runTask calls OnProgress at most once. When the moving has ended and all of it was reported, it
// calls done.
func (op *Op) runTask() {
	op.mu.Lock()
	if op.hasProgressLocked() {
		op.callOnProgressLocked()
	}
	if op.hasProgressLocked() || op.phase != opMoved {
		op.finishTaskLocked()
		op.mu.Unlock()
		return
	}
	err := op.finishLocked()
	op.mu.Unlock()
	op.complete(err)
}

// callOnProgressLocked calls OnProgress with the lock released, and takes the lock again. If
// OnProgress panics or ends the goroutine, the lock is released and the next Trigger goes on with
// the transfer.
func (op *Op) callOnProgressLocked() {
	moved := op.moved.Load()
	op.reported = moved
	op.mu.Unlock()
	returned := false
	defer func() {
		op.mu.Lock()
		if !returned { // OnProgress panicked or called runtime.Goexit
			op.finishTaskLocked()
			op.mu.Unlock()
		}
	}()
	op.spec.OnProgress(op, moved)
	returned = true
}

// finishTaskLocked ends a run of the task that did not call done, and queues the next one if there
// is work for it.
func (op *Op) finishTaskLocked() {
	op.taskQueued = false
	if op.hasProgressLocked() || op.phase == opMoved {
		op.queueTaskLocked()
	}
}

// finishLocked enters the last phase and returns the cause of the error of the transfer, nil if
// there is none.
func (op *Op) finishLocked() error {
	op.setPhaseLocked(opDone)
	if op.err == nil && op.moved.Load() < op.spec.Size {
		return hg.ErrCanceled
	}
	return op.err
}

// complete releases the memory, reports the transfer to Config.Observe, and calls done. The lock is
// not held.
func (op *Op) complete(err error) {
	hghook.Untrack(op.hctx, (*trackedOp)(op))
	op.spec.Local.mem().Release()
	took := max(op.hctx.Now()-op.startedAt, 1)
	op.observeEnd(err, took)
	if err != nil {
		err = &Error{Dir: op.spec.Dir, Peer: op.peer, Took: took, Moved: op.moved.Load(), Size: op.spec.Size, Err: err}
	}
	if op.done != nil {
		op.done(op, err)
	}
}

// observeEnd reports the end of the transfer to Config.Observe.
func (op *Op) observeEnd(err error, took time.Duration) {
	e := inspect.Event{
		Kind: inspect.EventTransfer, RPC: op.spec.Dir.String(), Of: op.request.rpc, Peer: op.peer,
		Code: hg.CodeOf(err), Fate: hg.Ran, Took: took,
	}
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

// trackedOp is an Op as hg.Context.Calls lists it.
type trackedOp Op

// Inspect implements hghook.Tracked.
func (t *trackedOp) Inspect() inspect.Call {
	op := (*Op)(t)
	op.mu.Lock()
	defer op.mu.Unlock()
	return inspect.Call{
		Kind: inspect.EventTransfer, RPC: op.spec.Dir.String(), Of: op.request.id, Peer: op.peer,
		State: opPhases.State(op.phase), Age: max(op.hctx.Now()-op.startedAt, 1), Moved: op.Moved(), Size: op.Size(),
	}
}

// Cancel ends the transfer, unless it has ended. It does not block and waits for no peer. done
// still runs exactly once: in the next Trigger, without Progress, or once a copy that another
// goroutine is making has ended. It runs without error if every chunk had completed.
func (op *Op) Cancel() {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.phase == opMoving {
		op.cancelChunksLocked()
	}
}

// Moved returns how many bytes are known to have been moved: those of completed chunks, which
// complete in any order.
func (op *Op) Moved() int64 { return op.moved.Load() }

// Size returns how many bytes are to be moved.
func (op *Op) Size() int64 { return op.spec.Size }
