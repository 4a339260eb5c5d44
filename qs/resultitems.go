package qs

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// How items travel: in calls back from the handler's process. A message is answered when it has come, and given back, by a call in the
// other direction, when the loop is through with it.
const (
	itemsRPC = "qs/items" // id, number of the message, items: each its length and its bytes
	takenRPC = "qs/taken" // id, how many messages the loop is through with

	itemsHead     = 16 + 8
	streamMessage = 64 << 10         // bytes of a message, unless one item has more
	streamWindow  = 3                // messages that the loop is not through with,
	streamHeld    = streamWindow + 1 // and the last one of a handler that fails
)

// streams are those of a node.
type streams struct {
	mu      sync.Mutex // guards the maps
	takers  map[ringID]*taker
	senders map[ringID]*sender
}

func (ss *streams) register(n *Node) error {
	ss.takers, ss.senders = map[ringID]*taker{}, map[ringID]*sender{}
	own := hghook.RPCOptions{ServeDraining: true, Expedited: true, SkipAuthorize: true}
	err := hghook.RegisterRPC(n.class, hg.RPC{Name: itemsRPC, Handler: ss.items, Inline: true}, own)
	if err == nil {
		err = hghook.RegisterRPC(n.class, hg.RPC{Name: takenRPC, Handler: ss.passed, Inline: true}, own)
	}
	return err
}

// parseItems returns the id, the number and the rest of an input of either RPC.
func parseItems(r hg.Request) (id ringID, n int64, rest []byte, err error) {
	b, err := r.InputRaw()
	if err == nil && len(b) < itemsHead {
		err = hg.Errorf(hg.ErrBadInput, "%s: input of %d bytes, want at least %d", r.Name(), len(b), itemsHead)
	}
	if err != nil {
		return id, 0, nil, err
	}
	n = int64(binary.LittleEndian.Uint64(b[copy(id[:], b):]))
	return id, n, b[itemsHead:], nil
}

// items is the handler of itemsRPC.
func (ss *streams) items(r hg.Request) error {
	id, n, b, err := parseItems(r)
	if err != nil {
		return err
	}
	ss.mu.Lock()
	t := ss.takers[id]
	ss.mu.Unlock()
	if t == nil {
		return errRingClosed
	}
	if err := t.accept(id, n, b, r.Peer()); err != nil {
		return err
	}
	return r.RespondRaw(nil, nil)
}

// passed is the handler of takenRPC.
func (ss *streams) passed(r hg.Request) error {
	id, n, _, err := parseItems(r)
	if err != nil {
		return err
	}
	ss.mu.Lock()
	s := ss.senders[id]
	ss.mu.Unlock()
	if s == nil || s.to.Session() != r.Peer().Session() {
		return errRingClosed
	}
	if err := s.gotBack(n); err != nil {
		return err
	}
	return r.RespondRaw(nil, nil)
}

// A taker is the caller's end of a stream. Its lock is not held around calls of other packages.
type taker struct {
	home *hg.Context // where the loop waits

	mu    sync.Mutex // guards the fields below
	n     *Node
	hctx  *hg.Context // by which the attempt leaves
	id    ringID      // of the attempt
	live  bool        // it is under way
	bytes int64       // of items that have come: there is no attempt after one that has brought some
	looks int64       // of Retry at a stream whose loop takes its time

	held    [streamHeld][]byte // messages, at their numbers modulo streamHeld,
	has     [streamHeld]bool   // and which there are
	passed  int64              // messages that the loop is through with
	peer    ringPeer           // the handler's process,
	from    hg.Addr            // and its address
	h       *hg.Handle         // to say so
	saying  bool
	said    int64
	message [itemsHead]byte
	err     error // it could not be said
}

// begin begins an attempt, and returns its id.
func (t *taker) begin(n *Node, hctx *hg.Context) (id ringID, err error) {
	hctx.NA().Class().Rand(id[:])
	t.mu.Lock()
	switch {
	case t.live:
		t.mu.Unlock()
		return id, hg.Errorf(ErrInvalid, "an attempt of a stream is under way: make one after the other")
	case t.bytes > 0:
		t.mu.Unlock()
		return id, hg.Errorf(ErrInvalid, "items have come of an attempt before: call the stream again")
	}
	t.n, t.hctx, t.id, t.live, t.peer = n, hctx, id, true, ringPeer{}
	t.mu.Unlock()
	n.streams.mu.Lock()
	n.streams.takers[id] = t
	n.streams.mu.Unlock()
	return id, nil
}

