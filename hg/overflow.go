package hg

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The sender lends input and output that are larger than one message and for which the peer has no room: the message carries a
// key. The receiver fetches the bytes piece by piece, into memory that grows with what has arrived, and gives them back.
//
//	sender:   lend ─► key in the message ─► … ─► ended: given back, dropped, peer lost, or canceled
//	receiver: fetch ─► Get 4 MiB ─► Get 12 MiB ─► Get 48 MiB ─► … ─► GiveBack ─► done

// A byteLimit counts bytes that are lent, or fetched: those of expedited requests apart, so that neither takes the limit of the other.
type byteLimit struct{ ordinary, expedited atomic.Int64 }

// count is where bytes are counted.
func (b *byteLimit) count(expedited bool) *atomic.Int64 {
	if expedited {
		return &b.expedited
	}
	return &b.ordinary
}

// acquire counts n bytes and reports true, unless there are more than limit then. Expedited bodies that are no longer than a message
// may be are never refused: the envelopes of their sessions bound them.
func (b *byteLimit) acquire(n, limit int64, expedited bool) bool {
	count := b.count(expedited)
	if count.Add(n) <= limit || expedited && n <= na.MaxRoom {
		return true
	}
	count.Add(-n)
	return false
}

// release ends what acquire has counted.
func (b *byteLimit) release(n int64, expedited bool) { b.count(expedited).Add(-n) }

// total is all that is counted.
func (b *byteLimit) total() int64 { return b.ordinary.Load() + b.expedited.Load() }

// A loan is memory that one peer may read.
type loan struct {
	c         *Context
	op        *na.Op
	size      int64
	expedited bool
	done      func(*loan, na.Result) (ran int)
}

// lend lets to read body, of an expedited request or not. done runs when nobody can read it any more, in Trigger, with no lock held.
func (c *Context) lend(to na.Addr, tag na.Tag, body []byte, expedited bool, done func(*loan, na.Result) (ran int)) (*loan, na.Key, error) {
	l := &loan{c: c, size: int64(len(body)), expedited: expedited, done: done}
	if limit := c.class.cfg.MaxLent; !c.lent.acquire(l.size, limit, expedited) {
		return nil, na.Key{}, na.WithText(ErrAgain, fmt.Sprintf("%d bytes are lent to peers, %d more exceed Config.MaxLent of %d",
			c.lent.count(expedited).Load(), l.size, limit))
	}
	l.op = c.nctx.NewStep(l.ended)
	l.op.SetExpedited(expedited)
	mem, err := c.nctx.Lease(l.op, to, tag, body)
	if err != nil {
		c.lent.release(l.size, expedited)
		return nil, na.Key{}, err
	}
	return l, mem.Key(), nil
}

func (l *loan) ended(_ *na.Op, r na.Result) (ran int) {
	l.c.lent.release(l.size, l.expedited)
	return l.done(l, r)
}

// firstPiece is how much of a body is fetched before a byte of it has been seen: it may be as much as a peer may send unasked.
const firstPiece = na.MaxBody

// A pull is the fetching of a body.
type pull struct {
	c    *Context
	op   *na.Op
	from na.Addr
	key  na.Key
	at   int64 // where to begin,
	n    int64 // and how much to read

	expedited bool

	done func(body []byte, err error) (ran int)

	mu       sync.Mutex // guards the fields below; not held while done runs
	canceled bool
	buf      []byte
	got      int64
}

// cancel ends the pull, between two pieces too.
func (p *pull) cancel() {
	p.mu.Lock()
	p.canceled = true
	p.mu.Unlock()
	p.op.Cancel()
}

// fetch reads the memory of key from at to end, which the caller has checked, and gives it back if that is all that is left, or reading
// fails. done runs in Trigger, with no lock held, and owns body. If fetch returns an error, done does not run.
func (c *Context) fetch(from na.Addr, key na.Key, at, end int64, expedited bool, done func(body []byte, err error) (ran int)) (*pull, error) {
	n := end - at
	if limit := c.class.cfg.MaxPulled; !c.pulled.acquire(n, limit, expedited) {
		c.nctx.GiveBack(from, key)
		return nil, na.WithText(ErrAgain, fmt.Sprintf("%d bytes are being fetched from peers, %d more exceed Config.MaxPulled of %d",
			c.pulled.count(expedited).Load(), n, limit))
	}
	p := &pull{c: c, from: from, key: key, at: at, n: n, expedited: expedited, done: done}
	p.op = c.nctx.NewStep(p.moved)
	p.op.SetExpedited(expedited)
	p.mu.Lock()
	err := p.next()
	p.mu.Unlock()
	if err != nil {
		c.pulled.release(n, expedited)
		c.nctx.GiveBack(from, key)
		return nil, err
	}
	return p, nil
}

// next asks for three times what has arrived, or for all where that needs no new memory. Locked: a cancel finds either the flag unread
// or the operation under way.
func (p *pull) next() error {
	if p.canceled {
		return ErrCanceled
	}
	n := p.n - p.got
	grown := slab.Spare(int(p.n))
	if grown == nil {
		n = min(max(3*p.got, firstPiece), n)
		grown = slab.Get(int(p.got + n))
	}
	copy(grown, p.buf)
	slab.Put(p.buf) // no operation has it
	p.buf = grown
	mem, err := p.c.nctx.Class().NewMem(p.buf[p.got:])
	if err != nil {
		return err
	}
	return p.c.nctx.Get(p.op, mem, 0, p.from, p.key, p.at+p.got, n)
}

func (p *pull) moved(_ *na.Op, r na.Result) (ran int) {
	err := r.Err
	if err == nil {
		p.mu.Lock()
		if p.got += r.N; p.got < p.n {
			if err = p.next(); err == nil {
				p.mu.Unlock()
				return 0
			}
		}
		p.mu.Unlock()
	}
	p.c.pulled.release(p.n, p.expedited)
	if err != nil || p.at+p.n == p.key.Len {
		p.c.nctx.GiveBack(p.from, p.key)
	}
	if err != nil {
		slab.Put(p.buf)
		p.buf = nil
	}
	return p.done(p.buf, err)
}
