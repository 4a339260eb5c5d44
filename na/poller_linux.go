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

// A poller is a context's epoll set. It contains an eventfd, used by wake, and the descriptors that
// plugins add.
type poller struct {
	epfd, evfd int
	woken      atomic.Bool // the eventfd has been written and not yet read
	events     [eventsAtOnce]unix.EpollEvent
	hot        carrier.PollID // descriptor of the most recently readable carrier.Peeker; used only by the leader
	alone      bool           // no descriptor other than hot was ready in the last wait
	round      round

	inletSet

	// slots is read without holding mu for each ready descriptor. When it is full, add replaces it,
	// while holding mu, with a longer slice that shares the existing slots.
	slots atomic.Pointer[[]*pollSlot]

	mu     sync.Mutex       // guards the fields below and replacement of slots
	free   []carrier.PollID // IDs for unowned slots, with the generation of the next owner
	closed bool
}

// A pollSlot holds the owner of one descriptor, or nil if it has none.
type pollSlot struct{ owner atomic.Pointer[pollOwner] }

// A pollOwner holds the Pollable of a descriptor. It is immutable. Its generation distinguishes it
// from earlier owners of the same slot, whose late events must be ignored.
type pollOwner struct {
	to  carrier.Pollable
	gen int32
}

// eventsAtOnce is the maximum number of ready descriptors that one wait returns. The next wait
// returns the others.
const eventsAtOnce = 64

// pollerSupported reports whether this system supports adding descriptors.
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

// A wakeFD adapts the poller's eventfd to carrier.Pollable.
type wakeFD poller

// Ready reads the eventfd and then clears woken. The order matters. If woken were cleared first, a
// concurrent wake could set it again and have its write consumed by the read. Later wakes would
// then write nothing, and the leader would not be woken. In this order, a concurrent wake writes
// nothing, which is harmless because the leader checks for work once more before it sleeps.
func (w *wakeFD) Ready(_, _ bool) {
	var b [8]byte
	_, _ = unix.Read(w.evfd, b[:])
	w.woken.Store(false)
}

// Add watches fd for reading. The caller still owns fd and must call Remove before closing it.
func (p *poller) Add(fd int, to carrier.Pollable) (carrier.PollID, error) {
	return p.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP, to)
}

// AddEdge watches fd edge-triggered: Ready is called once for each write, and fd need not be read.
// It is meant for eventfds. Watch must not be called for such a descriptor.
func (p *poller) AddEdge(fd int, to carrier.Pollable) (carrier.PollID, error) {
	return p.add(fd, unix.EPOLLIN|unix.EPOLLET, to)
}

// AddShared watches fd, which the pollers of other contexts also watch. An event wakes only one of
// the sleeping pollers. Watch must not be called for such a descriptor.
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
	slot.owner.Store(&pollOwner{to, id.Generation}) // before EpollCtl, because an edge-triggered event is not repeated
	ev := unix.EpollEvent{Events: events, Fd: id.Slot, Pad: id.Generation}
	if err := unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		slot.owner.Store(nil)
		p.free = append(p.free, id)
		return carrier.PollID{}, fmt.Errorf("epoll_ctl: %w", err)
	}
	return id, nil
}

// Watch sets whether Ready is called when fd becomes readable and when it becomes writable.
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

// Remove stops watching fd. Pending events that have not been dispatched are dropped.
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

// waitRounds returns a number of calls to wait that is sufficient to handle every descriptor that
// is ready now.
func (p *poller) waitRounds() int { return len(*p.slots.Load())/eventsAtOnce + 1 }

// wait blocks until a descriptor is ready or d has elapsed, and then calls Ready of each ready
// descriptor's owner. It returns the number of ready descriptors. If d is negative, wait has no
// time limit.
func (p *poller) wait(d time.Duration) int {
	n := p.sleep(d)
	p.dispatch(n)
	return n
}

// A round tracks the progress of dispatch through the events of one wait.
type round struct {
	found, at      int                // number of events; index of the next one
	later          [eventsAtOnce]int8 // indexes of events whose owners are not Peekers
	laters, lateAt int                // number of indexes in later; the next one
	calling        carrier.Pollable   // owner being called, or nil
}

// dispatch calls the owners of the n events returned by sleep. Peekers are called first, because
// their calls are short and latency-sensitive. If an owner panics, its connection is closed and the
// remaining owners are still called.
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

// callOwners calls the owners that r lists as not yet called. It returns early if one of them
// panics, after closing that owner's connection.
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
		notifyReady(to, ev.Events)
	}
	p.alone = r.found == 1 && r.laters == 0
	for r.lateAt < r.laters {
		ev := &p.events[r.later[r.lateAt]]
		r.lateAt++
		if to := p.owner(carrier.PollID{Slot: ev.Fd, Generation: ev.Pad}); to != nil {
			r.calling = to
			notifyReady(to, ev.Events)
		}
	}
	r.calling = nil
}

// notifyReady calls to.Ready as indicated by the epoll events.
func notifyReady(to carrier.Pollable, events uint32) {
	failed := events&(unix.EPOLLERR|unix.EPOLLHUP) != 0
	to.Ready(failed || events&(unix.EPOLLIN|unix.EPOLLRDHUP) != 0, failed || events&unix.EPOLLOUT != 0)
}

// owner returns the Pollable registered as id, or nil if it has been removed.
func (p *poller) owner(id carrier.PollID) carrier.Pollable {
	owner := (*p.slots.Load())[id.Slot].owner.Load()
	if owner == nil || owner.gen != id.Generation {
		return nil
	}
	return owner.to
}

// peek calls Peek of the owner whose descriptor was the only ready one in the last wait. It does
// not call epoll. came is the result of Peek. asked reports whether there was such an owner and it
// is a Peeker.
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

// sleep blocks until a descriptor is ready or d has elapsed, and returns the number of ready
// descriptors. If d is negative, sleep has no time limit. If d is 0, sleep does not block or call
// the Go scheduler. Otherwise d has nanosecond resolution if the kernel supports epoll_pwait2.
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
		// The kernel is older than 5.11, or a seccomp filter rejects epoll_pwait2.
		if errno == unix.ENOSYS || errno == unix.EPERM {
			noPwait2.Store(true)
			return p.sleep(d)
		}
	}
	if errno != 0 {
		return 0
	}
	return int(n)
}

// noPwait2 is set once epoll_pwait2(2) has turned out to be unavailable.
var noPwait2 atomic.Bool

// A kernelTimespec is the timespec of epoll_pwait2(2). Its fields have 64 bits even where those of
// unix.Timespec have 32.
type kernelTimespec struct{ sec, nsec int64 }

// wake makes the current wait return, or the next one if none is in progress.
func (p *poller) wake() {
	if p.woken.Swap(true) {
		return
	}
	one := [8]byte{1}
	p.mu.Lock() // once closed, the descriptor's number may be reused
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
