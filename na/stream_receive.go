package na

import (
	"fmt"
	"slices"
)

// A receiver is the state of the receiving side of a stream: the unread bytes and the flow control
// window. It does not refer to the session.
//
// Bytes before read have been read, and those between read and next can be read. Between next and
// limit there may be gaps, because frames of other lanes may be missing. The sender stops at limit.
// taken, which never exceeds granted, counts the bytes charged to the reserve.
//
// The sender charges each byte to one of two accounts: the stream's reserve, which consists of
// StreamReserve bytes that only this stream may use while it is open, or the session's room, which
// all streams share. Both sides keep both accounts as cumulative totals, so duplicate or late
// frames have no effect. Bytes that have been read are credited to the reserve first.
type receiver struct {
	chunks chunks
	read   int64       // offset of the first unread byte
	next   int64       // offset up to which all bytes have arrived
	most   int64       // highest offset received
	limit  int64       // offset up to which the sender may send, as announced by the last WINDOW
	window int64       // limit - read after the next WINDOW
	final  int64       // length of the stream, or -1 if unknown
	ahead  []byteRange // ranges that have arrived beyond next, in order, with gaps between them
	cause  error       // error to return after the last byte instead of io.EOF

	granted  uint64 // cumulative reserve granted by WINDOWs
	taken    uint64 // cumulative number of bytes that the sender has charged to the reserve
	reserved int64  // unread bytes that are charged to the reserve
	room     int64  // unread bytes that are charged to the room
	used     int64  // bytes that have arrived since the last WINDOW
}

// A byteRange is a range of bytes in a stream.
type byteRange struct{ from, to int64 }

const (
	// StreamReserve is the number of bytes that the receiver reserves for each open stream. These can
	// arrive no matter what other streams hold.
	StreamReserve = 1 << 10
	// firstWindow is the initial window of a stream.
	firstWindow = 16 << 10
	// maxMessageWindow limits the window of a message stream, and maxBulkWindow that of a bulk
	// stream.
	maxMessageWindow = 256 << 10
	maxBulkWindow    = 1 << 20
	// maxGaps is the maximum length of receiver.ahead. On a lane that uses datagrams, each lost
	// datagram creates a gap.
	maxGaps = 4096
)

// newReceiver returns the receiver of a new stream.
func newReceiver() receiver {
	return receiver{final: -1, window: firstWindow}
}

// check returns an error if the peer may not send n bytes at off. end reports whether they are the
// last bytes of the stream, and toRoom whether the peer charges them to the room. id is used only
// in the error text.
func (r *receiver) check(off, n int64, end, toRoom bool, id uint64) error {
	bad := func(text string, args ...any) error {
		return WithText(ErrProtocol, fmt.Sprintf("%d bytes at offset %d of stream %d: %s", n, off, id, fmt.Sprintf(text, args...)))
	}
	switch {
	case off < 0 || n < 0 || off > r.limit-n:
		return bad("beyond the window, which ends at %d", r.limit)
	case !toRoom && r.granted-r.taken < uint64(n):
		return bad("beyond the reserve of %d, of which %d is used", r.granted, r.taken)
	case end && off+n < r.most: // even for a repeated end
		return bad("final size is below the %d bytes received", r.most)
	case r.final >= 0 && off+n > r.final:
		return bad("beyond the final size %d", r.final)
	case n == 0:
		return nil
	case off < r.next:
		return bad("already received up to %d", r.next)
	case off > r.next && len(r.ahead) >= maxGaps:
		return bad("too many gaps: %d", len(r.ahead))
	}
	if i := r.firstRunFrom(off); i > 0 && r.ahead[i-1].to > off || i < len(r.ahead) && r.ahead[i].from < off+n {
		return bad("overlaps received data")
	}
	for _, f := range r.chunks.filled {
		if off < f.to && f.from < off+n {
			return bad("overlaps data being received")
		}
	}
	return nil
}

// firstRunFrom returns the index of the first range in r.ahead that begins at or after off, or
// len(r.ahead) if there is none.
func (r *receiver) firstRunFrom(off int64) int {
	i, _ := slices.BinarySearchFunc(r.ahead, off, func(a byteRange, off int64) int { return int(a.from - off) })
	return i
}

// charge charges n bytes at off, which check has accepted, to the room if toRoom is true and to the
// reserve otherwise. end reports whether they are the last bytes of the stream.
func (r *receiver) charge(off, n int64, end, toRoom bool) {
	if toRoom {
		r.room += n
	} else {
		r.taken += uint64(n)
		r.reserved += n
	}
	r.most = max(r.most, off+n)
	r.used += n
	if end {
		r.final = off + n
	}
}

