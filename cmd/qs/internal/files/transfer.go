package files

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A transfer is the target's side of the transfer of one file. Two goroutines process its pieces in two stages, and
// they may be several pieces apart, so that disk and network are used in parallel.
//
// The first stage takes requests from a queue. For an upload it starts to pull a chunk of a piece. For a download it
// reads a piece from the file, computes its checksum and starts to push the piece. The second stage waits for the data
// to arrive. For an upload it writes the chunk and, after the last chunk of a piece, verifies and journals the piece.
// It then answers the request.
//
// If a piece fails, the transfer ends. Data that has already been verified is kept for a later transfer.
type transfer struct {
	files  *Server
	id     uint64
	peer   na.Addr
	client string // client whose limits the transfer counts toward; see clientOf
	from   string // network address of the origin, for error messages
	path   string

	ctx    context.Context
	cancel context.CancelCauseFunc
	queue  chan *move
	rest   *move         // remaining chunks of the current piece of an upload; used by runFirstStage
	early  []*move       // pieces that arrived before earlier pieces of the file; used by takeNext
	at     int64         // offset of the next piece, valid if begun is true; used by takeNext
	begun  bool          // takeNext has received a piece
	ended  chan struct{} // closed when no operation is in progress anymore

	lent     atomic.Int64  // number of buffers that the transfer uses
	returned chan struct{} // receives a value when a buffer is released

	closed sync.Once // ensures that part or source is closed once

	// Exactly one of part and source is set. The mutex filesMu guards their contents, and is held even while the disk
	// is accessed.
	filesMu sync.Mutex
	part    *part   // for an upload
	source  *source // for a download

	mu   sync.Mutex // guards the fields below
	used time.Time
	last bool // no further pieces are accepted, and queue is closed
}

func (fs *Server) newTransfer(peer na.Addr, client, from, path string) *transfer {
	t := &transfer{
		files: fs, peer: peer, client: client, from: from, path: path, used: time.Now(),
		queue: make(chan *move, MaxWindow), ended: make(chan struct{}), returned: make(chan struct{}, 1),
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// enqueue appends a request for a piece to the queue. If the request must be rejected, enqueue returns the reason.
func (t *transfer) enqueue(h hg.Request, req pieceRequest) error {
	if req.Size < 1 || req.Size > MaxPiece || req.Memory == nil {
		return fmt.Errorf("chunk of %d bytes, want 1 to %d: %w", req.Size, MaxPiece, na.ErrInvalid)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last {
		return t.goneError()
	}
	t.used = time.Now()
	if err := h.Detach(); err != nil {
		return err
	}
	m := &move{h: h, req: req}
	select {
	case t.queue <- m:
		return nil
	default:
		return fmt.Errorf("more than %d chunks in flight: %w", MaxWindow, na.ErrAgain)
	}
}

// goneError returns the reason why t does not accept pieces.
func (t *transfer) goneError() error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	return fmt.Errorf("the transfer of %s has ended: %w", t.path, na.ErrClosed)
}

// The maximum number of chunks of an upload, or pieces of a download, between the two stages. It must be large enough
// for each stage to continue while the other is blocked.
const (
	chunksAhead = 16
	piecesAhead = 2
)

// runStages transfers pieces until the transfer is stopped or fails, and rejects the remaining ones.
func (t *transfer) runStages() {
	depth := piecesAhead
	if t.part != nil {
		depth = chunksAhead
	}
	err := overlap(t.ctx, depth, t.runFirstStage, t.runSecondStage)
	if err != nil {
		t.cancel(err)
	}
	t.stop()
	if t.rest != nil {
		t.rest.respond(nil, t.goneError())
	}
	for _, m := range t.early {
		m.respond(nil, t.goneError())
	}
	for m := range t.queue { // ends because stop has closed the queue
		m.respond(nil, t.goneError())
	}
	close(t.ended)
	if err != nil {
		t.files.drop(t)
	}
}

// stop makes t reject further pieces.
func (t *transfer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last {
		t.last = true
		close(t.queue)
	}
}

// lateTimeout is how long a piece that arrived early waits for the pieces before it.
const lateTimeout = time.Second

// takeNext returns the next piece of the file. The origin sends requests in order, but several goroutines of the node
// may receive them, so that one may overtake another. An early piece waits for the pieces before it. If they do not
// arrive within lateTimeout, or if too many pieces are early, takeNext returns an early piece, which is then rejected
// because of its offset.
func (t *transfer) takeNext(ctx context.Context) (*move, error) {
	var late <-chan time.Time
	for {
		i := slices.IndexFunc(t.early, func(m *move) bool { return m.req.Offset <= t.at })
		if i < 0 && len(t.early) == MaxWindow {
			i = 0
		}
		if i < 0 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-late:
				i = 0
			case m, ok := <-t.queue:
				if !ok {
					return nil, io.EOF
				}
				if !t.begun {
					t.begun, t.at = true, t.offset()
				}
				t.early = append(t.early, m)
				if late == nil {
					late = time.After(lateTimeout)
				}
				continue
			}
		}
		m := t.early[i]
		t.early = slices.Delete(t.early, i, i+1)
		t.at = m.req.Offset + m.req.Size
		return m, nil
	}
}

