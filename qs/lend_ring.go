package qs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ring is memory of a caller through which a stream of a Source or a Sink goes, while its call lasts. Positions count
// the bytes of the stream; a byte is at its position modulo ringSize.
//
//	From:  r ─ Read, a goroutine of the caller ─► ring ─ pulled by the handler ─►    filled ≥ freed ≥ filled-ringSize
//	Writer:  w ◄─ Write, a goroutine of the caller ─ ring ◄─ pushed by the handler
//	       handler ── ringRPC: how far it is, and what it waits for ──► caller, which answers how far the other side is
type ring struct {
	n    *Node
	id   ringID
	mem  []byte
	h    *bulk.Handle
	from io.Reader // one of these two
	into *sink     //
	used *used     // of the Source or the Sink

	file  bool // from or into is a file of this package: it does not block for long
	ended bool // of the goroutine: it has come to its end by itself

	mu      sync.Mutex // guards the fields below
	peer    ringPeer   // the handler's process
	theirs  int64      // how far the handler is
	ours    int64      // how far the goroutine is
	end     bool       // From: r has ended
	err     error      // of r or w
	need    int64      // what waiting waits for ours to be
	waiting hg.Request
	waits   bool
	closed  bool
	busy    bool          // in a Read or a Write
	broken  chan struct{} // not nil: a Read or a Write was interrupted; closed when its deadline is set
	left    bool          // one was left behind: nothing of it counts
	gone    chan struct{} // closed when the goroutine has
}

const (
	ringSize  = 4 << 20
	ringPiece = 1 << 20 // bytes in one Read, Write, pull or push, at the most
	ringRPC   = "qs/ring"
)

// A ringID is random: the peer that was told it may use the ring.
type ringID [16]byte

// A ringPeer is the session that an id belongs to: that of the first who has named it.
type ringPeer struct {
	session uint64
	known   bool
}

// bindOrCheck binds p to the session of from if it is bound to none, and reports whether it is bound to that one.
func (p *ringPeer) bindOrCheck(from hg.Addr) bool {
	if !p.known {
		p.session, p.known = from.Session(), true
	}
	return p.session == from.Session()
}

// A ring's request is the id, how far the handler is, and how far the goroutine has to be for an answer. The answer is how far
// that is, and 1 if that is the end.
const (
	ringRequest = 16 + 8 + 8
	ringAnswer  = 8 + 1
)

// rings are those of a node.
type rings struct {
	n   *Node
	mu  sync.Mutex // guards all
	all map[ringID]*ring
}

func (rs *rings) register(n *Node) error {
	rs.n, rs.all = n, map[ringID]*ring{}
	err := hghook.RegisterRPC(n.class, hg.RPC{Name: ringRPC, Handler: rs.serve, Inline: true}, hghook.RPCOptions{ServeDraining: true, Expedited: true, SkipAuthorize: true})
	return err
}

// A used says that an attempt uses a reader or a writer of the program, and has what was read ahead of a Reader as long as none of it
// was taken: the next attempt begins with that. When some of it was, or a Read was left behind, the next would lack bytes without knowing.
type used struct {
	atomic.Bool
	ahead *ring // of the last attempt
	spent bool  // there is no next one
}

var errInUse = na.WithText(ErrInvalid, "another attempt or call uses this Source or Sink: it serves one at a time")

var errSpent = na.WithText(ErrInvalid, "a call before has used bytes of this Reader, or left its Read running: lend a new one")

// open begins a ring for one attempt of a call.
func (rs *rings) open(hctx *hg.Context, from io.Reader, into *sink, used *used) (_ *ring, err error) {
	if !used.CompareAndSwap(false, true) {
		return nil, errInUse
	}
	defer func() {
		if err != nil {
			used.Store(false)
		}
	}()
	if used.spent {
		return nil, errSpent
	}
	g := &ring{n: rs.n, from: from, into: into, used: used, gone: make(chan struct{})}
	switch from.(type) {
	case nil:
		g.file = into.of != nil
	case *sectionReader:
		g.file = true
	}
	if was := used.ahead; was != nil {
		g.mem, g.ours, g.end, g.err = was.mem, was.ours, was.end, was.err
	} else {
		g.mem = make([]byte, ringSize)
	}
	access := bulk.ReadOnly
	if into != nil {
		access = bulk.WriteOnly
		into.filled.Store(0)
	}
	if g.h, err = bulk.Create(hctx, bulk.Options{Access: access, Eager: -1}, g.mem); err != nil {
		return nil, err
	}
	hctx.NA().Class().Rand(g.id[:])
	rs.mu.Lock()
	rs.all[g.id] = g
	rs.mu.Unlock()
	if from != nil {
		rs.n.spawn(g.fill)
	} else {
		rs.n.spawn(g.drain)
	}
	return g, nil
}