// noteArrived records that n bytes at off have been written to their chunks, and reports whether
// more bytes can be read than before.
func (r *receiver) noteArrived(off, n int64) bool {
	if n > 0 && off != r.next {
		i := r.firstRunFrom(off)
		if i > 0 && r.ahead[i-1].to == off {
			r.ahead[i-1].to += n
			if i < len(r.ahead) && r.ahead[i].from == off+n {
				r.ahead[i-1].to = r.ahead[i].to
				r.ahead = slices.Delete(r.ahead, i, i+1)
			}
		} else if i < len(r.ahead) && r.ahead[i].from == off+n {
			r.ahead[i].from = off
		} else {
			r.ahead = slices.Insert(r.ahead, i, byteRange{off, off + n})
		}
		return false
	}
	r.next += n
	if len(r.ahead) > 0 && r.ahead[0].from == r.next {
		r.next = r.ahead[0].to
		r.ahead = slices.Delete(r.ahead, 0, 1)
	}
	return n > 0 || r.isComplete()
}

// write copies b to offset off of the stream and reports whether more bytes can be read than
// before. check and charge must have been called for these bytes.
func (r *receiver) write(off int64, b []byte) bool {
	for at := off; len(b) > 0; {
		n := min(len(b), int(r.chunks.span()-at%r.chunks.span()))
		_, to := r.chunks.grow(at, n)
		copy(to, b[:n])
		b = b[n:]
		at += int64(n)
		if len(b) == 0 {
			return r.noteArrived(off, at-off)
		}
	}
	return r.noteArrived(off, 0)
}

// notePlaced records that a carrier has written n bytes at off into a chunk returned by place. It
// reports whether more bytes can be read than before.
func (r *receiver) notePlaced(c *chunk, off, n int64) bool {
	r.chunks.placed(c, off, n)
	return r.noteArrived(off, n)
}

// isComplete reports whether the whole stream has arrived.
func (r *receiver) isComplete() bool { return r.final >= 0 && r.next == r.final }

// isRead reports whether the whole stream has been read.
func (r *receiver) isRead() bool { return r.final >= 0 && r.read == r.final }

// unreadBytes returns the number of bytes that have arrived and not been read, including any behind
// a gap.
func (r *receiver) unreadBytes() int64 { return r.reserved + r.room }

// peek returns the next contiguous bytes, or nil if there are none.
func (r *receiver) peek() []byte {
	n := min(r.next-r.read, r.chunks.span()-r.read%r.chunks.span())
	if n == 0 {
		return nil
	}
	_, b := r.chunks.at(r.read)
	return b[:n:n]
}

// consume releases n bytes that have been read and returns the number of those that were charged to
// the room.
func (r *receiver) consume(n int64) (room int64) {
	r.read += n
	r.chunks.dropBefore(r.read)
	if r.read == r.next && len(r.ahead) == 0 { // an idle stream uses no memory
		r.chunks.dropAt(r.read)
	}
	reserve := min(n, r.reserved)
	r.reserved -= reserve
	r.room -= n - reserve
	return n - reserve
}

// grantable returns the cumulative number of bytes of reserve that may be granted to the sender
// now.
func (r *receiver) grantable() uint64 { return r.taken - uint64(r.reserved) + StreamReserve }

// owesWindow reports whether a WINDOW must be sent because half of the window, or half of the
// reserve, is free but not announced to the sender.
func (r *receiver) owesWindow() bool {
	return r.final < 0 && (2*(r.read+r.window-r.limit) >= r.window || 2*(r.grantable()-r.granted) >= StreamReserve)
}

// expect increases the window to n bytes, or to most if that is less. It does not reduce the
// window.
func (r *receiver) expect(n, most int64) { r.window = max(r.window, min(n, most)) }

// windowToSend returns the limit and the cumulative reserve for a WINDOW about to be sent. The
// window doubles, up to most, while the reader keeps up with the sender: at least half of it has
// been used since the last WINDOW, and at most a quarter is unread. The first WINDOW always has
// firstWindow, by which a sender without a record of the stream recognizes it; see deliverWindow.
func (r *receiver) windowToSend(most int64) (limit int64, granted uint64) {
	if r.limit == 0 {
		r.limit, r.granted = firstWindow, r.grantable()
		return r.limit, r.granted
	}
	if 2*r.used >= r.window && 4*r.unreadBytes() <= r.window {
		r.window *= 2
	}
	r.window = min(r.window, most)
	r.used = 0
	if limit := r.read + r.window; limit > r.limit {
		r.limit = limit
	}
	r.granted = r.grantable()
	return r.limit, r.granted
}

// drop discards all unread bytes and returns the number of those that were charged to the room.
func (r *receiver) drop() (room int64) {
	room = r.room
	r.chunks.dropAll()
	r.ahead, r.reserved, r.room = nil, 0, 0
	r.next = r.read
	return room
}
