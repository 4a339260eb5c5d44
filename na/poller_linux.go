package na

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"golang.org/x/sys/unix"
)

// A poller is the epoll set of a context, with a wake-up eventfd in it. Plugins add their descriptors.
type poller struct {
	epfd, evfd int
	woken      atomic.Bool // a wake-up is on its way
	events     [eventsAtOnce]unix.EpollEvent
	hot        carrier.PollID // the carrier.Peeker that was readable last; of the goroutine that leads
	alone      bool           // nothing else was ready then
	round      round

	inletSet

	// slots is read without a lock, for each descriptor that is ready. It is written under mu: a longer one takes its place, and shares the
	// slots of it.
	slots atomic.Pointer[[]*pollSlot]

	mu     sync.Mutex       // guards the fields below, and the writing of slots
	free   []carrier.PollID // of slots without an owner, for the next one
	closed bool
}

// A pollSlot is the place of one descriptor; its owner is nil while there is none.
type pollSlot struct{ owner atomic.Pointer[pollOwner] }

// A pollOwner is the source that added a descriptor. It is not written. The generation shows that a late event is of an earlier owner.
type pollOwner struct {
	to  carrier.Pollable
	gen int32
}

// eventsAtOnce is how many descriptors that are ready one wait finds at most. The next one finds others first.
const eventsAtOnce = 64

// pollerSupported reports whether descriptors can be added on this system.
const pollerSupported = true

func newPoller() (*poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	evfd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &poller{epfd: epfd, evfd: evfd}
	p.slots.Store(&[]*pollSlot{})
	if _, err := p.Add(evfd, (*wakeFD)(p)); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// wakeFD empties the eventfd.
type wakeFD poller

// Ready empties the eventfd first. The other way round a wake between the two would say that the eventfd is full when it is
// empty, and nobody would write to it any more. One that comes between them now writes nothing, and need not: what it is for
// was there before it, and the leader looks again before it sleeps.
func (w *wakeFD) Ready(_, _ bool) {
	var b [8]byte
	_, _ = unix.Read(w.evfd, b[:])
	w.woken.Store(false)
}

// Add watches fd for reading. The caller keeps the descriptor, and calls Remove before it closes it.
func (p *poller) Add(fd int, to carrier.Pollable) (carrier.PollID, error) {
	return p.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP, to)
}

// AddEdge watches fd as Add does, but tells of each new readiness once: nothing needs to be read. It suits eventfds that are
// bells. Watch is not for these.
func (p *poller) AddEdge(fd int, to carrier.Pollable) (carrier.PollID, error) {
	return p.add(fd, unix.EPOLLIN|unix.EPOLLET, to)
}

// AddShared watches fd as Add does, beside the pollers of other contexts: of those that sleep one is told. Watch is not for these.
func (p *poller) AddShared(fd int, to carrier.Pollable) (carrier.PollID, error) {
	return p.add(fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE, to)
}

func (p *poller) add(fd int, events uint32, to carrier.Pollable) (carrier.PollID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slots := *p.slots.Load()
	var id carrier.PollID
	if n := len(p.free); n > 0 {
		id, p.free = p.free[n-1], p.free[:n-1]
	} else {
		id.Slot = int32(len(slots))
		slots = append(slots, &pollSlot{})
		p.slots.Store(&slots)
	}
	slot := slots[id.Slot]
	slot.owner.Store(&pollOwner{to, id.Generation}) // before the leader may find an event: AddEdge gives no second one
	ev := unix.EpollEvent{Events: events, Fd: id.Slot, Pad: id.Generation}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		slot.owner.Store(nil)
		p.free = append(p.free, id)
		return carrier.PollID{}, fmt.Errorf("epoll_ctl: %w", err)
	}
	return id, nil
}

