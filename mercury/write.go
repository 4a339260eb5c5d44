package mercury

import (
	"runtime"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

const (
	stageSize = 128 << 10 // of memory that is on its way to the socket
	lightSize = 1 << 20   // what somebody else than the writer may write at a time
	roomSize  = 1 << 20   // of messages that wait for the socket, before calls wait
	maxUnread = 16 << 20  // of them, before the peer is given up
	maxJobs   = 1 << 16   // of reads and writes that wait

	copied     = 32 << 10 // of a message with memory behind it, with its header; the rest is not copied
	directSize = 1 << 20  // of memory that the system copies at a time, while it is locked
)

// A job is a message with memory behind it: the answer to a read, or a write.
type job struct {
	head  xnet.Header
	spans []span
	op    *op // of a write
	begun bool
}

// A span is a part of a memory.
type span struct {
	mem *memory
	off uint64
	n   uint64
}

func payload(spans []span) (n uint64) {
	for _, s := range spans {
		n += s.n
	}
	return n
}

// flushLocked sees to it that what was appended leaves, unless the caller does that later. It gives c.mu up.
//
// Who finds nobody writing writes for all, without waiting for the socket: the rest is for the goroutine write.
func (c *conn) flushLocked(later bool) {
	if c.writing || c.err != nil || later {
		c.mu.Unlock()
		return
	}
	c.writing = true
	crowd := len(c.calls) > 1
	c.mu.Unlock()
	if crowd { // others have been woken with us, and have something to send, too
		runtime.Gosched()
	}
	c.drain(lightSize)
}

// header appends the header of a message. Locked.
func (c *conn) header(h *xnet.Header, payload int) {
	h.ID = c.nextID
	c.nextID++
	c.out = h.Append(c.out, payload)
	if len(c.out) > maxUnread && c.err == nil {
		go c.fail(errorf(ErrPeerLost, "%v: it does not read what it has asked for", ErrPeerLost))
	}
}

// drain writes what there is: all of it, waiting for the socket, if limit is 0; otherwise about limit bytes, and hands the rest to
// the writer. The caller has set c.writing.
func (c *conn) drain(limit int) {
	rest, stage := c.rest, c.stage
	c.rest, c.stage = nil, nil
	for done := 0; ; {
		n, err := 0, error(nil)
		if len(rest) == 0 {
			c.mu.Lock()
			if stage != nil {
				stages.Put(stage)
				stage = nil
			}
			if j := c.job; j.direct(c) {
				n, err = c.copyless(j, limit == 0)
				if err == nil && limit > 0 && (n == 0 || done > limit) {
					c.wake <- struct{}{} // has room: who sets writing is alone
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
				c.rest, c.stage = rest, stage
				c.wake <- struct{}{}
				return
			}
		}
		if err != nil {
			if CodeOf(err) != ErrRevoked {
				err = errorf(ErrPeerLost, "%v: %v", ErrPeerLost, err)
			}
			c.fail(err)
			return // writing stays set: nobody writes any more
		}
		done += n
	}
}

// direct reports whether what is left of a message goes from its memory to the socket.
func (j *job) direct(c *conn) bool {
	return j != nil && j.begun && c.try != nil && j.spans[0].n > copied
}

// copyless writes from the memory of j, which is locked while the socket takes what it has room for. It gives c.mu up.
func (c *conn) copyless(j *job, wait bool) (int, error) {
	s := j.spans[0]
	c.mu.Unlock()
	n, _, err := c.try.move(place{mem: s.mem, off: s.off, n: min(s.n, directSize)}, wait)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == errGone {
		if c.err == nil && j.spans[0].mem == s.mem {
			return 0, c.refusal()
		}
		return 0, nil // a copy has taken its place
	}
	t := &j.spans[0]
	t.off += uint64(n)
	if t.n -= uint64(n); t.n == 0 {
		if j.spans = j.spans[1:]; len(j.spans) == 0 && c.job == j {
			c.job = nil
		}
	}
	return n, err
}

// write is the goroutine that waits for the socket.
func (c *conn) write() {
	for {
		select {
		case <-c.wake:
			c.drain(0)
		case <-c.done:
			return
		}
	}
}

var stages = sync.Pool{New: func() any { return new([stageSize]byte) }}

// nextLocked returns the next bytes to be written. They are in stage, or in the buffer that will be used again next time but one.
func (c *conn) nextLocked() ([]byte, *[stageSize]byte) {
	if c.err != nil {
		return nil, nil
	}
	for {
		if c.job == nil {
			for ; c.acks > 0 && len(c.out) < roomSize; c.acks-- {
				c.header(&xnet.Header{Op: xnet.Msg, Data: xnet.Ack}, 0)
			}
			if len(c.out) > 0 {
				b := c.out
				c.out, c.spare = c.spare[:0], b
				if cap(c.out) > roomSize {
					c.out = nil
				}
				c.makeRoom()
				return b, nil
			}
			if len(c.jobs) == 0 {
				return nil, nil
			}
			c.job, c.jobs[0] = c.jobs[0], nil
			c.jobs = c.jobs[1:]
		}
		stage := stages.Get().(*[stageSize]byte)
		b := stage[:]
		if c.try != nil {
			b = stage[:copied]
		}
		b, ok := c.fill(c.job, b)
		if !ok { // a read of memory that is gone: nothing but the end of the connection tells the peer
			stages.Put(stage)
			err := c.refusal()
			go c.fail(err) // which takes the lock
			return nil, nil
		}
		if len(c.job.spans) == 0 {
			c.job = nil
		}
		if len(b) > 0 {
			return b, stage
		}
		stages.Put(stage)
	}
}

func (c *conn) refusal() error {
	return errorf(ErrRevoked, "the peer read or wrote memory that it may not, or that is no longer lent")
}

// fill takes the next bytes of j into b. Locked.
func (c *conn) fill(j *job, b []byte) ([]byte, bool) {
	at := 0
	if !j.begun {
		j.begun = true
		j.head.ID = c.nextID
		c.nextID++
		at = len(j.head.Append(b[:0], int(payload(j.spans))))
		if j.op != nil {
			c.writes.push(j.op)
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
		if s.n -= n; s.n == 0 {
			j.spans = j.spans[1:]
		}
	}
	return b[:at], true
}

// makeRoom wakes those that wait because too much was to be written. Locked.
func (c *conn) makeRoom() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}
