package qs

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
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
	hctx  *hg.Context   // by which the attempt leaves
	id    ringID        // of the attempt
	live  bool          // it is under way
	bytes int64         // of items that have come: there is no attempt after one that has brought some
	items int64         // in messages that the loop is through with
	idle  time.Duration // when the loop last took a message, or one came that it could take, by hg.Context.Now
	looks int64         // of Retry at a stream whose loop takes its time

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
	if t.held[at] = append(t.held[at][:0], items...); t.has == ([streamHeld]bool{}) {
		t.idle = t.hctx.Now()
	}
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

// through gives the message that the loop has got back, after it has had so many items of it.
func (t *taker) through(items int64) {
	t.mu.Lock()
	t.items += items
	t.idle = t.hctx.Now()
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

// flow describes the stream for hg.Context.Calls.
func (t *taker) flow() *inspect.Flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &inspect.Flow{Items: t.items, Bytes: t.bytes, Sent: t.passed, Taken: t.passed, Window: streamWindow}
	for _, has := range t.has {
		if has {
			f.Sent++
		}
	}
	if f.Sent > f.Taken && t.live {
		f.Stuck = max(t.hctx.Now()-t.idle, 1)
	}
	return f
}

// moved returns how many bytes of items have come.
func (t *taker) moved() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// A sender is the handler's end of a stream. Its lock is not held around calls of other packages.
//
//	add ─► buf ─ full, or the caller has taken all that was sent ─► due ─► forward ─► itemsRPC
//	        └─ full, and no room in the window: add waits ◄─ answered, takenRPC ─┘
type sender struct {
	req  *request
	ctx  context.Context // of the handler
	id   ringID
	to   hg.Addr
	hctx *hg.Context

	mu     sync.Mutex // guards the fields below
	items  int64
	bytes  int64         // of these
	stuck  time.Duration // when add began to wait for room, by hg.Context.Now; 0 while it does not
	buf    []byte        // of the next message, behind its head; nil before the first item
	spare  []byte
	sent   int64 // messages
	passed int64 // of them that the loop is through with
	under  int   // that are not answered
	push   bool  // buf leaves as soon as there is room
	err    error // of a message
	ending bool  // the handler has returned: add takes nothing, and what is in buf goes with the answer,
	failed bool  // unless the answer is an error: then it is the last message
	over   bool
	idle   []*hg.Handle
	all    []*hg.Handle // at most streamHeld
}

func (s *sender) begin(r *request, id ringID) {
	s.req, s.ctx, s.id, s.to, s.hctx = r, r, id, r.r.Peer(), r.r.HG()
	r.n.streams.mu.Lock()
	r.n.streams.senders[id] = s
	r.n.streams.mu.Unlock()
}

// end is the end of the handler: no item is taken any more, and messages that are under way are canceled.
func (s *sender) end() {
	s.mu.Lock()
	was, all := s.over, s.all
	s.over, s.all, s.idle = true, nil, nil
	s.mu.Unlock()
	if was {
		return
	}
	ss := &s.req.n.streams
	ss.mu.Lock()
	if ss.senders[s.id] == s {
		delete(ss.senders, s.id)
	}
	ss.mu.Unlock()
	for _, h := range all {
		h.Abandon() // a caller that has left its loop may drive nothing any more: its library destroys them
		_ = h.Close()
	}
}

// fails says why no item is taken. Locked.
func (s *sender) fails() error {
	if s.over {
		return errStreamOver
	}
	return s.err
}

var errStreamOver = hg.Errorf(ErrClosed, "qs: the handler of the stream has returned; items are sent until then")

// windowOpen reports whether a message may leave. Locked.
func (s *sender) windowOpen() bool {
	most := streamWindow
	if s.failed {
		most = streamHeld
	}
	return s.sent-s.passed < int64(most) && s.under < most
}

// due returns the message that is to leave now, or nil. Locked.
func (s *sender) due() []byte {
	if len(s.buf) <= itemsHead || s.fails() != nil || !s.windowOpen() || !s.push && (s.ending || s.sent > s.passed) {
		return nil
	}
	msg := s.buf
	copy(msg, s.id[:])
	binary.LittleEndian.PutUint64(msg[16:], uint64(s.sent))
	s.buf, s.spare, s.push = s.spare, nil, false
	s.sent++
	s.under++
	return msg
}

