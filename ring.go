package quicksilver

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A ring is memory of a caller through which a stream of a Source or a Sink goes, while its call lasts. Positions count
// the bytes of the stream; a byte is at its position modulo ringSize.
//
//	From:  r ─ Read, a goroutine of the caller ─► ring ─ pulled by the handler ─►    filled ≥ freed ≥ filled-ringSize
//	Into:  w ◄─ Write, a goroutine of the caller ─ ring ◄─ pushed by the handler
//	       handler ── ringRPC: how far it is, and what it waits for ──► caller, which answers how far the other side is
type ring struct {
	n    *Node
	id   ringID
	mem  []byte
	h    *bulk.Handle
	from io.Reader // one of these two
	into *sink     //

	mu      sync.Mutex // guards the fields below
	theirs  int64      // how far the handler is
	ours    int64      // how far the goroutine is
	end     bool       // From: r has ended
	err     error      // of r or w
	need    int64      // what waiting waits for ours to be
	waiting hg.Incoming
	waits   bool
	closed  bool
	gone    chan struct{} // closed when the goroutine has
}

const (
	ringSize  = 4 << 20
	ringPiece = 1 << 20 // bytes in one Read, Write, pull or push, at the most
	ringRPC   = "qs/ring"
)

// A ringID is random: who knows it may use the ring.
type ringID [16]byte

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
	_, err := n.class.RegisterRPC(hg.RPC{Name: ringRPC, Handler: rs.serve, Inline: true, Always: true})
	return err
}

// open begins a ring for one attempt of a call.
func (rs *rings) open(hctx *hg.Context, from io.Reader, into *sink) (*ring, error) {
	g := &ring{n: rs.n, mem: make([]byte, ringSize), from: from, into: into, gone: make(chan struct{})}
	access := bulk.ReadOnly
	if into != nil {
		access = bulk.WriteOnly
	}
	var err error
	if g.h, err = bulk.Create(hctx, bulk.Options{Access: access, Eager: -1}, g.mem); err != nil {
		return nil, err
	}
	hctx.NA().Class().Rand(g.id[:])
	rs.mu.Lock()
	rs.all[g.id] = g
	rs.mu.Unlock()
	if from != nil {
		rs.n.Go(g.fill)
	} else {
		rs.n.Go(g.drain)
	}
	return g, nil
}

// close ends g: when it has returned nobody reads from r or writes to w any more. A Sink's bytes that have come are written
// before, if the call has succeeded.
func (g *ring) close() {
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
	if g.n.hctx.NA().Scheduled() { // a coroutine does not wait on a channel
		_ = g.n.hctx.Wait(context.Background(), g.over)
		return
	}
	<-g.gone
}

func (g *ring) over() bool {
	select {
	case <-g.gone:
		return true
	default:
		return false
	}
}

var errRingClosed = hg.Errorf(hg.Aborted, "the call has ended")

// serve is the handler of ringRPC. It does not block.
func (rs *rings) serve(r hg.Incoming) error {
	b, err := r.InputRaw()
	if err != nil {
		return err
	}
	if len(b) != ringRequest {
		return hg.Errorf(hg.BadInput, "%s: input of %d bytes, want %d", ringRPC, len(b), ringRequest)
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
func (g *ring) hear(r hg.Incoming, theirs, need int64) error {
	g.mu.Lock()
	low, high := g.theirs, g.ours // From: it has freed what was filled
	if g.from == nil {
		high = g.ours + ringSize // Into: it has filled what was free
	}
	switch {
	case g.closed:
		g.mu.Unlock()
		return errRingClosed
	case g.waits, theirs < low, theirs > high:
		g.mu.Unlock()
		return hg.Errorf(hg.BadInput, "%s: %d is no position that follows", ringRPC, theirs)
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
		return nil, hg.Errorf(hg.Aborted, "the caller's stream: %w", g.err)
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, ringAnswer), uint64(g.ours))
	if g.end {
		return append(out, 1), nil
	}
	return append(out, 0), nil
}

// moved says that the goroutine is n bytes further, and how that went. It reports false when there is no more to do.
func (g *ring) moved(n int, end bool, err error) bool {
	g.mu.Lock()
	g.ours += int64(n)
	g.end = end
	if err != nil && g.err == nil {
		g.err = err
	}
	var r hg.Incoming
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
		if !g.closed && n > 0 {
			at := g.ours % ringSize
			piece = g.mem[at:min(at+min(n, ringPiece), ringSize)]
		}
		return g.closed || n > 0
	})
	return piece
}

// fill reads from the caller's reader.
func (g *ring) fill() {
	defer g.leave()
	for empty := 0; ; {
		piece := g.next()
		if piece == nil {
			return
		}
		n, err := g.from.Read(piece)
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
		if !g.moved(n, end, err) {
			return
		}
	}
}

// drain writes to the caller's writer.
func (g *ring) drain() {
	defer g.leave()
	for {
		piece := g.next()
		if piece == nil {
			return
		}
		n, err := g.into.into.Write(piece)
		if err == nil && n < len(piece) {
			err = io.ErrShortWrite
		}
		n = max(min(n, len(piece)), 0)
		g.into.filled.Add(int64(n))
		if !g.moved(n, false, err) {
			return
		}
	}
}

func (g *ring) leave() {
	if p := recover(); p != nil { // of the program's reader or writer: it fails the call instead of the process
		g.moved(0, false, fmt.Errorf("panic: %v", p))
	}
	close(g.gone)
	g.n.hctx.Wake()
}

// progress returns how many bytes have gone through, and the error of the caller's stream.
func (g *ring) progress() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ours, g.err
}
