package qs

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A sender is the handler's end of a stream. Its lock is not held around calls of other packages.
//
//	add ─► buf ─ full, or the caller has taken all that was sent ─► due ─► forward ─► itemsRPC
//	        └─ full, and no room in the window: add waits ◄─ answered, takenRPC ─┘
type sender struct {
	req *request
	ctx context.Context // of the handler
	id  ringID
	to  hg.Addr

	mu     sync.Mutex // guards the fields below
	buf    []byte     // of the next message, behind its head; nil before the first item
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
	s.req, s.ctx, s.id, s.to = r, r, id, r.r.Peer()
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
			if err := s.wait(s.ctx, -1, func() bool { return s.windowOpen() || !s.push }); err != nil {
				return err
			}
		}
	}
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