// end ends the attempt. What has come stays.
func (t *taker) end() {
	t.mu.Lock()
	h, n, id, live := t.h, t.n, t.id, t.live
	t.live, t.h = false, nil
	t.mu.Unlock()
	if !live {
		return
	}
	n.streams.mu.Lock()
	delete(n.streams.takers, id)
	n.streams.mu.Unlock()
	if h != nil {
		h.Cancel()
		_ = h.Close()
	}
}

// accept takes in message number n.
func (t *taker) accept(id ringID, n int64, items []byte, from hg.Addr) error {
	t.mu.Lock()
	at := n % streamHeld
	switch {
	case !t.live || t.id != id || !t.peer.bindOrCheck(from):
		t.mu.Unlock()
		return errRingClosed
	case n < t.passed || n >= t.passed+streamHeld || t.has[at]:
		t.mu.Unlock()
		return hg.Errorf(hg.ErrBadInput, "%s: message %d is none that may follow", itemsRPC, n)
	}
	t.held[at] = append(t.held[at][:0], items...)
	t.has[at], t.from = true, from
	t.bytes += int64(len(items))
	next := n == t.passed
	t.mu.Unlock()
	if next {
		t.home.Wake()
	}
	return nil
}

// next waits for the next message. over says that the call has ended, and that all that has come was taken. When the context of the
// loop has ended the rest is dropped.
func (t *taker) next(f *future) (items []byte, over bool, err error) {
	ready := func() bool {
		if f.over() {
			return true
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.live && (t.err != nil || t.has[t.passed%streamHeld])
	}
	if f.ctx.Err() != nil || t.home.Wait(context.Background(), ready) != nil && !ready() { // or the node is closed: so the call ends
		_ = f.waitEnd(context.Background())
	}
	over = f.over() // before what has come is looked at: it is complete then
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.passed % streamHeld
	if !t.has[at] || over && f.ctx.Err() != nil {
		if over {
			return nil, true, nil
		}
		return nil, false, t.err
	}
	return t.held[at], false, nil
}

// through gives the message that the loop has got back.
func (t *taker) through() {
	t.mu.Lock()
	at := t.passed % streamHeld
	t.has[at] = false
	if cap(t.held[at]) > 2*streamMessage { // of one long item
		t.held[at] = nil
	}
	t.passed++
	t.mu.Unlock()
	t.say()
}

// say tells the handler's process how many messages the loop is through with, unless that is being said.
func (t *taker) say() {
	t.mu.Lock()
	if !t.live || t.saying || t.said == t.passed {
		t.mu.Unlock()
		return
	}
	t.saying, t.said = true, t.passed
	binary.LittleEndian.PutUint64(t.message[copy(t.message[:], t.id[:]):], uint64(t.said))
	h, hctx, to := t.h, t.hctx, t.from
	t.mu.Unlock()
	if h == nil {
		made, err := hctx.Create(to, hg.HashName(takenRPC))
		if err != nil {
			return // the session is over, and so the call
		}
		h = made
		t.mu.Lock()
		live := t.live
		if live {
			t.h = h
		}
		t.mu.Unlock()
		if !live {
			_ = h.Close()
			return
		}
	}
	if err := h.ForwardRaw(t.message[:], t.answered); err != nil {
		t.answered(h, err)
	}
}

// answered is the end of what say has said. If it has not arrived, but the session lasts, the handler would wait for ever.
func (t *taker) answered(_ *hg.Handle, err error) {
	said, remote := hg.RemoteOf(err)
	t.mu.Lock()
	t.saying = false
	switch {
	case err == nil:
	case remote && said.Code == ErrAborted, FateOf(err) != NotRun && !remote: // the handler, or the session, has ended: so will the call
		t.saying = true
	default:
		t.err = err
	}
	t.mu.Unlock()
	if err != nil {
		t.home.Wake()
		return
	}
	t.say()
}

// progress returns how many bytes of items have come. It grows, too, while the loop has something to take.
func (t *taker) progress() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has[t.passed%streamHeld] {
		t.looks++
	}
	return t.bytes + t.looks
}

// moved returns how many bytes of items have come.
func (t *taker) moved() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}
