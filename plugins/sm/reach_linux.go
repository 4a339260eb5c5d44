package sm

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/memfd"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// If a peer's memory is in a chunk of the peer's pool (internal/pool), this process maps the chunk
// and then reads the memory without the peer's help.
//
// If the chunk is mapped and the claim on the memory is valid, a get copies the data, a part in each
// Poll, and a view returns the mapped memory. Otherwise this process requests the chunk from the
// peer with a packet of kind kindWant, and the peer answers with one of kind kindChunk. Until the
// chunk is mapped, and after any error, the peer sends the data as usual.

const (
	// maxChunks is the maximum number of one peer's chunks that are mapped or requested.
	maxChunks = 64
	// maxWants is the maximum number of unanswered chunk requests to one peer.
	maxWants = 4 * maxChunks
	// reachPiece is the number of bytes copied between two checks of the claim, and thus before a
	// cancel takes effect. If more than reachBacklog bytes remain to be copied, the data exceeds
	// the CPU caches. In that case reachTurn bytes are copied between checks, which was measured to
	// be 20% faster.
	reachPiece = 256 << 10
	// reachTurn is the maximum number of bytes copied by one Poll.
	reachTurn    = 1 << 20
	reachBacklog = 4 << 20
)

// wantAgain is the time after which a chunk request is repeated, because the peer's answer may not
// have fit in the socket buffer. Tests shorten it.
var wantAgain = time.Second

// A poolChunk is a chunk of a peer's pool that this process has mapped or requested.
type poolChunk struct {
	mem             []byte        // nil if the chunk has been requested but not received
	asked           time.Duration // time of the request
	users           int           // number of gets and views that are using the chunk
	unmapWhenUnused bool          // whether to unmap the chunk when users becomes 0
	readable        [2]int        // range of mem for which the system is known to have allocated memory
}

// A directGet is a get operation that copies directly from a mapped chunk.
type directGet struct {
	p     *peer
	id    uint64 // ID of the operation
	chunk *poolChunk
	claim uint16
	token [16]byte
	from  []byte
	at    int // number of bytes copied so far
}

var _ carrier.Reacher = (*contextCarrier)(nil)

// findChunkLocked returns the chunk that contains the n bytes at offset off of key's memory, and
// the offset of those bytes in the chunk. If the bytes cannot be read directly, c is nil. If the
// chunk is not mapped yet, findChunkLocked requests it. The endpoint's lock must be held.
func (p *peer) findChunkLocked(key *carrier.Region, off, n int64) (c *poolChunk, at int) {
	if p == nil || !p.up || !p.sameUser || p.dead.Load() {
		return nil, 0
	}
	c = p.chunks[key.Place.Chunk]
	if c == nil || c.mem == nil {
		p.requestChunkLocked(key.Place.Chunk, c)
		return nil, 0
	}
	at, size, ok := c.readClaim(key)
	if !ok || off < 0 || n < 0 || off > int64(size) || n > int64(size)-off {
		return nil, 0
	}
	return c, at + int(off)
}

// readClaim returns the offset and length of the part of the chunk to which key gives access. ok is
// false if key is no longer valid.
func (c *poolChunk) readClaim(key *carrier.Region) (at, n int, ok bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return pool.FindClaim(c.mem, key.Place.Claim, &key.Token)
}

// claimHolds reports whether the claim with the given number and token is still valid. A claim
// becomes invalid when the owner revokes access to the memory.
func (c *poolChunk) claimHolds(claim uint16, token *[16]byte) (ok bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return pool.IsClaimValid(c.mem, claim, token)
}

// releaseUseLocked decrements the number of users of c, and unmaps c if it is no longer used and
// unmapWhenUnused is set. The endpoint's lock must be held.
func (c *poolChunk) releaseUseLocked() {
	if c.users--; c.users == 0 && c.unmapWhenUnused {
		unmap(&c.mem)
	}
}

// unmapIfUnusedLocked unmaps c as soon as no get or view uses it, which may be immediately. The
// endpoint's lock must be held.
func (c *poolChunk) unmapIfUnusedLocked() {
	c.unmapWhenUnused = true
	c.users++
	c.releaseUseLocked()
}

// requestChunkLocked requests the chunk with number id from the peer. It also unmaps the chunks
// that the peer has released. The endpoint's lock must be held.
func (p *peer) requestChunkLocked(id uint32, c *poolChunk) {
	for id, old := range p.chunks {
		if old.isReleased() {
			delete(p.chunks, id)
			old.unmapIfUnusedLocked()
		}
	}
	now := p.c.d.now()
	if c != nil && now-c.asked < wantAgain || c == nil && len(p.chunks) >= maxChunks || len(p.wants) >= maxWants {
		return
	}
	if sendPacket(p.fd, kindWant, binary.LittleEndian.AppendUint32(nil, id)) != nil {
		return
	}
	if p.chunks == nil {
		p.chunks = map[uint32]*poolChunk{}
	}
	p.chunks[id] = &poolChunk{asked: now}
	p.wants = append(p.wants, id)
}

