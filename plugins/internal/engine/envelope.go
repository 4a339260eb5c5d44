package engine

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// AcceptEnvelope implements na.Endpoint.
func (e *Endpoint) AcceptEnvelope(env *na.Envelope) bool {
	e.mu.Lock()
	e.accept(env)
	accepted := !env.Withdrawn
	e.Unlock()
	return accepted
}

// EnvelopeWithdrawn implements na.Endpoint.
func (e *Endpoint) EnvelopeWithdrawn(env *na.Envelope) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.Withdrawn
}

// WatchEnvelope implements na.Endpoint.
func (e *Endpoint) WatchEnvelope(env *na.Envelope) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	env.Watched = true
	return !env.Withdrawn
}

func (e *Endpoint) accept(env *na.Envelope) {
	if env.Accepted {
		return
	}
	env.Accepted = true
	e.stats.Envelopes--
	l := env.Link.(*Link)
	if l.active != nil {
		l.unaccepted.remove(env)
	}
	l.freed()
}

// FreeEnvelope implements na.Endpoint.
func (e *Endpoint) FreeEnvelope(env *na.Envelope) {
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
func (e *Endpoint) recycle(env *na.Envelope) {
	if l := env.Link.(*Link); env.ID != 0 {
		if l.active != nil && !env.Withdrawn {
			l.unfreed--
		}
		l.freeRoom(env)
	}
	e.dropEnvelope(env)
}

// dropEnvelope makes an envelope that no peer waits for ready for another message.
func (e *Endpoint) dropEnvelope(env *na.Envelope) {
	if env == nil {
		return
	}
	if raceflag.Enabled { // who reads it after this shall notice
		for i := range env.Data {
			env.Data[i] = 0xDB
		}
	}
	slab.Put(env.Slab)
	env.Body, env.Slab = nil, nil
	env.Data, env.Link, env.From, env.ID, env.Withdrawn, env.Watched = nil, nil, na.Addr{}, 0, false, false
	if env.Room != nil {
		longEnvelopes[na.RoomClass(len(env.Room))-1].Put(env)
		return
	}
	if len(e.freeEnvs) >= maxIdleEnvelopes {
		return
	}
	if e.idleBytes+cap(env.Buf) > maxIdleBytes {
		env.Buf = nil
	}
	e.idleBytes += cap(env.Buf)
	e.freeEnvs = append(e.freeEnvs, env)
}

// newEnvelope returns an envelope with n bytes of Data, to be filled with a message.
func (e *Endpoint) newEnvelope(n int) *na.Envelope {
	if n > e.eng.cfg.Eager {
		return e.longEnvelope(n)
	}
	var env *na.Envelope
	if n := len(e.freeEnvs); n > 0 {
		env, e.freeEnvs = e.freeEnvs[n-1], e.freeEnvs[:n-1]
		e.idleBytes -= cap(env.Buf)
	} else {
		env = &na.Envelope{Owner: e}
	}
	if cap(env.Buf) < n {
		size := 256
		for size < n {
			size *= 2
		}
		env.Buf = make([]byte, size)
	}
	env.Data = env.Buf[:n]
	return env
}

// longEnvelopes are envelopes that nobody uses of messages longer than an envelope, by size class. Those in use are accounted for by
// who reserved the room; these belong to the garbage collector, so that a burst does not keep memory for ever.
var longEnvelopes [na.RoomClasses]sync.Pool

func (e *Endpoint) longEnvelope(n int) *na.Envelope {
	class := na.RoomClass(n)
	env, ok := longEnvelopes[class-1].Get().(*na.Envelope)
	if !ok {
		env = &na.Envelope{Room: make([]byte, na.RoomBytes(class))}
	}
	env.Owner, env.Data = e, env.Room[:n]
	return env
}

// keepEnvelope keeps an unexpected message in what was guaranteed to its sender.
func (l *Link) keepEnvelope(env *na.Envelope, tag na.Tag) {
	env.From, env.Tag, env.Link, env.Accepted, env.ID, env.Load = l.addr(), tag, l, false, l.arrived, &l.load
	l.unaccepted.add(env, int(l.offered))
	l.e.stats.Envelopes++
}

func (e *Endpoint) takeEnvelope() (env *na.Envelope) {
	for e.inbox.len() > 0 && env == nil {
		env = e.inbox.pop()
		if env.Inbox = false; env.Withdrawn {
			e.gone--
			e.recycle(env)
			env = nil
		}
	}
	return env
}

// countArrived has Arrived say how many messages there are.
func (e *Endpoint) countArrived() { e.arrived.Store(int32(e.inbox.len() - e.gone)) }

// sweepFrom is how many envelopes that were withdrawn may wait in the inbox; else no more than others do.
const sweepFrom = 64

// withdrawn notes that env, which nobody has taken, is not to be had any more. It has no credit any more, so nothing else bounds
// how many of them there are while nobody receives.
func (e *Endpoint) withdrawn(env *na.Envelope) {
	if !env.Inbox {
		return
	}
	if env.Body != nil { // it may stay for long, and this is large
		slab.Put(env.Slab)
		env.Body, env.Slab = nil, nil
		env.Link.(*Link).freeRoom(env)
	}
	e.gone++
	e.countArrived()
	if e.gone < sweepFrom || 2*e.gone < e.inbox.len() {
		return
	}
	e.gone = 0
	for range e.inbox.len() {
		if env := e.inbox.pop(); env.Withdrawn {
			env.Inbox = false
			e.recycle(env)
		} else {
			e.inbox.push(env)
		}
	}
}
