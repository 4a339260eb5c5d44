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

// A Dir is the direction of a transfer, as seen by the process that starts it.
type Dir uint8

// Transfer directions.
const (
	Pull Dir = iota // from remote memory to local memory
	Push            // from local memory to remote memory
)

// String returns "pull" or "push".
func (d Dir) String() string {
	if d == Push {
		return "push"
	}
	return "pull"
}

// Defaults and limits for a Spec.
const (
	DefaultChunk  = 1 << 20
	DefaultWindow = 8
	maxWindow     = 64
	minChunk      = 4 << 10
)

// A Spec describes a transfer. Size, offsets and chunks are in bytes.
type Spec struct {
	Dir Dir
	// Peer is the owner of the remote memory. In a handler it is r.Peer(). It may be omitted if
	// Remote is bound.
	Peer         na.Addr
	Remote       *Handle
	RemoteOffset int64
	Local        *Handle
	LocalOffset  int64
	Size         int64
	// Chunk is the size of one chunk. Zero means 1 MiB. The minimum is 4 KiB.
	Chunk int64
	// Window is the number of chunks in flight at a time. Zero means 8. The maximum is 64.
	Window int
	// OnProgress, if set, runs in Trigger with the number of bytes moved so far, which increases
	// with every call. It is never called concurrently, and never after done. Before done is called
	// without an error, OnProgress has been called with Size, unless Size is 0.
	OnProgress func(op *Op, moved int64)
}

// A DoneFunc is called with the outcome of a transfer. It runs once, in Trigger.
type DoneFunc func(op *Op, err error)

// An Op is a transfer in flight. The transfer is split into chunks, of which at most Spec.Window
// are in flight at a time. When a chunk completes, the next one is started. When no chunk is left,
// done is called. Cancel cancels the chunks in flight and prevents further ones from being started.
//
// An Op is bound to the session in which its first chunk completed. If that session is lost, the
// transfer fails with ErrPeerLost, even if another process is then listening at the same address.
type Op struct {
	hctx      *hg.Context
	spec      Spec
	peer      na.Addr
	done      DoneFunc
	request   requestInfo
	startedAt time.Duration
	moved     atomic.Int64

	mu         sync.Mutex     // guards the fields below
	phase      fsmcheck.State // set by setPhaseLocked
	boundPeer  na.Addr        // peer; bound to its session once a chunk has completed
	nextOffset int64          // offset of the next chunk to start
	inFlight   int            // number of chunks started and not yet completed
	err        error          // first error, or nil
	// firstOps holds the operations of the first DefaultWindow chunks in flight. It is nil if no
	// chunk is in flight.
	firstOps   *chunkOps
	moreOps    []*na.Op // operations of further chunks, if Window is larger
	opsUsed    int      // number of operations in use, in firstOps and moreOps
	reported   int64    // moved as passed to the last call of OnProgress
	taskQueued bool     // task is queued or running
	task       func()   // runTask as a method value; runs in Trigger
}

// A requestInfo identifies the request whose handler started a transfer. It is zero if the transfer
// was not started by a handler.
type requestInfo struct {
	id  uint64 // request ID, as in inspect.Call
	rpc string
}

// requestOf returns the requestInfo of the request to which ctx belongs.
func requestOf(ctx context.Context) (of requestInfo) {
	of.id, of.rpc = hghook.RequestOf(ctx)
	return of
}

// Phases of a transfer.
const (
	opNew      fsmcheck.State = iota
	opMoving                  // chunks are in flight
	opStopping                // canceled or failed; chunks are still in flight, but no more are started
	// No chunk is in flight. The transfer waits for Trigger to call OnProgress and done.
	opMoved
	opDone // done is running or has returned
)

var opPhases = fsmcheck.New("transfer",
	[]string{"new", "moving", "stopping", "moved", "done"},
	[][]fsmcheck.State{
		opNew:      {opMoving, opMoved},
		opMoving:   {opStopping, opMoved},
		opStopping: {opMoved},
		opMoved:    {opDone},
		opDone:     {},
	})

// setPhaseLocked changes the phase of the transfer to next. The caller must hold op.mu.
func (op *Op) setPhaseLocked(next fsmcheck.State) {
	opPhases.Move(op.phase, next)
	op.phase = next
}

// Transfer starts moving spec.Size bytes and arranges for done to be called with the outcome. done
// may be nil.
//
//   - Transfer does not block and may be called from several goroutines concurrently.
//   - The transfer owns the local memory until done has run.
//   - If Transfer returns an error, nothing was started and done is not called. The error matches
//     hg.ErrInvalid if spec is invalid or its offsets and sizes do not fit the handles,
//     na.ErrPermission if the access mode of the remote handle does not permit the direction, and
//     hg.ErrClosed if the local handle or hctx is closed.
func Transfer(hctx *hg.Context, spec Spec, done DoneFunc) (*Op, error) {
	return transfer(hctx, spec, requestInfo{}, done)
}

