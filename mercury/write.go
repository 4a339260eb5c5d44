package mercury

import (
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

const (
	stageSize        = 128 << 10 // size of a buffer into which data is copied before it is written
	callerWriteLimit = 1 << 20   // approximate number of bytes that a goroutine other than writeLoop writes at a time
	roomSize         = 1 << 20   // number of bytes of queued messages above which calls wait
	maxUnread        = 16 << 20  // number of bytes of queued messages above which the connection is closed
	maxJobs          = 1 << 16   // maximum number of queued responses to reads

	copyLimit  = 32 << 10 // number of bytes of a dataMessage, including its header, that are copied; the rest is written directly
	directSize = 1 << 20  // maximum number of bytes in a direct write, during which the memory is locked
)

// A dataMessage is a message whose payload is in memory: either the response to a read, or a write.
type dataMessage struct {
	head    xnet.Header
	spans   []span   // the payload that has not been written
	op      *chunkOp // the chunk of a write; nil for a response
	started bool     // the header has been written
}

// A span is a range of a memory. If mem is nil, the reader must discard the bytes.
type span struct {
	mem *memory
	off uint64
	n   uint64
}

// payloadLen returns the total number of bytes in spans.
func payloadLen(spans []span) (n uint64) {
	for _, s := range spans {
		n += s.n
	}
	return n
}

// flushLocked writes the queued output, unless later is set. c.mu must be held on entry and is released.
//
// If no other goroutine is writing, the caller becomes the writer. It writes the output of all goroutines, as far as
// the socket accepts it without blocking, and leaves the rest to writeLoop.
func (c *conn) flushLocked(later bool) {
	if c.writing || c.err != nil || later {
		c.mu.Unlock()
		return
	}
	c.writing = true
	yield := len(c.calls) > 1
	c.mu.Unlock()
	if yield { // other calls were probably woken together with this one, so let them add their output
		runtime.Gosched()
	}
	c.writePending(callerWriteLimit)
}

// appendHeaderLocked appends the header h of a message with the given payload length to c.out. It closes the connection
// if more than maxUnread bytes are queued. c.mu must be held.
func (c *conn) appendHeaderLocked(h *xnet.Header, payload int) {
	h.ID = c.nextID
	c.nextID++
	c.out = h.Append(c.out, payload)
	if len(c.out) > maxUnread && c.err == nil {
		go c.fail(errorf(ErrPeerLost, "%v: write blocked", ErrPeerLost))
	}
}

// writePending writes the queued output. If limit is 0, it writes all of it, blocking until the socket accepts it.
// Otherwise it writes about limit bytes without blocking and leaves the rest to writeLoop. The caller must have set
// c.writing and thereby become the writer.
func (c *conn) writePending(limit int) {
	rest, stage := c.unwritten, c.staged
	c.unwritten, c.staged = nil, nil
	for done := 0; ; {
		n, err := 0, error(nil)
		if len(rest) == 0 {
			c.mu.Lock()
			if stage != nil {
				stagePool.Put(stage)
				stage = nil
			}
			if j := c.job; j.isDirect(c) {
				n, err = c.writeDirect(j, limit == 0)
				if err == nil && limit > 0 && (n == 0 || done > limit) {
					c.wake <- struct{}{} // does not block, because only the writer fills the slot
					return
				}
			} else if rest, stage = c.nextLocked(); len(rest) == 0 {
				c.writing = false
				c.mu.Unlock()
				return
			} else {
				c.mu.Unlock()
				continue
			}
		} else if limit == 0 {
			n, err = c.nc.Write(rest)
			rest = rest[n:]
		} else if n, err = c.tryWrite(rest); err == nil {
			if rest = rest[n:]; len(rest) > 0 || done > limit {
				c.unwritten, c.staged = rest, stage
				c.wake <- struct{}{}
				return
			}
		}
		if err != nil {
			if CodeOf(err) != ErrRevoked {
				err = errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err)
			}
			c.fail(err)
			return // writing remains set, so that no goroutine writes again
		}
		done += n
	}
}

// isDirect reports whether the rest of j can be written from its memory without a copy.
func (j *dataMessage) isDirect(c *conn) bool {
	return j != nil && j.started && c.poller != nil && j.spans[0].n > copyLimit
}