// offset returns the file offset of the next byte to transfer.
func (t *transfer) offset() int64 {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.part != nil {
		return t.part.sums.at
	}
	return t.source.sums.at
}

// runFirstStage starts the transfer of the next chunk of an upload or the next piece of a download, and returns it.
func (t *transfer) runFirstStage(ctx context.Context) (*move, error) {
	m := t.rest
	if m == nil {
		var err error
		if m, err = t.takeNext(ctx); err != nil {
			return nil, err
		}
	}
	t.rest = nil
	if t.part != nil && m.req.Size > chunkSize {
		t.rest, m = m, m.splitFront(chunkSize)
	}
	if err := t.startMove(ctx, m); err != nil {
		t.answer(m, nil, err)
		return nil, err
	}
	return m, nil
}

// runSecondStage waits for the transfer of m to complete and answers its request. For an upload, it first writes the
// data to the file.
func (t *transfer) runSecondStage(ctx context.Context, m *move) error {
	err := m.wait(ctx)
	switch {
	case t.source != nil:
		err = t.source.failureReason(err)
	case err == nil:
		err = t.write(m)
	}
	t.answer(m, &pieceReply{m.req.CRC}, err)
	return err
}

// markUsed records that the origin is using t. It returns false if t no longer accepts pieces.
func (t *transfer) markUsed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = time.Now()
	return !t.last
}

// lastUse returns the time of the origin's most recent request for t.
func (t *transfer) lastUse() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// verifyPrefix verifies the next step of the data from an earlier transfer.
func (t *transfer) verifyPrefix(req seekRequest) (r seekReply, err error) {
	if !t.markUsed() {
		return r, t.goneError()
	}
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.source != nil {
		r.Left, err = t.source.seek(req.At, req.CRC)
		return r, err
	}
	r.Left, err = t.part.verifyNext()
	r.At, r.CRC, r.Note = t.part.sums.at, t.part.sums.crc, t.part.note
	return r, err
}

// finish ends the transfer. If req.Commit is set, it waits until all pieces have been answered and then commits the
// transfer. Otherwise it cancels the transfer.
func (t *transfer) finish(req closeRequest) (r closeReply, err error) {
	if !req.Commit {
		t.cancel(fmt.Errorf("transfer canceled by the origin: %w", na.ErrCanceled))
	}
	t.stop()
	<-t.ended
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	switch cause := context.Cause(t.ctx); {
	case !req.Commit:
		return r, nil
	case cause != nil:
		return r, cause
	case t.source != nil:
		r.SHA256 = t.source.sums.digest()
		return r, t.source.verify()
	}
	return r, t.part.commit(req.CRC, req.SHA256, req.Sync)
}

// close closes the part or the source. The caller must ensure that no operation is in progress.
func (t *transfer) close() {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.part != nil {
		t.part.close()
	} else {
		t.source.close()
	}
}
