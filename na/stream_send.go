package na

// A sender is the state of the sending side of a stream: the unsent bytes and the flow control
// window. It consists only of chunks, offsets, and counts, and does not refer to a session.
//
//	0 ─ sent ──────────── written                 limit                 used ≤ granted: bytes charged to the reserve
//	      │ waits          │ Write goes on         │ of the last WINDOW
type sender struct {
	chunks  chunks
	lent    *chunk // chunk that the program fills between Reserve and Commit, or nil
	sent    int64
	written int64
	limit   int64 // limit of the last WINDOW
	granted uint64
	used    uint64
	ending  bool // written is the end of the stream
	ended   bool // FlagEnd has been sent
	cause   bool // the stream ends with an error, whose RESET must be sent before the end
}

// unsentBytes returns the number of bytes waiting to be sent.
func (s *sender) unsentBytes() int64 { return s.written - s.sent }

// reserve returns memory for up to n bytes, as many as fit in the current chunk.
func (s *sender) reserve(n int) []byte {
	n = min(n, int(s.chunks.span()-s.written%s.chunks.span()))
	_, b := s.chunks.grow(s.written, n)
	return b
}

// lend holds a reference to the chunk after the written bytes, for the program to fill, until
// takeBack.
func (s *sender) lend() {
	s.lent, _ = s.chunks.at(s.written)
	s.lent.refs++
	if s.lent.shelf != nil {
		s.lent.shelf.Fill()
	}
}

// takeBack releases the reference held by lend, if any.
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

// allowance returns the number of bytes that may be sent given the session's room, and whether they
// are charged to the room. The reserve is used only if there is no room.
func (s *sender) allowance(room int64) (n int64, toRoom bool) {
	n = max(min(s.unsentBytes(), s.limit-s.sent), 0)
	if room > 0 {
		return min(n, room), true
	}
	return min(n, int64(s.granted-s.used)), false
}

// isEnding reports whether only the end of the stream remains to be sent. The end is not sent
// before the first WINDOW, because the receiver would not know the stream.
func (s *sender) isEnding() bool { return s.ending && !s.ended && s.unsentBytes() == 0 && s.limit > 0 }

// piece returns up to n unsent bytes of one chunk.
func (s *sender) piece(n int64) (c *chunk, b []byte) {
	c, b = s.chunks.at(s.sent)
	return c, b[:min(n, s.chunks.span()-s.sent%s.chunks.span())]
}

// noteLeft records that n bytes were sent and charged to the room or the reserve.
func (s *sender) noteLeft(n int64, toRoom bool) {
	if !toRoom {
		s.used += uint64(n)
	}
	s.sent += n
	s.chunks.dropBefore(s.sent)
	s.releaseIdleChunk()
}

// releaseIdleChunk drops the chunk for the next bytes if no bytes are waiting, so that an idle
// stream uses no memory.
func (s *sender) releaseIdleChunk() {
	if s.sent == s.written {
		s.chunks.dropAt(s.sent)
	}
}