// writeDirect writes from the memory of j, which is locked during the system call. If wait is set, it blocks until the
// socket is ready. It returns the number of bytes written. c.mu must be held on entry and is released.
func (c *conn) writeDirect(j *dataMessage, wait bool) (int, error) {
	s := j.spans[0]
	c.mu.Unlock()
	n, _, err := c.poller.transfer(buffer{mem: s.mem, off: s.off, n: min(s.n, directSize)}, wait)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == errRevoked {
		if c.err == nil && j.spans[0].mem == s.mem {
			return 0, c.accessError()
		}
		return 0, nil // the transfer has completed, and a copy has replaced the memory
	}
	t := &j.spans[0]
	t.off += uint64(n)
	t.n -= uint64(n)
	if t.n == 0 {
		j.spans = j.spans[1:]
		if len(j.spans) == 0 && c.job == j {
			c.job = nil
		}
	}
	return n, err
}

// writeLoop writes output that other goroutines could not write without blocking.
func (c *conn) writeLoop() {
	for {
		select {
		case <-c.wake:
			c.writePending(0)
		case <-c.done:
			return
		}
	}
}

// stagePool holds buffers of stageSize bytes.
var stagePool = sync.Pool{New: func() any { return new([stageSize]byte) }}

// nextLocked returns the next bytes to write, and the buffer of stagePool that contains them. If the buffer is nil, the
// bytes are in the output buffer and remain valid until nextLocked is called again. c.mu must be held.
func (c *conn) nextLocked() ([]byte, *[stageSize]byte) {
	if c.err != nil {
		return nil, nil
	}
	for {
		if c.job == nil {
			for ; c.acksToSend > 0 && len(c.out) < roomSize; c.acksToSend-- {
				c.appendHeaderLocked(&xnet.Header{Op: xnet.Msg, Data: xnet.Ack}, 0)
			}
			if len(c.out) > 0 {
				b := c.out
				c.out, c.spare = c.spare[:0], b
				if cap(c.out) > roomSize {
					c.out = nil
				}
				c.signalRoomLocked()
				return b, nil
			}
			if len(c.jobs) == 0 {
				return nil, nil
			}
			c.job, c.jobs[0] = c.jobs[0], nil
			c.jobs = c.jobs[1:]
		}
		stage := stagePool.Get().(*[stageSize]byte)
		b := stage[:]
		if c.poller != nil {
			b = stage[:copyLimit]
		}
		b, ok := c.fillLocked(c.job, b)
		// If the memory of a read has been revoked, the connection must be closed, because the protocol has no error
		// response.
		if !ok {
			stagePool.Put(stage)
			err := c.accessError()
			go c.fail(err) // fail takes the lock
			return nil, nil
		}
		if len(c.job.spans) == 0 {
			c.job = nil
		}
		if len(b) > 0 {
			return b, stage
		}
		stagePool.Put(stage)
	}
}

// accessError returns the error for a peer that accessed memory without permission.
func (c *conn) accessError() error {
	return errorf(ErrRevoked, "peer accessed memory without permission")
}

// fillLocked fills b with the next bytes of j: the header, unless it has already been written, followed by payload. It
// returns the filled part of b, or false if the memory has been revoked. c.mu must be held.
func (c *conn) fillLocked(j *dataMessage, b []byte) ([]byte, bool) {
	at := 0
	if !j.started {
		j.started = true
		j.head.ID = c.nextID
		c.nextID++
		at = len(j.head.Append(b[:0], int(payloadLen(j.spans))))
		if j.op != nil {
			c.pendingWrites.push(j.op)
		}
	}
	for at < len(b) && len(j.spans) > 0 {
		s := &j.spans[0]
		n := min(uint64(len(b)-at), s.n)
		if !s.mem.copyOut(b[at:at+int(n)], s.off) {
			return nil, false
		}
		at += int(n)
		s.off += n
		s.n -= n
		if s.n == 0 {
			j.spans = j.spans[1:]
		}
	}
	return b[:at], true
}

// signalRoomLocked wakes the calls that wait because too much output was queued. c.mu must be held.
func (c *conn) signalRoomLocked() {
	if c.roomFreed != nil {
		close(c.roomFreed)
		c.roomFreed = nil
	}
}