// Watch says which readiness of fd is of interest from now on.
func (p *poller) Watch(fd int, id carrier.PollID, readable, writable bool) error {
	var events uint32
	if readable {
		events |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if writable {
		events |= unix.EPOLLOUT
	}
	ev := unix.EpollEvent{Events: events, Fd: id.Slot, Pad: id.Generation}
	return unix.EpollCtl(p.epfd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// Remove stops watching fd. An event that was under way is dropped.
func (p *poller) Remove(fd int, id carrier.PollID) {
	ev := unix.EpollEvent{}
	_ = unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, fd, &ev)
	p.mu.Lock()
	defer p.mu.Unlock()
	slot := (*p.slots.Load())[id.Slot]
	if owner := slot.owner.Load(); owner == nil || owner.gen != id.Generation {
		return
	}
	slot.owner.Store(nil)
	id.Generation++
	p.free = append(p.free, id)
}

// waitRounds is in how many waits each descriptor that is ready now is found.
func (p *poller) waitRounds() int { return len(*p.slots.Load())/eventsAtOnce + 1 }

// wait sleeps for at most d (negative: no limit) until something is ready, and calls its owners.
func (p *poller) wait(d time.Duration) int {
	n := p.sleep(d)
	p.dispatch(n)
	return n
}

// A round is what one wait has found, and how far its owners have been called.
type round struct {
	found, at      int // of the events
	later          [eventsAtOnce]int8
	laters, lateAt int              // of later
	calling        carrier.Pollable // nil between two
}

// dispatch calls the owners of what sleep found ready, Peekers first: they are short, and somebody waits for them. One that panics ends
// its own connection; the others follow.
func (p *poller) dispatch(n int) {
	if n == 0 {
		p.alone = false
		return
	}
	r := &p.round
	r.found, r.at, r.laters, r.lateAt = n, 0, 0, 0
	for r.at < n || r.lateAt < r.laters {
		p.callOwners(r)
	}
}

// callOwners goes on until all have been called, or one has panicked.
func (p *poller) callOwners(r *round) {
	defer func() {
		if v := recover(); v != nil {
			p.panicked(v, r.calling)
		}
	}()
	for r.at < r.found {
		ev := &p.events[r.at]
		r.at++
		id := carrier.PollID{Slot: ev.Fd, Generation: ev.Pad}
		to := p.owner(id)
		if _, ok := to.(carrier.Peeker); !ok {
			r.later[r.laters] = int8(r.at - 1)
			r.laters++
			continue
		}
		if ev.Events&unix.EPOLLIN != 0 {
			p.hot = id
		}
		r.calling = to
		isEventReady(to, ev.Events)
	}
	p.alone = r.found == 1 && r.laters == 0
	for r.lateAt < r.laters {
		ev := &p.events[r.later[r.lateAt]]
		r.lateAt++
		if to := p.owner(carrier.PollID{Slot: ev.Fd, Generation: ev.Pad}); to != nil {
			r.calling = to
			isEventReady(to, ev.Events)
		}
	}
	r.calling = nil
}

func isEventReady(to carrier.Pollable, events uint32) {
	failed := events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	to.Ready(failed || events&(unix.EPOLLIN|unix.EPOLLRDHUP) != 0, failed || events&unix.EPOLLOUT != 0)
}

// owner returns who added a descriptor, or nil when it was removed.
func (p *poller) owner(id carrier.PollID) carrier.Pollable {
	owner := (*p.slots.Load())[id.Slot].owner.Load()
	if owner == nil || owner.gen != id.Generation {
		return nil
	}
	return owner.to
}

// peek asks the owner of the descriptor that was readable last, and alone, for bytes, if it can be asked.
func (p *poller) peek() (came, asked bool) {
	if !p.alone {
		return false, false
	}
	to, ok := p.owner(p.hot).(carrier.Peeker)
	if !ok {
		return false, false
	}
	defer func() {
		if v := recover(); v != nil {
			p.panicked(v, to)
		}
	}()
	return to.Peek(), true
}

// sleep waits for at most d (negative: no limit) and returns how many descriptors are ready. It polls without telling
// the scheduler when d is zero, and sleeps with nanosecond resolution otherwise.
func (p *poller) sleep(d time.Duration) int {
	events := unsafe.Pointer(&p.events[0])
	var n uintptr
	var errno unix.Errno
	switch {
	case d == 0:
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epfd), uintptr(events), uintptr(len(p.events)), 0, 0, 0)
	case noPwait2.Load():
		ms := -1
		if d > 0 {
			ms = int((d + time.Millisecond - 1) / time.Millisecond)
		}
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epfd), uintptr(events), uintptr(len(p.events)), uintptr(ms), 0, 0)
	default:
		var ts *kernelTimespec
		if d > 0 {
			ts = &kernelTimespec{int64(d / time.Second), int64(d % time.Second)}
		}
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.epfd), uintptr(events), uintptr(len(p.events)),
			uintptr(unsafe.Pointer(ts)), 0, 0)
		if errno == unix.ENOSYS || errno == unix.EPERM { // kernels before 5.11, and filters that do not know it
			noPwait2.Store(true)
			return p.sleep(d)
		}
	}
	if errno != 0 {
		return 0
	}
	return int(n)
}

var noPwait2 atomic.Bool

// kernelTimespec is what epoll_pwait2 takes: 64 bits each, also where those of unix.Timespec are 32.
type kernelTimespec struct{ sec, nsec int64 }

// wake makes a wait that sleeps return.
func (p *poller) wake() {
	if p.woken.Swap(true) {
		return
	}
	one := [8]byte{1}
	p.mu.Lock() // the descriptor's number may belong to somebody else once it is closed
	if !p.closed {
		_, _ = unix.Write(p.evfd, one[:])
	}
	p.mu.Unlock()
}

func (p *poller) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	_ = unix.Close(p.evfd)
	_ = unix.Close(p.epfd)
}
