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

// A transfer is the target's side of one file.
//
//	          first                                          second
//	upload:   rpcPiece ─► queue ─► begin to pull a bite of it ─► it has come: sum, write; after the last: check, journal, respond
//	download: rpcPiece ─► queue ─► read and sum, begin to push ─► it has arrived: respond
//
// The two run on two goroutines, some pieces apart: the disk and the network work at the same time. A piece that fails ends
// the transfer; what was verified until then stays for another time.
type transfer struct {
	files  *Server
	id     uint64
	peer   na.Addr
	client string // whose limits it shares
	from   string // the network address of the origin, for texts
	path   string

	ctx    context.Context
	cancel context.CancelCauseFunc
	queue  chan *move
	rest   *move         // of a piece that is pulled bite by bite; of first
	early  []*move       // pieces that wait for those before them in the file; of next
	at     int64         // where the next piece begins in the file, once one has come; of next
	begun  bool          // at is known
	ended  chan struct{} // closed when nothing is under way any more

	lent     atomic.Int64  // buffers that it has
	returned chan struct{} // it has given one back

	closed sync.Once // what follows

	// One of the two is set. filesMu guards what is in it, also while the disk is waited for.
	filesMu sync.Mutex
	part    *part   // of an upload
	source  *source // of a download

	mu   sync.Mutex // guards the fields below
	used time.Time
	last bool // queue is closed
}

func (fs *Server) newTransfer(peer na.Addr, client, from, path string) *transfer {
	t := &transfer{
		files: fs, peer: peer, client: client, from: from, path: path, used: time.Now(),
		queue: make(chan *move, MaxWindow), ended: make(chan struct{}), returned: make(chan struct{}, 1),
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// enqueue takes a request in, or says why not.
func (t *transfer) enqueue(h hg.Request, req pieceRequest) error {
	if req.Size < 1 || req.Size > MaxPiece || req.Memory == nil {
		return fmt.Errorf("a piece of %d bytes, want 1 to %d: %w", req.Size, MaxPiece, na.ErrInvalid)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last {
		return t.gone()
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
		return fmt.Errorf("more than %d pieces at a time: %w", MaxWindow, na.ErrAgain)
	}
}

// gone says why pieces are not taken any more.
func (t *transfer) gone() error {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	return fmt.Errorf("the transfer of %s has ended: %w", t.path, na.ErrClosed)
}

// How many bites of an upload, or pieces of a download, wait between first and second: enough for either to go on while the
// other sleeps.
const (
	bitesAhead  = 16
	piecesAhead = 2
)

// run moves pieces until the transfer is ended or fails.
func (t *transfer) run() {
	depth := piecesAhead
	if t.part != nil {
		depth = bitesAhead
	}
	err := overlap(t.ctx, depth, t.first, t.second)
	if err != nil {
		t.cancel(err)
	}
	t.stop()
	if t.rest != nil {
		t.rest.respond(nil, t.gone())
	}
	for _, m := range t.early {
		m.respond(nil, t.gone())
	}
	for m := range t.queue { // closed by stop
		m.respond(nil, t.gone())
	}
	close(t.ended)
	if err != nil {
		t.files.drop(t)
	}
}

// stop takes no more pieces.
func (t *transfer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last {
		t.last = true
		close(t.queue)
	}
}

// lateTime is how long a piece that has come early waits for those before it.
const lateTime = time.Second

// next returns the next piece of the file. The origin sends the pieces in their order, but several goroutines of the node may
// take them in, and one may overtake another: an early piece waits for those before it. If they do not come, or too many are
// early, it is returned all the same, and refused because of its offset.
func (t *transfer) next(ctx context.Context) (*move, error) {
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
					late = time.After(lateTime)
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

// offset returns where the file goes on.
func (t *transfer) offset() int64 {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.part != nil {
		return t.part.sums.at
	}
	return t.source.sums.at
}

// first begins to pull the next bite from the origin, or reads the next piece from the file and begins to push it.
func (t *transfer) first(ctx context.Context) (*move, error) {
	m := t.rest
	if m == nil {
		var err error
		if m, err = t.next(ctx); err != nil {
			return nil, err
		}
	}
	t.rest = nil
	if t.part != nil && m.req.Size > bite {
		t.rest, m = m, m.cut(bite)
	}
	if err := t.begin(ctx, m); err != nil {
		t.answer(m, nil, err)
		return nil, err
	}
	return m, nil
}

// second waits for it, and writes it to the file if it was pulled.
func (t *transfer) second(ctx context.Context, m *move) error {
	err := m.wait(ctx)
	switch {
	case t.source != nil:
		err = t.source.because(err)
	case err == nil:
		err = t.write(m)
	}
	t.answer(m, &pieceReply{m.req.CRC}, err)
	return err
}

// use notes that the origin still wants t, and reports false when t has ended.
func (t *transfer) use() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = time.Now()
	return !t.last
}

// lastUse returns when the origin wanted something of t last.
func (t *transfer) lastUse() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// seek looks at what is there already.
func (t *transfer) seek(req seekRequest) (r seekReply, err error) {
	if !t.use() {
		return r, t.gone()
	}
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.source != nil {
		r.Left, err = t.source.seek(req.At, req.CRC)
		return r, err
	}
	r.Left, err = t.part.check()
	r.At, r.CRC, r.Note = t.part.sums.at, t.part.sums.crc, t.part.note
	return r, err
}

// finish ends a transfer whose pieces have all been answered, or breaks it off.
func (t *transfer) finish(req closeRequest) (r closeReply, err error) {
	if !req.Commit {
		t.cancel(fmt.Errorf("the origin has broken the transfer off: %w", na.ErrCanceled))
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

// close lets the files go, when nothing is under way.
func (t *transfer) close() {
	t.filesMu.Lock()
	defer t.filesMu.Unlock()
	if t.part != nil {
		t.part.close()
	} else {
		t.source.close()
	}
}
