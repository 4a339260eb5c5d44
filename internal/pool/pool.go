package pool

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	pageSize = 4 << 10
	// chunkSize is the number of bytes in a chunk available for blocks. A larger block gets a chunk
	// of its own.
	chunkSize = 64 << 20
)

// A chunk is memory that peers can map. Its file descriptor stays open until the chunk is closed.
type chunk struct {
	id  uint32
	fd  int    // -1 once closed; written with both locks held
	mem []byte // the table, followed by the pages

	// The pool's lock guards these fields.
	populated  int    // offset up to which the system has allocated memory
	freeSpans  []span // ordered by offset; never adjacent to each other
	blockCount int

	mu        sync.Mutex       // guards the fields below
	claims    [Claims + 1]bool // whether each claim number is in use
	nextClaim int              // number of the claim to try first
}

// A span is a range of a chunk's pages. Its offset and length are in bytes.
type span struct{ offset, length int }

var (
	mu     sync.Mutex // guards blocks and lastID, and the fields of chunk that say so
	blocks = map[*byte]block{}
	lastID uint32

	chunks atomic.Pointer[[]*chunk] // may be nil; the slice is never modified in place
)

// A block is an allocation.
type block struct {
	chunk *chunk // nil if the block is ordinary memory
	span
}

// Alloc returns n bytes with undefined contents; n may be 0. It allocates all pages, and returns an
// error if the system cannot provide them.
func Alloc(n int) ([]byte, error) {
	if n == 0 {
		return []byte{}, nil
	}
	if n > math.MaxInt-pageSize-tableSize {
		return nil, fmt.Errorf("%d bytes exceed the address space", n)
	}
	mu.Lock()
	defer mu.Unlock()
	need := span{length: (n + pageSize - 1) &^ (pageSize - 1)}
	for _, c := range loadChunks() {
		if b, err := c.allocLocked(need.length, n); b != nil || err != nil {
			return b, err
		}
	}
	c, err := newChunk(tableSize + max(need.length, chunkSize))
	if err != nil {
		return nil, err
	}
	if c == nil { // peers cannot map memory on this system
		b := make([]byte, n)
		blocks[&b[0]] = block{span: need}
		return b, nil
	}
	lastID++
	c.id, c.nextClaim, c.freeSpans = lastID, 1, []span{{tableSize, len(c.mem) - tableSize}}
	b, err := c.allocLocked(need.length, n)
	if err != nil {
		c.close()
		return nil, err
	}
	list := append(slices.Clone(loadChunks()), c)
	chunks.Store(&list)
	return b, nil
}

// allocLocked allocates pages bytes, a multiple of the page size, at the first place where they fit
// and returns the first n of them. It returns nil if they do not fit. The pool's lock must be held.
func (c *chunk) allocLocked(pages, n int) ([]byte, error) {
	i := slices.IndexFunc(c.freeSpans, func(s span) bool { return s.length >= pages })
	if i < 0 {
		return nil, nil
	}
	s := &c.freeSpans[i]
	at := s.offset
	if end := at + pages; end > c.populated {
		if err := c.populate(end); err != nil {
			return nil, err
		}
		c.populated = end
	}
	s.offset += pages
	s.length -= pages
	if s.length == 0 {
		c.freeSpans = slices.Delete(c.freeSpans, i, i+1)
	}
	c.blockCount++
	b := c.mem[at : at+n : at+n]
	blocks[&b[0]] = block{c, span{at, pages}}
	return b, nil
}

// Free releases a slice returned by Alloc. It panics if b was not returned by Alloc or if peers may
// still read it.
func Free(b []byte) {
	if len(b) == 0 {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	was, ok := blocks[&b[0]]
	if !ok {
		panic("bulk: Free called with memory that is not from Alloc or is already freed")
	}
	if was.chunk != nil && was.chunk.hasClaimIn(was.span) {
		panic("bulk: Free called before the memory's handle is closed")
	}
	delete(blocks, &b[0])
	if was.chunk != nil && was.chunk.freeLocked(was.span) {
		releaseUnusedLocked()
	}
}

// hasClaimIn reports whether a claim allows peers to read any part of s.
func (c *chunk) hasClaimIn(s span) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, used := range c.claims {
		if used {
			if at := int(*c.word(i, claimOffset)); at >= s.offset && at < s.offset+s.length {
				return true
			}
		}
	}
	return false
}