// sendChunkLocked answers a chunk request from the peer, either with the chunk's descriptor or with
// the information that the chunk does not exist. The endpoint's lock must be held.
func (p *peer) sendChunkLocked(s *packet) error {
	if err := s.checkDescriptors(0); err != nil {
		return err
	}
	if len(s.body) != 4 || !p.sameUser {
		return codes.WithText(codes.ErrProtocol, "invalid request for shared memory from the peer")
	}
	body := append(make([]byte, 0, 12), s.body...)
	fd, size, ok := pool.Descriptor(binary.LittleEndian.Uint32(s.body))
	if !ok {
		_ = sendPacket(p.fd, kindChunk, body)
		return nil
	}
	// If this fails, the peer repeats the request.
	_ = sendPacket(p.fd, kindChunk, binary.LittleEndian.AppendUint64(body, uint64(size)), fd)
	_ = unix.Close(fd)
	return nil
}

// mapChunkLocked maps a chunk sent by the peer. If the chunk was requested several times, several
// answers may arrive. mapChunkLocked uses the first one that contains the chunk. The endpoint's
// lock must be held.
func (p *peer) mapChunkLocked(s *packet) error {
	bad := codes.WithText(codes.ErrProtocol, "invalid share of memory from the peer")
	if len(s.body) < 4 {
		return bad
	}
	id := binary.LittleEndian.Uint32(s.body)
	i := slices.Index(p.wants, id)
	if i < 0 {
		return bad
	}
	p.wants = slices.Delete(p.wants, 0, i+1) // answers arrive in the order of the requests; some may be missing if the socket buffer was full
	c := p.chunks[id]
	isWanted := c != nil && c.mem == nil
	if len(s.body) == 4 && s.n == 0 {
		if isWanted {
			delete(p.chunks, id)
		}
		return nil
	}
	if len(s.body) != 12 || s.n != 1 {
		return bad
	}
	size := binary.LittleEndian.Uint64(s.body[4:])
	if size > 1<<46 {
		return bad
	}
	if !isWanted {
		return nil
	}
	mem, err := mapSealed(s.takeDescriptor(0), int(size), memfd.OwnerWritable)
	if codes.Of(err) == codes.ErrNoMemory {
		return nil // without the chunk, the peer sends the data as usual
	}
	c.mem = mem
	return err
}

// isReleased reports whether the owner of the chunk has released it.
func (c *poolChunk) isReleased() (gone bool) {
	var err error
	defer memfault.Off(memfault.On(), &err)
	return c.mem != nil && pool.IsReleased(c.mem)
}

// Fetch implements carrier.Reacher.
func (c *contextCarrier) Fetch(l carrier.Session, id uint64, key carrier.Region, off, n int64) bool {
	p, _ := l.Conn().(*peer)
	ch, at := p.findChunkLocked(&key, off, n)
	if ch == nil {
		return false
	}
	ch.users++
	c.directGets = append(c.directGets, directGet{p: p, id: id, chunk: ch, claim: key.Place.Claim, token: key.Token, from: ch.mem[at:][:n]})
	c.pollSoonLocked()
	return true
}

// View implements carrier.Reacher.
func (c *contextCarrier) View(l carrier.Session, key carrier.Region, off, n int64) (b []byte, end func() bool) {
	p, _ := l.Conn().(*peer)
	ch, at := p.findChunkLocked(&key, off, n)
	if ch == nil {
		return nil, nil
	}
	ch.users++
	b = ch.mem[at:][:n:n]
	if to := at + int(n); at < ch.readable[0] || to > ch.readable[1] {
		c.e.Pause()
		ok := memfault.Readable(b)
		c.e.Lock()
		switch {
		case !ok: // reads by the user would fault
			ch.releaseUseLocked()
			return nil, nil
		case at <= ch.readable[1] && to >= ch.readable[0]:
			ch.readable = [2]int{min(at, ch.readable[0]), max(to, ch.readable[1])}
		default:
			ch.readable = [2]int{at, to}
		}
	}
	return b, func() bool {
		ok := ch.claimHolds(key.Place.Claim, &key.Token)
		c.e.Lock()
		ch.releaseUseLocked()
		c.e.Unlock()
		return ok
	}
}

// copyDirectGetsLocked copies up to reachTurn bytes for the direct gets, taking turns among them.
// The endpoint's lock must be held. copyDirectGetsLocked releases the lock while copying. Only the
// goroutine that polls the context may call copyDirectGetsLocked.
func (c *contextCarrier) copyDirectGetsLocked() {
	much := 0
	for i := range c.directGets {
		much += len(c.directGets[i].from) - c.directGets[i].at
	}
	piece := reachPiece
	if much >= reachBacklog {
		piece = reachTurn
	}
	for left := reachTurn; left > 0 && len(c.directGets) > 0; {
		r := c.directGets[0]
		c.directGets = append(c.directGets[:0], c.directGets[1:]...)
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
			c.directGets = append(c.directGets, r)
		} else {
			r.chunk.releaseUseLocked()
		}
	}
}

// copyUnlocked calls copy without holding the endpoint's lock. The caller must hold the lock.
// copyUnlocked releases it during the copy and reacquires it before returning.
func (r *directGet) copyUnlocked(v carrier.View, n int) bool {
	r.p.c.e.Pause()
	defer r.p.c.e.Lock()
	return r.copy(v, n)
}

// inCopy, if not nil, is called after the claim has been checked and before data is copied. It is
// set only by tests.
var inCopy func()

// copy copies the next n bytes to v and reports whether the claim remained valid until all of them
// had been read.
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
