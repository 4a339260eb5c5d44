package hg

import (
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/internal/slab"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Inputs and outputs that are larger than one message, and for which the peer has reserved no
// memory, are lent. The message carries a key. The receiver uses the key to fetch the bytes in
// chunks of increasing size, into memory that grows as the bytes arrive, and then returns the loan.
// The loan also ends when the peer is lost or the sender cancels the call or the response.

// A byteLimit counts lent or fetched bytes. The bytes of expedited requests have a separate counter
// and limit, so that expedited and ordinary requests cannot exhaust each other's limit.
type byteLimit struct{ ordinary, expedited byteCount }

// A byteCount counts the bytes of ordinary or of expedited requests, in total and for each session.
type byteCount struct {
	mu sync.Mutex // guards the fields below
	n  int64
	of map[uint64]int64 // part of n by session; calls of this side have no entry
}

// An account identifies the session to which lent or fetched bytes are charged.
type account struct {
	session   uint64 // session of the request; 0 for a call of this side, whose bytes are charged to no session
	expedited bool
}

// countOf returns the counter for expedited bytes or, if expedited is false, for ordinary bytes.
func (b *byteLimit) countOf(expedited bool) *byteCount {
	if expedited {
		return &b.expedited
	}
	return &b.ordinary
}

// acquire charges n bytes to a. It returns an error if the total would exceed limit. It also
// returns an error if bytes are already charged to the session of a, and the session would then use
// more than three quarters of the part of limit that the other sessions leave. Expedited bodies no
// longer than the longest message are never refused, because the envelopes of their sessions limit
// them.
func (b *byteLimit) acquire(n, limit int64, a account, what, setting string) (over error) {
	c := b.countOf(a.expedited)
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.of[a.session]
	switch {
	case a.expedited && n <= na.MaxRoom:
	case c.n+n > limit:
		return na.WithText(ErrAgain, fmt.Sprintf("%d bytes %s, %d more exceed Config.%s of %d", c.n, what, n, setting, limit))
	case have > 0 && have+n > (limit-c.n+have)/4*3:
		return na.WithText(ErrAgain, fmt.Sprintf("%d bytes %s, %d of them by this session: %d more exceed its share of Config.%s of %d",
			c.n, what, have, n, setting, limit))
	}
	c.n += n
	if a.session != 0 && n > 0 {
		if c.of == nil {
			c.of = map[uint64]int64{}
		}
		c.of[a.session] = have + n
	}
	return nil
}

// release subtracts n bytes that acquire has charged to a.
func (b *byteLimit) release(n int64, a account) {
	c := b.countOf(a.expedited)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n -= n
	if left := c.of[a.session] - n; left > 0 {
		c.of[a.session] = left
	} else {
		delete(c.of, a.session)
	}
}

// total returns the number of bytes that are currently charged.
func (b *byteLimit) total() (n int64) {
	for _, c := range []*byteCount{&b.ordinary, &b.expedited} {
		c.mu.Lock()
		n += c.n
		c.mu.Unlock()
	}
	return n
}

// A loan is a body that one peer may read until the peer returns it or the loan is canceled.
type loan struct {
	c    *Context
	op   *na.Op
	size int64
	of   account
	done func(*loan, na.Result) (ran int)
}

// lendBody lends body to the peer at to and charges its length to the account passed as of. Once no
// peer can read body anymore, done is called in Trigger with no locks held.
func (c *Context) lendBody(to na.Addr, tag na.Tag, body []byte, of account, done func(*loan, na.Result) (ran int)) (*loan, na.Key, error) {
	l := &loan{c: c, size: int64(len(body)), of: of, done: done}
	if over := c.lent.acquire(l.size, c.class.cfg.MaxLent, of, "lent to peers", "MaxLent"); over != nil {
		return nil, na.Key{}, over
	}
	l.op = c.nctx.NewStep(l.onEnded)
	l.op.SetExpedited(of.expedited)
	mem, err := c.nctx.Upper().Lease(l.op, to, tag, body)
	if err != nil {
		c.lent.release(l.size, of)
		return nil, na.Key{}, err
	}
	return l, mem.Key(), nil
}

func (l *loan) onEnded(_ *na.Op, r na.Result) (ran int) {
	l.c.lent.release(l.size, l.of)
	return l.done(l, r)
}

// firstChunk is the size of the first chunk of a fetched body. It equals the size of the largest
// body that a peer may send unrequested.
const firstChunk = na.MaxBody

// A pull is a fetch of a body in progress.
type pull struct {
	c     *Context
	op    *na.Op
	from  na.Addr
	key   na.Key
	start int64 // offset of the first byte to read
	size  int64 // number of bytes to read
	of    account
	done  func(body []byte, err error) (ran int)

	mu       sync.Mutex // guards the fields below; not held while done runs
	canceled bool
	buf      []byte
	received int64
}

// cancel cancels the pull, even between two chunks.
func (p *pull) cancel() {
	p.mu.Lock()
	p.canceled = true
	p.mu.Unlock()
	p.op.Cancel()
}

// fetchBody begins to read the memory that key refers to, from offset at up to, but not including,
// offset end. The caller must have validated both offsets. fetchBody charges the bytes to the
// account passed as of. The loan is returned once the last byte of the memory has been read or
// reading fails. done is called in Trigger with no locks held, and owns body. If fetchBody returns
// an error, it has returned the loan and does not call done.
func (c *Context) fetchBody(from na.Addr, key na.Key, at, end int64, of account, done func(body []byte, err error) (ran int)) (*pull, error) {
	n := end - at
	if over := c.pulled.acquire(n, c.class.cfg.MaxPulled, of, "being fetched from peers", "MaxPulled"); over != nil {
		c.nctx.Upper().GiveBack(from, key)
		return nil, over
	}
	p := &pull{c: c, from: from, key: key, start: at, size: n, of: of, done: done}
	p.op = c.nctx.NewStep(p.onMoved)
	p.op.SetExpedited(of.expedited)
	p.mu.Lock()
	err := p.fetchNextLocked()
	p.mu.Unlock()
	if err != nil {
		c.pulled.release(n, of)
		c.nctx.Upper().GiveBack(from, key)
		return nil, err
	}
	return p, nil
}

// fetchNextLocked posts the Get for the next chunk. The chunk is three times as large as the bytes
// that have arrived, or contains all remaining bytes if they need no new memory. The caller must
// hold p.mu, so that a concurrent cancel either sets canceled before fetchNextLocked reads it, or
// cancels the operation.
func (p *pull) fetchNextLocked() error {
	if p.canceled {
		return ErrCanceled
	}
	n := p.size - p.received
	grown := slab.Spare(int(p.size))
	if grown == nil {
		n = min(max(3*p.received, firstChunk), n)
		grown = slab.Get(int(p.received + n))
	}
	copy(grown, p.buf)
	slab.Put(p.buf) // no operation is using it
	p.buf = grown
	mem, err := p.c.nctx.Class().NewMem(p.buf[p.received:])
	if err != nil {
		return err
	}
	return p.c.nctx.Get(p.op, mem, 0, p.from, p.key, p.start+p.received, n)
}

func (p *pull) onMoved(_ *na.Op, r na.Result) (ran int) {
	err := r.Err
	if err == nil {
		p.mu.Lock()
		if p.received += r.N; p.received < p.size {
			if err = p.fetchNextLocked(); err == nil {
				p.mu.Unlock()
				return 0
			}
		}
		p.mu.Unlock()
	}
	p.c.pulled.release(p.size, p.of)
	if err != nil || p.start+p.size == p.key.Len {
		p.c.nctx.Upper().GiveBack(p.from, p.key)
	}
	if err != nil {
		slab.Put(p.buf)
		p.buf = nil
	}
	return p.done(p.buf, err)
}