// release lets another attempt use the reader or the writer, unless a Read or a Write was left behind: then its end does. Nobody can get
// at the memory any more.
func (g *ring) release() {
	moved := g.moved()
	g.mu.Lock()
	if g.left {
		g.mu.Unlock()
		return
	}
	switch g.used.ahead = nil; {
	case g.from == nil:
	case moved > 0:
		g.used.spent = true
	default: // all that was read is in mem
		g.used.ahead = g
	}
	g.mu.Unlock()
	g.used.Store(false)
}

// moved returns how many bytes the handler has got of a Reader, or the writer of a Writer.
func (g *ring) moved() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.from != nil {
		return max(g.theirs, g.h.Moved())
	}
	return g.ours
}

// What is given to a Read or a Write that is under way when its call ends: to return, and to a Write once it was interrupted. A Read is
// interrupted at once, since nothing is lost; a Write that is cut short may break what it writes to, such as a TLS connection.
const (
	ringGrace = 50 * time.Millisecond
	ringBreak = 20 * time.Millisecond
)

// close ends g: no Read or Write begins any more. It reports whether one is left behind, which neither returned nor could be interrupted.
// A Sink's bytes that have come are written before, if the call has succeeded.
func (g *ring) close() (left bool) {
	g.n.rings.mu.Lock()
	delete(g.n.rings.all, g.id)
	g.n.rings.mu.Unlock()
	g.mu.Lock()
	g.closed = true
	waits, r := g.waits, g.waiting
	g.waits = false
	g.mu.Unlock()
	if waits {
		_ = r.RespondError(errRingClosed, nil)
	}
	g.n.hctx.Wake()
	if g.file {
		return !g.await(-1)
	}
	if g.from != nil {
		g.interrupt()
	}
	if g.await(ringGrace) || g.into != nil && g.interrupt() && g.await(ringBreak) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = !g.over()
	return g.left
}

// await reports whether the goroutine ends within d; a negative d is no limit.
func (g *ring) await(d time.Duration) bool {
	if g.n.hctx.NA().Scheduled() { // a coroutine does not wait on a channel
		_ = g.n.hctx.WaitFor(context.Background(), d, g.over)
		return g.over()
	}
	if d < 0 {
		<-g.gone
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-g.gone:
		return true
	case <-t.C:
		return g.over()
	}
}

// interrupt has the Read or Write under way return, if deadlines of r or w do that. The goroutine takes the deadline back.
func (g *ring) interrupt() bool {
	said := make(chan struct{})
	defer close(said)
	g.mu.Lock()
	if !g.busy {
		g.mu.Unlock()
		return true // it ends by itself
	}
	g.broken = said
	g.mu.Unlock()
	return g.deadline(time.Unix(1, 0))
}

// deadline sets the deadline of the program's reader or writer, if it has one, and reports whether that has succeeded. One that panics, as
// that of an embedded net.Conn which is nil, has none.
func (g *ring) deadline(at time.Time) (set bool) {
	defer func() {
		if p := recover(); p != nil {
			set = false
			g.n.logger().Warn("SetReadDeadline or SetWriteDeadline of a Reader or a Writer has panicked", "panic", p)
		}
	}()
	if g.from != nil {
		r, ok := g.from.(interface{ SetReadDeadline(time.Time) error })
		return ok && r.SetReadDeadline(at) == nil
	}
	w, ok := g.into.into.(interface{ SetWriteDeadline(time.Time) error })
	return ok && w.SetWriteDeadline(at) == nil
}

func (g *ring) over() bool {
	select {
	case <-g.gone:
		return true
	default:
		return false
	}
}

var errRingClosed = hg.Errorf(hg.ErrAborted, "the call has ended")

