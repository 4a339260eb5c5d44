package udp

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A bulkSocket is a second socket at the address of a pollSocket, with a receive buffer of its own.
// The system delivers packets of bulk data to it and all others to the pollSocket, so that a message
// does not wait until the bulk data before it has been read. It is opened when bulk data arrives for
// the first time. Where the system does not support that, everything arrives at the pollSocket.
//
// A pollSocket with TLS has no bulkSocket, because the system cannot look into encrypted packets.
//
// The shared socket's lock guards the fields.
type bulkSocket struct {
	s     *pollSocket
	fd    int  // -1 if the socket is not open
	final bool // whether open has succeeded, or failed for a reason that will not go away
	// retryAt is the time after which open may be called again.
	retryAt time.Time
	ids     [256]carrier.PollID // indexed by context number; valid if watched
	turn    bulkTurn
	size    int // size in bytes that is expected of a message: the mean of the last read, or little less than before
	// watched is whether the poller of a context reads the socket, indexed by context number.
	watched [256]bool
	// active reports whether Peek reads the socket without being asked to by the poller. It is set when
	// the poller reports bulk data, and cleared after idleReads reads have found none.
	active bool
	idle   int
}

var (
	_ carrier.Pollable = (*bulkSocket)(nil)
	_ carrier.Peeker   = (*bulkSocket)(nil)
)

// idleReads is the number of successive reads without bulk data after which only the poller looks
// for more.
const idleReads = 64

// bulkFilter is a program for SO_ATTACH_REUSEPORT_CBPF. It returns the number of the socket that
// receives a packet, in the order in which they were bound: 1 for bulk data and 0 for all others,
// including those that are too short.
var bulkFilter = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 0},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 15},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(arq.DataKind), Jf: 3},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 1},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(arq.BulkFlag)},
	{Code: unix.BPF_RET | bpfA},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// bpfA makes BPF_RET return the accumulator (linux/filter.h).
const bpfA = 0x10

// starvedPause is the time after which open is called again if the process or the system had no
// descriptor or memory.
const starvedPause = time.Second

// shouldOpen reports whether open must be called, because bulk data has arrived.
func (b *bulkSocket) shouldOpen() bool {
	return !b.final && time.Now().After(b.retryAt)
}

// open opens the socket, if the system can.
func (b *bulkSocket) open() {
	b.final = true
	s, family := b.s, unix.AF_INET
	if s.six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, mode, 0)
	if err != nil {
		b.retryIfStarved(err)
		return
	}
	s.setOptions(fd, s.bound)
	// The pollSocket was bound without SO_REUSEPORT. A second process that is started with the same
	// address by mistake therefore fails, as it binds without SO_REUSEPORT, too.
	for _, each := range [...]int{s.fd, fd} {
		if err == nil {
			err = unix.SetsockoptInt(each, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
	}
	if err == nil {
		err = unix.Bind(fd, s.sockaddr(s.bound))
	}
	if err == nil {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(bulkFilter)), Filter: unsafe.SliceData(bulkFilter[:])})
	}
	if err == nil {
		b.fd = fd
		s.shared.forEachContext(func(c *contextCarrier) {
			if err == nil && !c.leaving {
				err = b.watch(c)
			}
		})
	}
	if err != nil { // the datagrams that have arrived at fd are lost, and sent again
		s.shared.forEachContext(func(c *contextCarrier) { b.unwatchLocked(c) })
		b.fd = -1
		_ = unix.Close(fd)
		b.retryIfStarved(err)
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
	}
}

// retryIfStarved allows another call of open later if err may go away.
func (b *bulkSocket) retryIfStarved(err error) {
	for _, e := range [...]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ENOSPC} {
		if errors.Is(err, e) {
			b.final, b.retryAt = false, time.Now().Add(starvedPause)
		}
	}
}

// watch makes the poller of c read the socket.
func (b *bulkSocket) watch(c *contextCarrier) (err error) {
	b.ids[c.id], err = c.e.Poller().AddShared(b.fd, b)
	b.watched[c.id] = err == nil
	return err
}

// unwatch undoes watch. The caller must not hold the shared socket's lock.
func (b *bulkSocket) unwatch(c *contextCarrier) {
	b.s.shared.mu.Lock()
	defer b.s.shared.mu.Unlock()
	b.unwatchLocked(c)
}

// unwatchLocked implements unwatch.
func (b *bulkSocket) unwatchLocked(c *contextCarrier) {
	if b.watched[c.id] && b.fd >= 0 {
		c.e.Poller().Remove(b.fd, b.ids[c.id])
	}
	b.watched[c.id] = false
}

// Ready implements carrier.Pollable.
func (b *bulkSocket) Ready(_, failed bool) {
	b.s.shared.mu.Lock()
	fd := b.fd
	b.active, b.idle = fd >= 0, 0
	b.s.shared.mu.Unlock()
	if fd < 0 { // open has closed it again
		return
	}
	if failed {
		b.s.takeErrors(fd)
	}
	b.s.Peek()
}

// Peek implements carrier.Peeker.
func (b *bulkSocket) Peek() bool { return b.s.Peek() }

// read receives about b.turn bytes into r and returns the number of messages received. full reports
// whether more may be waiting.
func (b *bulkSocket) read(r *batchReader) (n int, full bool) {
	if d := b.s.shared; d.hadMessage {
		d.hadMessage = false
		b.turn.reset()
	}
	most := max(1, min(b.turn.bytes()/b.size, batch))
	if n = b.s.read(r, b.fd, most); n == 0 {
		b.idle++
		b.active = b.idle < idleReads
		return 0, false
	}
	b.idle = 0
	b.turn.grow()
	bytes := 0
	for i := range n {
		bytes += int(r.v.msgs[i].n)
	}
	b.size = max(1, bytes/n, b.size-b.size/16) // the last packet of a piece may be small
	return n, n == most
}

func (b *bulkSocket) close() {
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
	}
}
