package na

// A sender is the state of the sending side of a stream: the unsent bytes and the flow control
// window. It does not refer to the session.
//
// Bytes before sent have been sent. Those between sent and written are waiting. The program may
// write beyond limit, the limit of the last WINDOW, but such bytes are not sent. used, which never
// exceeds granted, counts the bytes charged to the reserve.
type sender struct {
	chunks  chunks
	lent    *chunk // chunk that the program fills between Reserve and Commit, or nil
	sent    int64
	written int64
	limit   int64 // limit of the last WINDOW
	granted uint64
	used    uint64
	ending  bool // written is the end of the stream
	ended   bool // the end, a frame with FlagEnd, has been sent
	cause   bool // the stream ends with an error, whose RESET must be sent before the end
}

// unsentBytes returns the number of bytes waiting to be sent.
func (s *sender) unsentBytes() int64 { return s.written - s.sent }

// reserve returns memory for n bytes after those written, or for fewer if the current chunk does
// not hold as many.
func (s *sender) reserve(n int) []byte {
	n = min(n, int(s.chunks.span()-s.written%s.chunks.span()))
	_, b := s.chunks.grow(s.written, n)
	return b
}

// lend acquires a reference to the chunk that follows the written bytes, so that the program can
// fill it. takeBack releases the reference.
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

// allowance returns the number of bytes that may be sent now. toRoom reports whether they must be
// charged to the session's room, of which room bytes are left, rather than to the reserve. The
// reserve is used only if no room is left.
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

// piece returns the first unsent bytes, up to n and from a single chunk, along with that chunk.
func (s *sender) piece(n int64) (c *chunk, b []byte) {
	c, b = s.chunks.at(s.sent)
	return c, b[:min(n, s.chunks.span()-s.sent%s.chunks.span())]
}

// noteLeft records that n bytes have been sent. toRoom reports whether they were charged to the
// room rather than to the reserve.
func (s *sender) noteLeft(n int64, toRoom bool) {
	if !toRoom {
		s.used += uint64(n)
	}
	s.sent += n
	s.chunks.dropBefore(s.sent)
	s.releaseIdleChunk()
}

// releaseIdleChunk drops the current chunk if all written bytes have been sent, so that an idle
// stream uses no memory.
func (s *sender) releaseIdleChunk() {
	if s.sent == s.written {
		s.chunks.dropAt(s.sent)
	}
}