// serve is the handler of ringRPC. It does not block.
func (rs *rings) serve(r hg.Request) error {
	b, err := r.InputRaw()
	if err != nil {
		return err
	}
	if len(b) != ringRequest {
		return hg.Errorf(hg.ErrBadInput, "%s: input of %d bytes, want %d", ringRPC, len(b), ringRequest)
	}
	var id ringID
	copy(id[:], b)
	theirs, need := int64(binary.LittleEndian.Uint64(b[16:])), int64(binary.LittleEndian.Uint64(b[24:]))
	rs.mu.Lock()
	g := rs.all[id]
	rs.mu.Unlock()
	if g == nil {
		return errRingClosed
	}
	return g.hear(r, theirs, need)
}

// hear takes in how far the handler is, and answers when the goroutine is as far as it needs.
func (g *ring) hear(r hg.Request, theirs, need int64) error {
	g.mu.Lock()
	low, high := g.theirs, g.ours // From: it has freed what was filled
	if g.from == nil {
		high = g.ours + ringSize // Writer: it has filled what was free
	}
	switch {
	case g.closed, !g.peer.bindOrCheck(r.Peer()):
		g.mu.Unlock()
		return errRingClosed
	case g.waits, theirs < low, theirs > high:
		g.mu.Unlock()
		return hg.Errorf(hg.ErrBadInput, "%s: %d is no position that follows", ringRPC, theirs)
	}
	g.theirs, g.need = theirs, need
	if !g.answerable() {
		if err := r.Detach(); err != nil {
			g.mu.Unlock()
			return err
		}
		g.waits, g.waiting = true, r
		g.mu.Unlock()
		g.n.hctx.Wake()
		return nil
	}
	out, err := g.answer()
	g.mu.Unlock()
	g.n.hctx.Wake()
	if err != nil {
		return err
	}
	return r.RespondRaw(out, nil)
}

// answerable reports whether the handler need not wait. Locked.
func (g *ring) answerable() bool { return g.ours >= g.need || g.end || g.err != nil }

// answer returns what a handler is told. Locked.
func (g *ring) answer() ([]byte, error) {
	if g.err != nil && (g.from == nil || g.theirs == g.ours) {
		what := "reader"
		if g.from == nil {
			what = "writer"
		}
		return nil, hg.Errorf(na.ErrIO, "the caller's %s has failed: %w", what, g.err)
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, ringAnswer), uint64(g.ours))
	if g.end {
		return append(out, 1), nil
	}
	return append(out, 0), nil
}

// further says that the goroutine is n bytes further, and how that went. It reports false when there is no more to do.
func (g *ring) further(n int, end bool, err error) bool {
	g.mu.Lock()
	g.busy = false
	if g.left {
		g.mu.Unlock()
		return false
	}
	g.ours += int64(n)
	g.end = end
	if g.into != nil {
		g.into.filled.Store(g.ours)
	}
	if err != nil && g.err == nil && !g.closed { // an interrupt is no error of theirs
		g.err = err
	}
	var r hg.Request
	var out []byte
	var failed error
	waits := g.waits && g.answerable()
	if waits {
		g.waits, r = false, g.waiting
		out, failed = g.answer()
	}
	more := !end && g.err == nil && !g.closed
	g.mu.Unlock()
	switch {
	case !waits:
	case failed != nil:
		_ = r.RespondError(failed, nil)
	default:
		_ = r.RespondRaw(out, nil)
	}
	return more
}

// next waits until there are bytes to be filled or drained, and returns them, in one piece; nil when there will be none.
func (g *ring) next() (piece []byte) {
	_ = g.n.hctx.Wait(context.Background(), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		n := g.theirs - g.ours // Into
		if g.from != nil {
			n += ringSize
		}
		piece = nil
		if g.busy = !g.closed && n > 0; g.busy {
			at := g.ours % ringSize
			piece = g.mem[at:min(at+min(n, ringPiece), ringSize)]
		}
		return g.closed || n > 0
	})
	return piece
}

// fill reads from the caller's reader.
func (g *ring) fill() {
	defer g.returned()
	if g.end || g.err != nil { // in an attempt before
		g.ended = true
		return
	}
	for empty := 0; ; {
		piece := g.next()
		if piece == nil {
			g.ended = true
			return
		}
		n, err := g.from.Read(piece)
		if err != nil && err != io.EOF {
			err = programs{err}
		}
		switch {
		case n < 0 || n > len(piece):
			n, err = 0, fmt.Errorf("a Read of %d bytes returned %d", len(piece), n)
		case n > 0:
			empty = 0
		case err == nil:
			if empty++; empty == 100 {
				err = io.ErrNoProgress
			}
		}
		end := err == io.EOF
		if end {
			err = nil
		}
		if !g.further(n, end, err) {
			g.ended = true
			return
		}
	}
}

