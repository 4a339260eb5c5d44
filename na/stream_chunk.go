package na

import (
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// streamChunk is the number of bytes of a message stream that one chunk covers, and bulkChunk is
// the corresponding number for bulk streams. Chunk n covers the bytes starting at offset n times
// that number. A DATA frame does not cross a chunk boundary, so bulkChunk is also the maximum
// payload of a DATA frame. A smaller value would require more frames and system calls.
const (
	streamChunk = 64 << 10
	bulkChunk   = 256 << 10
)

// A chunk is memory for a span of bytes of a stream. It may be smaller than its span, so that a
// short stream uses little memory.
type chunk struct {
	buf  []byte
	base int  // offset of buf within the span
	refs int  // number of references: one for the stream and one for each view that a carrier uses
	lost bool // the program may still be using buf, so it is left to the garbage collector

	shelf   carrier.Shelf // shelf that contains buf, or nil if buf is process memory
	at      int64         // offset of buf in shelf
	shelved *int64        // number of bytes in shelf used by the session's streams
}

// chunkSizes lists the possible lengths of chunks.
var chunkSizes = [...]int{1 << 10, 4 << 10, 16 << 10, streamChunk, bulkChunk}

// idleChunks holds unused chunks by length. Its elements are sync.Pools so that the memory used by
// a burst is released.
var idleChunks [len(chunkSizes)]sync.Pool

// newChunk returns a chunk with one reference. Its buffer has the smallest size in chunkSizes that
// holds n bytes and begins at offset base of the span.
func newChunk(base, n int) *chunk {
	for i, size := range chunkSizes {
		if n > size {
			continue
		}
		c, ok := idleChunks[i].Get().(*chunk)
		if !ok {
			c = &chunk{buf: make([]byte, size)}
		}
		c.base, c.refs = base, 1
		return c
	}
	panic("na: chunk larger than bulkChunk")
}

// shelveChunk is like newChunk, but the buffer is in q.shelf, where the peer can read it. It
// returns nil if the shelf is full.
func (q *chunks) shelveChunk(base, n int) *chunk {
	for _, size := range chunkSizes {
		if n > size {
			continue
		}
		if b, at := q.shelf.Reserve(size); b != nil {
			*q.shelved += int64(size)
			return &chunk{buf: b, base: base, refs: 1, shelf: q.shelf, at: at, shelved: q.shelved}
		}
		break
	}
	return nil
}

// drop releases one reference to c, which may be nil. If c may be in a shelf, endpoint.mu must be
// held.
func (c *chunk) drop() {
	if c == nil {
		return
	}
	if c.refs--; c.refs > 0 || c.lost {
		return
	}
	if c.shelf != nil {
		*c.shelved -= int64(len(c.buf))
		c.shelf.Drop(c.at, len(c.buf))
		return
	}
	for i, size := range chunkSizes {
		if len(c.buf) == size {
			idleChunks[i].Put(c)
		}
	}
}

// A chunks holds the chunks with the unsent or unread bytes of a stream, in order. Elements for
// spans without bytes are nil.
type chunks struct {
	list  fifo[*chunk]
	first int64 // number of the first chunk in list
	bulk  bool  // the stream carries bulk data
	lent  bool  // the program may be reading a chunk, so dropped chunks must not be reused
	// shelf, if not nil, is where grow first looks for memory for at least minPiece bytes. shelved
	// counts the bytes that it uses there.
	shelf   carrier.Shelf
	shelved *int64
	// filled lists the ranges that carriers are writing without holding a lock, at most one per lane.
	filled []byteRange
}

// span returns the number of bytes that one chunk covers.
func (q *chunks) span() int64 {
	if q.bulk {
		return bulkChunk
	}
	return streamChunk
}

// at returns the chunk that covers offset off, and its memory starting at off. It returns nil if
// there is no such chunk.
func (q *chunks) at(off int64) (c *chunk, b []byte) {
	i := off/q.span() - q.first
	if i < 0 || i >= int64(q.list.len()) {
		return nil, nil
	}
	if c = q.list.all()[i]; c == nil {
		return nil, nil
	}
	if at := int(off%q.span()) - c.base; at >= 0 && at < len(c.buf) {
		b = c.buf[at:]
	}
	return c, b
}

// grow returns the chunk and the memory for the n bytes at off, which must not cross a chunk
// boundary. If the chunk's buffer is too small, grow replaces the chunk and copies its bytes,
// except for those that carriers are writing. placed copies the latter.
func (q *chunks) grow(off int64, n int) (c *chunk, b []byte) {
	if c, b = q.at(off); len(b) >= n {
		return c, b[:n:n]
	}
	i := int(off/q.span() - q.first)
	for q.list.len() <= i {
		q.list.push(nil)
	}
	from, to := int(off%q.span()), int(off%q.span())+n
	if c != nil {
		from, to = min(from, c.base), max(to, c.base+len(c.buf))
		to = min(to, int(q.span()))
	}
	var grown *chunk
	if q.shelf != nil && to-from >= minPiece {
		if c != nil {
			c.refs++ // the shelf may free c while it looks for space
		}
		if grown = q.shelveChunk(from, to-from); c != nil {
			c.refs--
		}
	}
	if grown == nil {
		grown = newChunk(from, to-from)
	}
	if c != nil {
		q.copy(grown, c, off-off%q.span())
		q.drop(c)
	}
	q.list.all()[i] = grown
	at := int(off%q.span()) - from
	return grown, grown.buf[at : at+n : at+n]
}

// copy copies the bytes of from to to, a larger chunk of the same span, except for the ranges in
// q.filled. start is the stream offset at which the span begins. The buffer of from may be longer
// than the rest of the span, in which case the excess is not copied. A range in q.filled may begin
// in from and end after it, if a carrier is writing the range to a chunk that has been replaced.
func (q *chunks) copy(to, from *chunk, start int64) {
	at, end := start+int64(from.base), start+min(int64(from.base+len(from.buf)), q.span())
	part := func(until int64) {
		copy(to.buf[at-start-int64(to.base):], from.buf[at-start-int64(from.base):until-start-int64(from.base)])
	}
	for at < end {
		next := byteRange{end, end} // first range that is being written
		for _, f := range q.filled {
			if f.from >= at && f.from < next.from {
				next = f
			}
		}
		part(next.from)
		at = next.to
	}
}

// place returns the chunk, and the index in its buffer, to which a carrier must write the n bytes
// at off. The caller must call placed when the carrier has written them.
func (q *chunks) place(off, n int64) (c *chunk, at int) {
	if n >= minPiece { // use large blocks, because more bytes usually follow and growing a chunk copies it
		c, _ = q.grow(blockOf(off, n))
	} else {
		c, _ = q.grow(off, int(n))
	}
	c.refs++
	q.filled = append(q.filled, byteRange{off, off + n})
	return c, int(off%q.span()) - c.base
}

// blockOf returns the offset and the size of the smallest block that contains the n bytes at off
// and has at least minPiece bytes. The size is one of chunkSizes, and the offset is a multiple of
// the size.
func blockOf(off, n int64) (start int64, size int) {
	for _, size = range chunkSizes {
		start = off - off%int64(size)
		if int64(size) >= minPiece && off+n <= start+int64(size) {
			break
		}
	}
	return start, size
}

// placed records that a carrier has written n bytes at off into c. It copies them if the chunk has
// been replaced in the meantime.
func (q *chunks) placed(c *chunk, off, n int64) {
	i := slices.Index(q.filled, byteRange{off, off + n})
	q.filled = slices.Delete(q.filled, i, i+1)
	if now, _ := q.at(off); now != c {
		_, to := q.grow(off, int(n))
		copy(to, c.buf[int(off%q.span())-c.base:])
	}
}

// dropBefore drops the chunks that lie entirely before off.
func (q *chunks) dropBefore(off int64) {
	for q.first < off/q.span() {
		if q.list.len() > 0 {
			q.list.pop().drop()
		}
		q.first++
	}
}

// dropAt drops the chunk that covers offset off, unless a carrier is using it. None of the chunk's
// bytes may be needed anymore.
func (q *chunks) dropAt(off int64) {
	if c, _ := q.at(off); c != nil && c.refs == 1 {
		q.list.all()[off/q.span()-q.first] = nil
		c.drop()
	}
}

// dropAll drops all chunks.
func (q *chunks) dropAll() {
	for _, c := range q.list.all() {
		q.drop(c)
	}
	q.list, q.filled = fifo[*chunk]{}, nil
}

// drop releases the stream's reference to c, which may be nil. If q.lent is set, the memory of c is
// not reused.
func (q *chunks) drop(c *chunk) {
	if c != nil {
		c.lost = c.lost || q.lent
		c.drop()
	}
}