// freeLocked frees the block s, merging it with adjacent free spans, and reports whether it was c's
// last block. The pool's lock must be held.
func (c *chunk) freeLocked(s span) bool {
	i, _ := slices.BinarySearchFunc(c.freeSpans, s, func(a, b span) int { return a.offset - b.offset })
	c.freeSpans = slices.Insert(c.freeSpans, i, s)
	if i+1 < len(c.freeSpans) && s.offset+s.length == c.freeSpans[i+1].offset {
		c.freeSpans[i].length += c.freeSpans[i+1].length
		c.freeSpans = slices.Delete(c.freeSpans, i+1, i+2)
	}
	if i > 0 && c.freeSpans[i-1].offset+c.freeSpans[i-1].length == s.offset {
		c.freeSpans[i-1].length += c.freeSpans[i].length
		c.freeSpans = slices.Delete(c.freeSpans, i, i+1)
	}
	c.blockCount--
	return c.blockCount == 0
}

// releaseUnusedLocked closes all chunks without blocks, except for one of the usual size. The
// pool's lock must be held.
func releaseUnusedLocked() {
	kept := false
	var list []*chunk
	for _, c := range loadChunks() {
		if c.blockCount > 0 || !kept && len(c.mem) == tableSize+chunkSize {
			kept = kept || c.blockCount == 0
			list = append(list, c)
			continue
		}
		defer c.close()
	}
	chunks.Store(&list)
}

// ReleaseUnused closes all chunks without blocks. It is for tests.
func ReleaseUnused() {
	mu.Lock()
	defer mu.Unlock()
	list := slices.Clone(loadChunks())
	for _, c := range list {
		if c.blockCount == 0 {
			defer c.close()
		}
	}
	list = slices.DeleteFunc(list, func(c *chunk) bool { return c.blockCount == 0 })
	chunks.Store(&list)
}

// loadChunks returns the chunks. The caller must not modify the slice.
func loadChunks() []*chunk {
	if list := chunks.Load(); list != nil {
		return *list
	}
	return nil
}

// word returns a pointer to the word at offset at of a claim in c's table.
func (c *chunk) word(claim, at int) *uint64 { return word(c.mem, claim*claimSize+at) }

// Share adds a claim that allows peers that know token to read b until Unshare is called, and
// returns its Place. It returns the zero Place if b is not part of a block or all claims are in
// use.
func Share(b []byte, token *[16]byte) Place {
	list := chunks.Load()
	if list == nil || len(b) == 0 {
		return Place{}
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, c := range *list {
		at := first - uintptr(unsafe.Pointer(unsafe.SliceData(c.mem)))
		if at < uintptr(len(c.mem)) && len(b) <= len(c.mem)-int(at) {
			return c.addClaim(int(at), len(b), token)
		}
	}
	return Place{}
}

// addClaim adds a claim for n bytes at offset at. It returns the zero Place if all claims are in
// use.
func (c *chunk) addClaim(at, n int, token *[16]byte) Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range Claims {
		i := c.nextClaim
		if c.nextClaim++; c.nextClaim > Claims {
			c.nextClaim = 1
		}
		if !c.claims[i] {
			c.claims[i] = true
			atomic.StoreUint64(c.word(i, claimOffset), uint64(at))
			atomic.StoreUint64(c.word(i, claimLength), uint64(n))
			atomic.StoreUint64(c.word(i, claimCheck), checkOf(token))
			return Place{c.id, uint16(i)}
		}
	}
	return Place{}
}

// Unshare removes the claim p. A peer that reads the memory afterward detects that the claim has
// been removed and discards the bytes. A claim must not be removed more than once.
func Unshare(p Place) {
	c := findChunk(p.Chunk)
	if p.Claim == 0 || c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// On every processor architecture, the load orders this process's later writes to the memory
	// after the store.
	atomic.StoreUint64(c.word(int(p.Claim), claimCheck), 0)
	atomic.LoadUint64(c.word(int(p.Claim), claimCheck))
	c.claims[p.Claim] = false
}

// findChunk returns the chunk with the given ID, or nil if there is none.
func findChunk(id uint32) *chunk {
	for _, c := range loadChunks() {
		if c.id == id {
			return c
		}
	}
	return nil
}
