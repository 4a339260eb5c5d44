package na

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
)

// These serve the methods of Envelope.
func (e *endpoint) acceptEnvelope(env *Envelope) bool {
	e.mu.Lock()
	e.accept(env)
	accepted := !env.withdrawn
	e.Unlock()
	return accepted
}

func (e *endpoint) isWithdrawn(env *Envelope) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.withdrawn
}

func (e *endpoint) watchEnvelope(env *Envelope, by Holder) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	env.watched, env.holder = true, by
	return !env.withdrawn
}

func (e *endpoint) accept(env *Envelope) {
	if env.accepted {
		return
	}
	env.accepted = true
	e.stats.Envelopes--
	l := env.session
	if l.active != nil {
		l.unaccepted.remove(env)
	}
	l.freed()
}

func (e *endpoint) freeEnvelope(env *Envelope) {
	e.mu.Lock()
	e.accept(env)
	e.recycle(env)
	e.Unlock()
}

// The bounds of what an endpoint keeps of envelopes that nobody uses, beside the budget.
const (
	maxIdleEnvelopes = 1024
	maxIdleBytes     = 1 << 20
)

// recycle ends the use of a message's bytes.
func (e *endpoint) recycle(env *Envelope) {
	if l := env.session; env.id != 0 {
		if l.active != nil && !env.withdrawn {
			l.unfreed--
		}
		l.freeRoom(env)
	}
	e.dropEnvelope(env)
}

// dropEnvelope makes an envelope that no peer waits for ready for another message.
func (e *endpoint) dropEnvelope(env *Envelope) {
	if env == nil {
		return
	}
	if raceflag.Enabled { // who reads it after this shall notice
		for i := range env.Data {
			env.Data[i] = 0xDB
		}
	}
	slab.Put(env.slab)
	env.Body, env.slab = nil, nil
	env.Data, env.session, env.From, env.id, env.withdrawn, env.watched, env.holder = nil, nil, Addr{}, 0, false, false, nil
	if env.room != nil {
		env.owner = nil // which it may outlive
		longEnvelopes[roomClass(len(env.room))-1].Put(env)
		return
	}
	if len(e.freeEnvs) >= maxIdleEnvelopes {
		return
	}
	if e.idleBytes+cap(env.buf) > maxIdleBytes {
		env.buf = nil
	}
	e.idleBytes += cap(env.buf)
	e.freeEnvs = append(e.freeEnvs, env)
}

// newEnvelope returns an envelope with n bytes of Data, to be filled with a message.
func (e *endpoint) newEnvelope(n int) *Envelope {
	if n > e.dom.cfg.Eager {
		return e.longEnvelope(n)
	}
	var env *Envelope
	if n := len(e.freeEnvs); n > 0 {
		env, e.freeEnvs = e.freeEnvs[n-1], e.freeEnvs[:n-1]
		e.idleBytes -= cap(env.buf)
	} else {
		env = &Envelope{owner: e}
	}
	if cap(env.buf) < n {
		size := 256
		for size < n {
			size *= 2
		}
		env.buf = make([]byte, size)
	}
	env.Data = env.buf[:n]
	return env
}

// longEnvelopes are envelopes that nobody uses of messages longer than an envelope, by size class. Those in use are accounted for by
// who reserved the room; these belong to the garbage collector, so that a burst does not keep memory for ever.
var longEnvelopes [roomClasses]sync.Pool

func (e *endpoint) longEnvelope(n int) *Envelope {
	class := roomClass(n)
	env, ok := longEnvelopes[class-1].Get().(*Envelope)
	if !ok {
		env = &Envelope{room: make([]byte, RoomBytes(class))}
	}
	env.owner, env.Data = e, env.room[:n]
	return env
}

// keepEnvelope keeps an unexpected message in what was guaranteed to its sender.
func (l *session) keepEnvelope(env *Envelope, tag Tag) {
	env.From, env.Tag, env.session, env.accepted, env.id, env.Load = l.addr(), tag, l, false, l.received, &l.load
	l.unaccepted.add(env, int(l.guaranteed))
	if !l.watched {
		l.watchHeld()
	}
	l.e.stats.Envelopes++
}

// takeEnvelope takes the oldest message that no receive has taken; nil if there is none.
func (e *endpoint) takeEnvelope() *Envelope {
	env := e.inbox.head
	if env != nil {
		e.inbox.remove(env)
	}
	return env
}

// countArrived has countInbox say how many messages there are.
func (e *endpoint) countArrived() { e.arrived.Store(int32(e.inbox.n)) }

// An inbox is the messages that no receive has taken, the oldest first. One that is withdrawn leaves it at once: it has no credit any more,
// so nothing else would bound how many of them there are while nobody receives. The zero value is empty.
type inbox struct {
	head, tail *Envelope // by Envelope.prev and next
	n          int
}

func (q *inbox) push(env *Envelope) {
	env.inbox, env.prev, env.next = true, q.tail, nil
	if q.tail == nil {
		q.head = env
	} else {
		q.tail.next = env
	}
	q.tail = env
	q.n++
}

func (q *inbox) remove(env *Envelope) {
	if env.prev == nil {
		q.head = env.next
	} else {
		env.prev.next = env.next
	}
	if env.next == nil {
		q.tail = env.prev
	} else {
		env.next.prev = env.prev
	}
	env.inbox, env.prev, env.next = false, nil, nil
	q.n--
}
