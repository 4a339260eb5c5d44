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
	// chunkSize is how much memory a chunk has. A longer block has a chunk of its own.
	chunkSize = 64 << 20
)

// A chunk is memory that peers can map. Its descriptor is open as long as it is.
type chunk struct {
	id uint32
	fd int    // -1 once closed; written with both locks
	b  []byte // the table, and the pages behind it

	// Guarded by the lock of the pool.
	filled int    // up to here the system has given us memory for it
	free   []span // in order, with something between
	blocks int

	mu     sync.Mutex // guards the fields below
	claims [Claims + 1]bool
	next   int // claim to try first
}

// A span is pages of a chunk.
type span struct{ at, n int }

var (
	mu     sync.Mutex // guards the fields below, and most of a chunk
	blocks = map[*byte]block{}
	ids    uint32

	chunks atomic.Pointer[[]*chunk] // nil: none; never changed in place
)

// A block is memory that was allocated.
type block struct {
	c *chunk // nil: ordinary memory
	span
}

// Alloc returns n bytes, 0 or more, that are there: if the system cannot give them it is an error. Their contents are undefined.
func Alloc(n int) ([]byte, error) {
	if n == 0 {
		return []byte{}, nil
	}
	if n > math.MaxInt-pageSize-tableSize {
		return nil, fmt.Errorf("%d bytes are more than there can be", n)
	}
	mu.Lock()
	defer mu.Unlock()
	need := span{n: (n + pageSize - 1) &^ (pageSize - 1)}
	for _, c := range all() {
		if b, err := c.alloc(need.n, n); b != nil || err != nil {
			return b, err
		}
	}
	c, err := newChunk(tableSize + max(need.n, chunkSize))
	if err != nil {
		return nil, err
	}
	if c == nil { // peers cannot map memory here
		b := make([]byte, n)
		blocks[&b[0]] = block{span: need}
		return b, nil
	}
	ids++
	c.id, c.next, c.free = ids, 1, []span{{tableSize, len(c.b) - tableSize}}
	b, err := c.alloc(need.n, n)
	if err != nil {
		c.close()
		return nil, err
	}
	list := append(slices.Clone(all()), c)
	chunks.Store(&list)
	return b, nil
}

// alloc returns n bytes at the beginning of so many bytes of pages, the first that are free; nil if there are none. Locked.
func (c *chunk) alloc(pages, n int) ([]byte, error) {
	i := slices.IndexFunc(c.free, func(s span) bool { return s.n >= pages })
	if i < 0 {
		return nil, nil
	}
	s := &c.free[i]
	at := s.at
	if end := at + pages; end > c.filled {
		if err := c.fill(end); err != nil {
			return nil, err
		}
		c.filled = end
	}
	if s.at, s.n = s.at+pages, s.n-pages; s.n == 0 {
		c.free = slices.Delete(c.free, i, i+1)
	}
	c.blocks++
	b := c.b[at : at+n : at+n]
	blocks[&b[0]] = block{c, span{at, pages}}
	return b, nil
}

// Free takes back what Alloc has returned. It panics for anything else, and for memory that peers may still read.
func Free(b []byte) {
	if len(b) == 0 {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	was, ok := blocks[&b[0]]
	if !ok {
		panic("bulk: Free of memory that Alloc has not returned, or that was freed before")
	}
	if was.c != nil && was.c.shares(was.span) {
		panic("bulk: Free of memory that peers may still read: close its handle first")
	}
	delete(blocks, &b[0])
	if was.c != nil && was.c.put(was.span) {
		tidy()
	}
}

// shares reports whether peers may read of s.
func (c *chunk) shares(s span) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, used := range c.claims {
		if used {
			if at := int(*c.word(i, claimOffset)); at >= s.at && at < s.at+s.n {
				return true
			}
		}
	}
	return false
}

// put takes a block back, and reports whether it was the last. Locked.
func (c *chunk) put(s span) bool {
	i, _ := slices.BinarySearchFunc(c.free, s, func(a, b span) int { return a.at - b.at })
	c.free = slices.Insert(c.free, i, s)
	if i+1 < len(c.free) && s.at+s.n == c.free[i+1].at {
		c.free[i].n += c.free[i+1].n
		c.free = slices.Delete(c.free, i+1, i+2)
	}
	if i > 0 && c.free[i-1].at+c.free[i-1].n == s.at {
		c.free[i-1].n += c.free[i].n
		c.free = slices.Delete(c.free, i, i+1)
	}
	c.blocks--
	return c.blocks == 0
}

// tidy gives chunks back in which no block is, but for one of the common size. Locked.
func tidy() {
	kept := false
	var list []*chunk
	for _, c := range all() {
		if c.blocks > 0 || !kept && len(c.b) == tableSize+chunkSize {
			kept = kept || c.blocks == 0
			list = append(list, c)
			continue
		}
		defer c.close()
	}
	chunks.Store(&list)
}

// Drop gives back the chunk that is kept for later. Tests call it.
func Drop() {
	mu.Lock()
	defer mu.Unlock()
	list := slices.Clone(all())
	for _, c := range list {
		if c.blocks == 0 {
			defer c.close()
		}
	}
	list = slices.DeleteFunc(list, func(c *chunk) bool { return c.blocks == 0 })
	chunks.Store(&list)
}

func all() []*chunk {
	if list := chunks.Load(); list != nil {
		return *list
	}
	return nil
}

func (c *chunk) word(claim, at int) *uint64 { return word(c.b, claim*claimSize+at) }

// Share lets peers read b that know token, and says where they find it: nowhere if b is not part of a block, or too many claims are
// there. It ends with Unshare.
func Share(b []byte, token *[16]byte) Place {
	list := chunks.Load()
	if list == nil || len(b) == 0 {
		return Place{}
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, c := range *list {
		at := first - uintptr(unsafe.Pointer(unsafe.SliceData(c.b)))
		if at < uintptr(len(c.b)) && len(b) <= len(c.b)-int(at) {
			return c.share(int(at), len(b), token)
		}
	}
	return Place{}
}

func (c *chunk) share(at, n int, token *[16]byte) Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range Claims {
		i := c.next
		if c.next++; c.next > Claims {
			c.next = 1
		}
		if !c.claims[i] {
			c.claims[i] = true
			atomic.StoreUint64(c.word(i, claimOffset), uint64(at))
			atomic.StoreUint64(c.word(i, claimLength), uint64(n))
			atomic.StoreUint64(c.word(i, claimCheck), check(token))
			return Place{c.id, uint16(i)}
		}
	}
	return Place{}
}

// Unshare ends what Share began. Nobody who reads after it takes what he has read for the memory's. A claim is ended once.
func Unshare(p Place) {
	c := find(p.Chunk)
	if p.Claim == 0 || c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The load has what this process writes afterwards come after the store, on any processor.
	atomic.StoreUint64(c.word(int(p.Claim), claimCheck), 0)
	atomic.LoadUint64(c.word(int(p.Claim), claimCheck))
	c.claims[p.Claim] = false
}

func find(id uint32) *chunk {
	for _, c := range all() {
		if c.id == id {
			return c
		}
	}
	return nil
}