// transfer is like Transfer. of is the request on whose behalf the transfer is made.
func transfer(hctx *hg.Context, spec Spec, of requestInfo, done DoneFunc) (*Op, error) {
	peer, err := spec.normalize()
	if err != nil {
		return nil, err
	}
	refused := func(err error) (*Op, error) {
		return nil, &Error{Dir: spec.Dir, Peer: peer, Size: spec.Size, Err: err}
	}
	if hctx.NA().Closing() {
		return refused(na.WithText(hg.ErrClosed, "the hg.Context is closed"))
	}
	if !spec.Local.mem().Acquire() { // released by complete, or below if an error is returned
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

// normalize validates s, sets its defaults, and returns the owner of the remote memory.
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
		return invalid("Spec.Size is %d, want 0 or more bytes", s.Size)
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

// copyEagerLocked performs a transfer that needs no communication with the peer: one of 0 bytes, or
// a pull of data that was sent along with the handle. The caller must hold op.mu.
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

// endMovingLocked enters phase opMoved. It must be called once no chunk is in flight and no more
// will be started. The caller must hold op.mu.
func (op *Op) endMovingLocked() {
	op.setPhaseLocked(opMoved)
	op.queueTaskLocked()
}

// newChunkOpLocked returns an unused operation, ready to start a chunk. The caller must hold op.mu.
func (op *Op) newChunkOpLocked() *na.Op {
	i := op.opsUsed
	op.opsUsed++
	nop := op.chunkOp(i)
	nop.InitStep(op.hctx.NA(), onChunkDone, op)
	return nop
}

// chunkOp returns the operation with index i. The operations in moreOps follow those in firstOps.
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

// startChunkLocked starts the next chunk, with nop as its operation. The caller must hold op.mu.
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

// failLocked records err if it is the first error, and cancels the chunks in flight. The caller
// must hold op.mu.
func (op *Op) failLocked(err error) {
	if op.err == nil {
		op.err = err
	}
	op.cancelChunksLocked()
}

// cancelChunksLocked cancels the chunks in flight and prevents further ones from being started. The
// caller must hold op.mu.
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

// onChunkDone handles the completion of a chunk and starts the next chunk, if any. It runs in
// Trigger.
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
			op.boundPeer = r.Addr // a process that later replaces the peer must not receive a chunk
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

// hasProgressLocked reports whether bytes have been moved that have not been reported to
// OnProgress. It returns false if OnProgress is nil. The caller must hold op.mu.
func (op *Op) hasProgressLocked() bool {
	return op.spec.OnProgress != nil && op.moved.Load() != op.reported
}

// queueTaskLocked queues runTask unless it is already queued or running. The caller must hold
// op.mu.
func (op *Op) queueTaskLocked() {
	if !op.taskQueued {
		op.taskQueued = true
		_ = op.hctx.Post(op.task)
	}
}

// runTask runs in Trigger. It calls OnProgress if there is new progress to report. Once all chunks
// have completed and all progress has been reported, it calls done.
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

// callOnProgressLocked calls OnProgress, releasing op.mu for the duration of the call. If
// OnProgress panics or calls runtime.Goexit, op.mu is left unlocked, and the next Trigger continues
// the transfer. The caller must hold op.mu.
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

// finishTaskLocked marks the task as no longer running, and queues it again if there is work left.
// The caller must hold op.mu.
func (op *Op) finishTaskLocked() {
	op.taskQueued = false
	if op.hasProgressLocked() || op.phase == opMoved {
		op.queueTaskLocked()
	}
}

// finishLocked enters phase opDone. It returns the error with which the transfer failed, or nil.
// The caller must hold op.mu.
func (op *Op) finishLocked() error {
	op.setPhaseLocked(opDone)
	if op.err == nil && op.moved.Load() < op.spec.Size {
		return hg.ErrCanceled
	}
	return op.err
}

// complete releases the memory, reports the transfer to Config.Observe, and calls done. op.mu must
// not be held.
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

// observeEnd reports the completion of the transfer to Config.Observe.
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

// A trackedOp is an Op as reported by hg.Context.Calls.
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

// Cancel cancels the transfer if it has not completed. It does not block and does not wait for a
// peer. done still runs exactly once, either in the next Trigger, without a call to Progress, or as
// soon as a copy in progress on another goroutine completes. done receives no error if every chunk
// had already completed.
func (op *Op) Cancel() {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.phase == opMoving {
		op.cancelChunksLocked()
	}
}

// Moved returns the number of bytes known to have been moved, which are those of completed chunks.
// Chunks complete in any order.
func (op *Op) Moved() int64 { return op.moved.Load() }

// Size returns the number of bytes to move.
func (op *Op) Size() int64 { return op.spec.Size }