// add takes an item.
func (s *sender) add(item []byte) error {
	size := len(item) + binary.MaxVarintLen32
	for {
		s.mu.Lock()
		err := s.fails()
		switch {
		case err != nil:
		case s.ending:
			err = errStreamOver
		case s.ctx.Err() != nil:
			err = context.Cause(s.ctx)
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		if s.buf == nil {
			s.buf = make([]byte, itemsHead, itemsHead+min(max(size, 1<<10), streamMessage))
		}
		fits := len(s.buf) <= itemsHead || len(s.buf)+size <= streamMessage
		if fits {
			s.items++
			s.bytes += int64(len(item))
			s.buf = append(binary.AppendUvarint(s.buf[:max(len(s.buf), itemsHead)], uint64(len(item))), item...)
		} else {
			s.push = true
		}
		msg := s.due()
		s.mu.Unlock()
		if msg != nil {
			s.forward(msg)
		}
		if fits {
			return nil
		}
		if msg == nil {
			if err := s.waitRoom(); err != nil {
				return err
			}
		}
	}
}

// waitRoom waits until the message in buf has left, or may.
func (s *sender) waitRoom() error {
	s.setStuck(s.hctx.Now())
	defer s.setStuck(0)
	return s.wait(s.ctx, -1, func() bool { return s.windowOpen() || !s.push })
}

func (s *sender) setStuck(since time.Duration) {
	s.mu.Lock()
	s.stuck = since
	s.mu.Unlock()
}

// flow describes the stream for hg.Context.Calls.
func (s *sender) flow() *inspect.Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &inspect.Flow{Items: s.items, Bytes: s.bytes, Sent: s.sent, Taken: s.passed, Window: streamWindow}
	if s.stuck != 0 {
		f.Stuck = max(s.hctx.Now()-s.stuck, 1)
	}
	return f
}

// wait waits until done, with the lock held, reports true or the stream fails, and returns how it fails, the cause of the end of
// ctx, or ErrTimeout after timeout, if that is not negative.
func (s *sender) wait(ctx context.Context, timeout time.Duration, done func() bool) error {
	err := s.req.r.HG().WaitFor(ctx, timeout, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.fails() != nil || done()
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fails()
}

// forward sends a message. It runs in add, or in a callback.
func (s *sender) forward(msg []byte) {
	for msg != nil {
		h, err := s.handle()
		if err == nil {
			err = h.ForwardRaw(msg, s.answered)
		}
		s.mu.Lock()
		if s.spare == nil && cap(msg) <= 2*streamMessage {
			s.spare = msg[:itemsHead]
		}
		if msg = nil; err != nil {
			s.under--
			if s.err == nil {
				s.err = err
			}
		} else {
			msg = s.due() // the one before may have been answered and taken meanwhile
		}
		s.mu.Unlock()
	}
}

// handle returns a handle for a message.
func (s *sender) handle() (*hg.Handle, error) {
	s.mu.Lock()
	last := len(s.idle) - 1
	if last >= 0 {
		h := s.idle[last]
		s.idle = s.idle[:last]
		s.mu.Unlock()
		return h, nil
	}
	s.mu.Unlock()
	h, err := s.req.r.HG().Create(s.to, hg.HashName(itemsRPC))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	over := s.over
	if !over {
		s.all = append(s.all, h)
	}
	s.mu.Unlock()
	if over {
		_ = h.Close()
	}
	return h, nil // closed, it forwards nothing
}

// answered is the end of a message's way.
func (s *sender) answered(h *hg.Handle, err error) {
	s.mu.Lock()
	s.under--
	if !s.over {
		s.idle = append(s.idle, h)
	}
	if err != nil && s.err == nil {
		s.err = err
	}
	s.moved()
}

// gotBack says that the loop of the caller is through with n messages.
func (s *sender) gotBack(n int64) error {
	s.mu.Lock()
	if n <= s.passed || n > s.sent {
		s.mu.Unlock()
		return hg.Errorf(hg.ErrBadInput, "%s: %d is no number that follows", takenRPC, n)
	}
	s.passed = n
	s.moved()
	return nil
}

// moved sends what may leave now, and wakes who waits. Locked, and unlocks.
func (s *sender) moved() {
	msg := s.due()
	s.mu.Unlock()
	if msg != nil {
		s.forward(msg)
	}
	s.req.r.HG().Wake()
}

// deliver waits until the caller's process has all messages. What did not fill one stays for the answer.
func (s *sender) deliver(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	return s.wait(ctx, -1, func() bool { return s.under == 0 })
}

// lastItemsTime is how long the error of a handler waits for the items before it.
const lastItemsTime = time.Second

// deliverFailed sends what did not fill a message, since an error has no items, and gives the caller's process some time to take all in, until
// ctx ends. The second time it does nothing.
func (s *sender) deliverFailed(ctx context.Context) {
	s.mu.Lock()
	again := s.failed
	s.ending, s.failed, s.push = true, true, true
	msg := s.due()
	s.mu.Unlock()
	if msg != nil {
		s.forward(msg)
	}
	if !again {
		_ = s.wait(ctx, lastItemsTime, func() bool { return s.under == 0 && len(s.buf) <= itemsHead })
	}
}

// last returns the end of the stream.
func (s *sender) last() (end streamEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.buf) > itemsHead {
		end.items, s.buf = s.buf[itemsHead:], nil
	}
	end.messages = s.sent
	return end
}

// A streamEnd is the answer: how many messages of items there were, and what did not fill another one.
type streamEnd struct {
	messages int64
	items    []byte
}

// take takes in the output of a stream's answer and its metadata.
func (e *streamEnd) take(b []byte, m hg.Metadata) error {
	text, ok := m.Get(messagesMeta)
	if !ok || len(text) != 8 {
		return hg.Errorf(na.ErrProtocol, "the answer is not that of a stream")
	}
	e.messages, e.items = int64(binary.LittleEndian.Uint64([]byte(text))), append(e.items[:0], b...)
	return nil
}

// meta returns what goes beside the output of a stream.
func (e *streamEnd) meta() string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(e.messages)))
}
