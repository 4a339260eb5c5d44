package na

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
)

// acceptEnvelope implements Envelope.Accept.
func (e *endpoint) acceptEnvelope(env *Envelope) bool {
	e.mu.Lock()
	e.acceptMessage(env)
	accepted := !env.withdrawn
	e.Unlock()
	return accepted
}

// isWithdrawn implements Envelope.IsWithdrawn.
func (e *endpoint) isWithdrawn(env *Envelope) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.withdrawn
}

// watchEnvelope implements Envelope.Watch.
func (e *endpoint) watchEnvelope(env *Envelope, by heldby.Holder) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	env.watched, env.holder = true, by
	return !env.withdrawn
}

// acceptMessage accepts the message of env, unless it has already been accepted.
func (e *endpoint) acceptMessage(env *Envelope) {
	if env.accepted {
		return
	}
	env.accepted = true
	e.stats.Envelopes--
	env.session.returnEnvelope()
}

// freeEnvelope implements Envelope.Free.
func (e *endpoint) freeEnvelope(env *Envelope) {
	e.mu.Lock()
	e.acceptMessage(env)
	e.recycleMessage(env)
	e.Unlock()
}

// recycleMessage removes a message from its session and frees its memory.
func (e *endpoint) recycleMessage(env *Envelope) {
	if l := env.session; env.id != 0 {
		if l.activeState != nil && !env.withdrawn {
			l.unfreed--
			l.requests.remove(env)
		}
		l.freeRoom(env)
	}
	e.dropEnvelope(env)
}

// discardMessage frees a message that no receive has taken.
func (e *endpoint) discardMessage(env *Envelope) {
	e.recycleMessage(env)
	if env.made {
		e.nctx.putRecord(env)
	}
}

// dropEnvelope frees the memory of env, which may be nil, and prepares env for reuse.
func (e *endpoint) dropEnvelope(env *Envelope) {
	if env == nil {
		return
	}
	if raceflag.Enabled { // make use after Free visible
		for i := range env.Data {
			env.Data[i] = 0xDB
		}
	}
	slab.Put(env.slab)
	e.dropBuffer(env.buf)
	env.Data, env.Body, env.buf, env.slab = nil, nil, nil, nil
	env.session, env.From, env.id, env.withdrawn, env.watched, env.holder = nil, Addr{}, 0, false, false, nil
	if !env.made && len(e.freeEnvs) < maxIdle {
		e.freeEnvs = append(e.freeEnvs, env)
	}
}

// newEnvelope returns an envelope with n bytes of Data for the caller to fill in.
func (e *endpoint) newEnvelope(n int) *Envelope {
	var env *Envelope
	if last := len(e.freeEnvs) - 1; last >= 0 {
		env, e.freeEnvs = e.freeEnvs[last], e.freeEnvs[:last]
	} else {
		env = &Envelope{}
	}
	env.owner, env.buf = e, e.newBuffer(n)
	env.Data = env.buf.b[:n]
	return env
}

// newMessage returns an envelope for an unexpected message of n bytes. If the layer above uses
// upper.Records, that layer provides the envelope.
func (e *endpoint) newMessage(n int) *Envelope {
	if e.nctx.getRecord == nil {
		return e.newEnvelope(n)
	}
	env := e.nctx.getRecord()
	env.owner, env.made, env.buf = e, true, e.newBuffer(n)
	env.Data = env.buf.b[:n]
	return env
}

// adoptMessage moves the unexpected message of env into an envelope provided by the layer above,
// and returns that envelope. If the layer above does not use upper.Records, it returns env.
func (e *endpoint) adoptMessage(env *Envelope) *Envelope {
	if e.nctx.getRecord == nil {
		return env
	}
	m := e.nctx.getRecord()
	m.owner, m.made, m.buf, m.Data = e, true, env.buf, env.Data
	env.buf, env.Data = nil, nil
	e.dropEnvelope(env)
	return m
}

// A messageBuffer holds the bytes of a message.
type messageBuffer struct {
	b     []byte
	class int // size class of a buffer longer than Config.Eager; otherwise 0
}

// Limits of an endpoint's free lists of envelopes and buffers, which are not charged to the budget.
const (
	maxIdle      = 1024
	maxIdleBytes = 1 << 20
)

// newBuffer returns a buffer for a message of n bytes.
func (e *endpoint) newBuffer(n int) *messageBuffer {
	if n > e.dom.cfg.Eager {
		return longBuffer(n)
	}
	var b *messageBuffer
	if last := len(e.buffers) - 1; last >= 0 {
		b, e.buffers = e.buffers[last], e.buffers[:last]
		e.idleBytes -= cap(b.b)
	} else {
		b = &messageBuffer{}
	}
	if cap(b.b) < n {
		size := 256
		for size < n {
			size *= 2
		}
		b.b = make([]byte, size)
	}
	return b
}

// dropBuffer releases b for reuse. b may be nil.
func (e *endpoint) dropBuffer(b *messageBuffer) {
	switch {
	case b == nil:
	case b.class > 0:
		longBuffers[b.class-1].Put(b)
	case len(e.buffers) < maxIdle && e.idleBytes+cap(b.b) <= maxIdleBytes:
		e.idleBytes += cap(b.b)
		e.buffers = append(e.buffers, b)
	}
}

// longBuffers holds the unused buffers for messages longer than an envelope, by size class. Buffers
// in use are charged against room. Unused buffers can be garbage collected, so that a burst does
// not retain their memory.
var longBuffers [roomClasses]sync.Pool

// longBuffer returns a buffer of the size class for n bytes.
func longBuffer(n int) *messageBuffer {
	class := roomClass(n)
	b, ok := longBuffers[class-1].Get().(*messageBuffer)
	if !ok {
		b = &messageBuffer{make([]byte, RoomBytes(class)), class}
	}
	return b
}

// keepEnvelope fills in env, which holds a received unexpected message, and adds it to the table
// of the session's messages.
func (l *session) keepEnvelope(env *Envelope, tag Tag) {
	env.From, env.Tag, env.session, env.accepted, env.id, env.Load = l.addr(), tag, l, false, l.received, &l.load
	l.requests.add(env, int(l.guaranteed))
	if !l.watched {
		l.watchHeld()
	}
	l.e.stats.Envelopes++
}

// takeEnvelope removes and returns the oldest message that no receive has taken, or returns nil if
// there is none.
func (e *endpoint) takeEnvelope() *Envelope {
	env := e.inbox.head
	if env != nil {
		e.inbox.remove(env)
	}
	return env
}

// countArrived stores the number of messages in the inbox where countInbox can read it without the
// lock.
func (e *endpoint) countArrived() { e.arrived.Store(int32(e.inbox.n)) }

// An inbox is the list of messages that no receive has taken, oldest first. A withdrawn message
// must be removed immediately: its envelope already belongs to the sender again, so the credit
// would not limit the number of withdrawn messages. The zero value is an empty inbox.
type inbox struct {
	head, tail *Envelope // linked by Envelope.prev and next
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
