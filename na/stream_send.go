package na

// A sender is what was written to a stream and has not left, and how much may leave. It knows
// offsets and numbers only, no session.
//
//	0 ─ sent ──────────── written                 limit                 used ≤ granted: bytes charged to the reserve
//	      │ waits to leave │ Write goes on         │ the receiver's
type sender struct {
	chunks  chunks
	lent    *chunk // the program has memory of it, by Reserve; else nil
	sent    int64
	written int64
	limit   int64 // as the receiver has said
	granted uint64
	used    uint64
	ending  bool // written is the end
	ended   bool // and the receiver has been told
	cause   bool // it ends with an error, of which the receiver is told before the end
}

// unsentBytes is how many bytes wait to leave.
func (s *sender) unsentBytes() int64 { return s.written - s.sent }

// reserve returns memory for up to n bytes, which commit has leave: as many as go into a chunk.
func (s *sender) reserve(n int) []byte {
	n = min(n, int(s.chunks.span()-s.written%s.chunks.span()))
	_, b := s.chunks.grow(s.written, n)
	return b
}

// lend has the chunk behind what was written stay until takeBack: the program writes there.
func (s *sender) lend() {
	s.lent, _ = s.chunks.at(s.written)
	s.lent.refs++
	if s.lent.shelf != nil {
		s.lent.shelf.Fill()
	}
}

// takeBack ends lend, if there was one.
func (s *sender) takeBack() {
	c := s.lent
	if c == nil {
		return
	}
	s.lent = nil
	c.drop()
	s.releaseIdleChunk()
	if c.shelf != nil {
		c.shelf.Filled()
	}
}

// allowance returns how many of the bytes that wait may leave, when the session has room for so
// many, and whether they are charged to that. The reserve is left for when there is none.
func (s *sender) allowance(room int64) (n int64, toRoom bool) {
	n = max(min(s.unsentBytes(), s.limit-s.sent), 0)
	if room > 0 {
		return min(n, room), true
	}
	return min(n, int64(s.granted-s.used)), false
}

// isEnding reports whether only the end is left to be told. One that the receiver has not opened
// would miss it.
func (s *sender) isEnding() bool { return s.ending && !s.ended && s.unsentBytes() == 0 && s.limit > 0 }

// piece returns up to n of the bytes that wait, as many as lie in one chunk.
func (s *sender) piece(n int64) (c *chunk, b []byte) {
	c, b = s.chunks.at(s.sent)
	return c, b[:min(n, s.chunks.span()-s.sent%s.chunks.span())]
}

// noteLeft notes that n bytes have left, charged to the room or to the reserve.
func (s *sender) noteLeft(n int64, toRoom bool) {
	if !toRoom {
		s.used += uint64(n)
	}
	s.sent += n
	s.chunks.dropBefore(s.sent)
	s.releaseIdleChunk()
}

// releaseIdleChunk lets go of the chunk where the next bytes go while nobody uses it: an idle
// stream has no memory.
func (s *sender) releaseIdleChunk() {
	if s.sent == s.written {
		s.chunks.dropAt(s.sent)
	}
}