// drain writes to the caller's writer.
func (g *ring) drain() {
	defer g.returned()
	for {
		piece := g.next()
		if piece == nil {
			g.ended = true
			return
		}
		n, err := g.into.into.Write(piece)
		switch {
		case err != nil:
			err = programs{err}
		case n < len(piece):
			err = io.ErrShortWrite
		case n > len(piece):
			err = fmt.Errorf("a Write of %d bytes returned %d", len(piece), n)
		}
		n = max(min(n, len(piece)), 0)
		if !g.further(n, false, err) {
			g.ended = true
			return
		}
	}
}

// returned is the end of the goroutine that reads or writes.
func (g *ring) returned() {
	if p := recover(); p != nil { // of the program's reader or writer: it fails the call instead of the process
		g.further(0, false, fmt.Errorf("panic: %v", p))
	} else if !g.ended {
		g.further(0, false, errGoexit)
	}
	defer g.leave() // deferred: SetReadDeadline may end the goroutine
	g.mu.Lock()
	said := g.broken
	g.mu.Unlock()
	if said != nil {
		<-said
		g.deadline(time.Time{})
	}
}

// leave tells who waits for the goroutine that it is over.
func (g *ring) leave() {
	g.mu.Lock()
	left := g.left
	close(g.gone)
	g.mu.Unlock()
	if left { // the node may be gone
		g.used.spent = g.from != nil
		g.used.Store(false)
		return
	}
	g.n.hctx.Wake()
}

var errGoexit = hg.Errorf(hg.ErrAborted, "the Read or Write of the caller's stream ended its goroutine (runtime.Goexit)")

// progress returns how many bytes have gone through, and the error of the caller's stream.
func (g *ring) progress() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ours, g.err
}

// A ringCall is a handler's side of ringRPC.
type ringCall struct {
	n  *Node
	i  int
	to hg.Addr
	id ringID
}

// say tells the caller how far the handler is, waits until the caller is as far as need, or at the end, and returns where it is.
func (c ringCall) say(ctx context.Context, mine, need int64) (theirs int64, end bool, err error) {
	in := make([]byte, 0, ringRequest)
	in = append(in, c.id[:]...)
	in = binary.LittleEndian.AppendUint64(in, uint64(mine))
	in = binary.LittleEndian.AppendUint64(in, uint64(need))
	var bad error
	err = c.n.callRaw(ctx, c.i, c.to, ringRPC, in, func(out []byte) {
		if len(out) != ringAnswer {
			bad = fmt.Errorf("qs: %s: answer of %d bytes, want %d: %w", ringRPC, len(out), ringAnswer, na.ErrProtocol)
			return
		}
		theirs, end = int64(binary.LittleEndian.Uint64(out)), out[8] == 1
	})
	if err == nil {
		err = bad
	}
	if r, ok := hg.RemoteOf(err); ok && r.Code == na.ErrIO { // of the program's, there; by which call it is told is of no use
		err = errors.New("qs: " + r.Text)
	}
	return theirs, end, err
}

var errRingAnswer = fmt.Errorf("qs: %s: the caller answers a position that cannot be: %w", ringRPC, na.ErrProtocol)

// sectionReader reads a file from its beginning, whatever its offset is.
type sectionReader struct {
	f   *os.File
	off int64
}

func (r *sectionReader) Read(b []byte) (int, error) {
	n, err := r.f.ReadAt(b, r.off)
	r.off += int64(n)
	return n, err
}

// A programs is an error of the program's own reader or writer. It matches what that does, but for codes and the errors of contexts,
// which would speak of the call.
type programs struct{ error }

func (e programs) Is(target error) bool {
	switch target.(type) {
	case hg.Code, *hg.RemoteError, *hg.Error:
		return false
	}
	return target != context.Canceled && target != context.DeadlineExceeded && target != os.ErrDeadlineExceeded && errors.Is(e.error, target)
}

func (e programs) As(target any) bool {
	switch target.(type) {
	case *hg.Code, **hg.RemoteError, **hg.Error:
		return false
	}
	return errors.As(e.error, target)
}
