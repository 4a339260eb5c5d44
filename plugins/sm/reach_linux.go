package sm

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// Memory of a peer that is in a chunk of its pool (internal/pool) is read by this side alone, once the chunk is mapped.
//
//	get, view ─ the chunk is mapped, and the claim holds ─► copied, some in each Poll, or shown
//	          └ else: WANT ─► the peer; CHUNK ◄─ mapped. Meanwhile, and for whatever is not as it should be, the peer is asked as always

const (
	// maxChunks bounds the chunks of one peer that are mapped or asked for.
	maxChunks = 64
	// wantAgain is when a chunk is asked for again that did not come: the peer's answer may have found no room.
	wantAgain = time.Second
	// reachPiece is what is copied between two looks at the claim, and before a cancel counts. Where so much waits that the caches do
	// not hold it, that is reachTurn: copy is faster then from that length on, by a fifth. reachTurn is what is copied in one Poll.
	reachPiece = 256 << 10
	reachTurn  = 1 << 20
	reachMuch  = 4 << 20
)

// A poolChunk is one of a peer's pool.
type poolChunk struct {
	mem   []byte        // nil: it is asked for,
	asked time.Duration // at that time
	users int           // gets, and views
	gone  bool          // the last of them unmaps it
	seen  [2]int        // from where to where the system has memory for it
}

// A directGet is a get that copies from a chunk.
type directGet struct {
	p     *peer
	id    uint64
	chunk *poolChunk
	claim uint16
	token [16]byte
	from  []byte
	at    int
}

var _ carrier.Reacher = (*contextCarrier)(nil)

// findChunk returns where the n bytes at off of a key are; c is nil if they cannot be read here, or not yet. Locked.
func (p *peer) findChunk(key *carrier.Region, off, n int64) (c *poolChunk, at int) {
	if p == nil || !p.up || !p.near || p.dead.Load() {
		return nil, 0
	}
	c = p.chunks[key.Place.Chunk]
	if c == nil || c.mem == nil {
		p.requestChunk(key.Place.Chunk, c)
		return nil, 0
	}
	at, size, ok := c.readClaim(key)
	if !ok || off < 0 || n < 0 || off > int64(size) || n > int64(size)-off {
		return nil, 0
	}
	return c, at + int(off)
}

func (c *poolChunk) readClaim(key *carrier.Region) (at, n int, ok bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return pool.FindClaim(c.mem, key.Place.Claim, &key.Token)
}

// claimHolds reports whether a claim holds.
func (c *poolChunk) claimHolds(claim uint16, token *[16]byte) (ok bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return pool.IsClaimValid(c.mem, claim, token)
}

// releaseUse ends a use of c. Locked.
func (c *poolChunk) releaseUse() {
	if c.users--; c.users == 0 && c.gone {
		unmap(&c.mem)
	}
}

// unmapIfUnused unmaps c, when nobody uses it. Locked.
func (c *poolChunk) unmapIfUnused() {
	c.gone = true
	c.users++
	c.releaseUse()
}

// requestChunk asks the peer for a chunk. Those that the peer does not have any more are unmapped.
func (p *peer) requestChunk(id uint32, c *poolChunk) {
	for id, old := range p.chunks {
		if old.isGone() {
			delete(p.chunks, id)
			old.unmapIfUnused()
		}
	}
	now := p.c.d.now()
	if c != nil && now-c.asked < wantAgain || c == nil && len(p.chunks) >= maxChunks {
		return
	}
	if sendPacket(p.fd, kindWant, binary.LittleEndian.AppendUint32(nil, id)) != nil {
		return
	}
	if p.chunks == nil {
		p.chunks = map[uint32]*poolChunk{}
	}
	p.chunks[id] = &poolChunk{asked: now}
}

// sendChunk gives the peer a chunk, or says that there is none. Locked.
func (p *peer) sendChunk(s *packet) error {
	if err := s.checkDescriptors(0); err != nil {
		return err
	}
	if len(s.body) != 4 || !p.near {
		return codes.WithText(codes.ErrProtocol, "the peer asks for memory in a way that is not allowed")
	}
	body := append(make([]byte, 0, 12), s.body...)
	fd, size, ok := pool.Descriptor(binary.LittleEndian.Uint32(s.body))
	if !ok {
		_ = sendPacket(p.fd, kindChunk, body)
		return nil
	}
	_ = sendPacket(p.fd, kindChunk, binary.LittleEndian.AppendUint64(body, uint64(size)), fd) // without room for it the peer asks again
	_ = unix.Close(fd)
	return nil
}

// mapChunk maps a chunk of the peer. Locked.
func (p *peer) mapChunk(s *packet) error {
	bad := codes.WithText(codes.ErrProtocol, "the peer shares memory in a way that is not allowed")
	if len(s.body) < 4 {
		return bad
	}
	id := binary.LittleEndian.Uint32(s.body)
	c := p.chunks[id]
	switch {
	case c == nil || c.mem != nil:
		return bad
	case len(s.body) == 4 && s.n == 0:
		delete(p.chunks, id)
		return nil
	case len(s.body) != 12 || s.n != 1:
		return bad
	}
	size := binary.LittleEndian.Uint64(s.body[4:])
	if size > 1<<46 {
		return bad
	}
	mem, err := mapSealed(s.takeDescriptor(0), int(size), memfd.OwnerWritable)
	if codes.Of(err) == codes.ErrNoMemory {
		return nil // the peer is asked for everything, as before
	}
	c.mem = mem
	return err
}

func (c *poolChunk) isGone() (gone bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return c.mem != nil && pool.IsReleased(c.mem)
}

// Fetch implements carrier.Reacher.
func (c *contextCarrier) Fetch(l carrier.Session, id uint64, key carrier.Region, off, n int64) bool {
	p, _ := l.Conn().(*peer)
	ch, at := p.findChunk(&key, off, n)
	if ch == nil {
		return false
	}
	ch.users++
	c.reaches = append(c.reaches, directGet{p: p, id: id, chunk: ch, claim: key.Place.Claim, token: key.Token, from: ch.mem[at:][:n]})
	c.pollSoon()
	return true
}

// View implements carrier.Reacher.
func (c *contextCarrier) View(l carrier.Session, key carrier.Region, off, n int64) (b []byte, end func() bool) {
	p, _ := l.Conn().(*peer)
	ch, at := p.findChunk(&key, off, n)
	if ch == nil {
		return nil, nil
	}
	ch.users++
	b = ch.mem[at:][:n:n]
	if to := at + int(n); at < ch.seen[0] || to > ch.seen[1] {
		c.e.Pause()
		ok := memfault.Readable(b)
		c.e.Lock()
		switch {
		case !ok: // a reader would find that later
			ch.releaseUse()
			return nil, nil
		case at <= ch.seen[1] && to >= ch.seen[0]:
			ch.seen = [2]int{min(at, ch.seen[0]), max(to, ch.seen[1])}
		default:
			ch.seen = [2]int{at, to}
		}
	}
	return b, func() bool {
		ok := ch.claimHolds(key.Place.Claim, &key.Token)
		c.e.Lock()
		ch.releaseUse()
		c.e.Unlock()
		return ok
	}
}

// reachOn copies some of what gets have asked for, in turn. Locked, though not while it copies; by the leader.
func (c *contextCarrier) reachOn() {
	much := 0
	for i := range c.reaches {
		much += len(c.reaches[i].from) - c.reaches[i].at
	}
	piece := reachPiece
	if much >= reachMuch {
		piece = reachTurn
	}
	for left := reachTurn; left > 0 && len(c.reaches) > 0; {
		r := c.reaches[0]
		c.reaches = append(c.reaches[:0], c.reaches[1:]...)
		n := min(len(r.from)-r.at, piece)
		v := r.p.link.PlaceOwn(r.id, int64(r.at), int64(n))
		ok := v != nil
		if ok {
			ok = r.copyUnlocked(v, n)
			r.p.link.PlacedOwn(v, ok)
			left -= n
			r.at += n
		}
		if ok && r.at < len(r.from) {
			c.reaches = append(c.reaches, r)
		} else {
			r.chunk.releaseUse()
		}
	}
}

// copyUnlocked is copy without the lock. Locked at its beginning and its end.
func (r *directGet) copyUnlocked(v carrier.View, n int) bool {
	r.p.c.e.Pause()
	defer r.p.c.e.Lock()
	return r.copy(v, n)
}

// inCopy, if not nil, is called before bytes are copied whose claim holds. Only tests set it.
var inCopy func()

// copy copies n bytes, and reports whether all of them were read while the claim held.
func (r *directGet) copy(v carrier.View, n int) bool {
	if !r.chunk.claimHolds(r.claim, &r.token) {
		return false
	}
	if inCopy != nil {
		inCopy()
	}
	v.CopyIn(0, r.from[r.at:][:n])
	return r.chunk.claimHolds(r.claim, &r.token)
}
