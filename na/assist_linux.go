package na

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// assist moves bytes when nobody drives the context: it receives, answers heartbeats, serves puts and gets. It runs no
// user code. It is one goroutine, parked in Go's netpoller on a gate: an epoll set that holds the context's epoll set,
// one-shot. While the gate is shut an arriving byte does not reach it.
//
//	parked, gate shut ◄── a leader sleeps in the poller (it will be woken by the byte itself) ◄──┐
//	   │ the leader wakes: opens the gate    │ it wakes soon and often, or holds frames back       │
//	   ▼                                     ▼                                                    │
//	parked, gate open ── a byte arrives ──► ticking: each 2 ms it looks whether somebody drove since
//	   ▲                                        │ nobody did: one pass, then the gate again
//	   └────────────────────────────────────────┘
//
// While it ticks the gate, which costs a system call each way, is left alone.
type assist struct {
	nctx  *Context
	file  *os.File // the gate
	raw   syscall.RawConn
	state atomic.Int32
	quit  atomic.Bool

	// What raw calls, made once.
	look       func(fd uintptr) bool
	open, shut func(fd uintptr)
}

// The states of assist.
const (
	assistShut int32 = iota // parked, gate shut
	assistOpen              // parked, gate open
	assistTick              // awake
)

// assistAfter is how long nobody may have driven before assist does.
const assistAfter = 2 * time.Millisecond

func newAssist(c *Context) (*assist, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set nonblocking: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(c.poller.epfd)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, c.poller.epfd, &ev); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	a := &assist{nctx: c, file: os.NewFile(uintptr(fd), "assist")}
	if a.raw, err = a.file.SyscallConn(); err != nil {
		_ = a.file.Close()
		return nil, err
	}
	a.look = func(fd uintptr) bool {
		var events [1]unix.EpollEvent
		n, _ := unix.EpollWait(int(fd), events[:], 0)
		return n > 0
	}
	a.open = func(fd uintptr) { a.gate(fd, unix.EPOLLIN|unix.EPOLLONESHOT) }
	a.shut = func(fd uintptr) { a.gate(fd, 0) }
	a.state.Store(assistOpen)
	return a, nil
}

// start begins to serve; without it only drop is left.
func (a *assist) start() {
	if a != nil {
		go a.run()
	}
}

func (a *assist) drop() {
	if a != nil {
		_ = a.file.Close()
	}
}

// leaderSleeps shuts the gate: the leader hears of arriving bytes itself.
func (a *assist) leaderSleeps() {
	if a != nil && a.state.CompareAndSwap(assistOpen, assistShut) {
		_ = a.raw.Control(a.shut)
	}
}

// leaderWakes says that the leader may be off to user code: the gate is opened again, or, after a short sleep, assist
// ticks.
func (a *assist) leaderWakes(slept time.Duration) {
	switch {
	case a == nil:
	case slept < assistAfter:
		a.attend()
	case a.state.CompareAndSwap(assistShut, assistOpen):
		_ = a.raw.Control(a.open)
	}
}

// attend has assist tick from now on, until the next time that nobody drove: bytes may come that nobody takes, or
// frames are held back that nobody sends.
func (a *assist) attend() {
	if a == nil {
		return
	}
	if s := a.state.Load(); s != assistTick && a.state.CompareAndSwap(s, assistTick) {
		_ = a.file.SetReadDeadline(aLongTimeAgo)
	}
}

// aLongTimeAgo as a deadline ends a read at once.
var aLongTimeAgo = time.Unix(1, 0)

// gate sets what the gate lets through. The descriptor is open: stop is called by the goroutine that leads, too.
func (a *assist) gate(fd uintptr, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(a.nctx.poller.epfd)}
	_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, a.nctx.poller.epfd, &ev)
}

// stop ends the goroutine; it does not wait for it. The poller may be closed afterwards.
func (a *assist) stop() {
	if a == nil {
		return
	}
	a.quit.Store(true)
	_ = a.file.Close()
}

func (a *assist) run() {
	c := a.nctx
	timer := time.NewTimer(assistAfter)
	defer timer.Stop()
	var seen uint64 // passes when assist last drove
	for a.park() {
		attending := a.state.Swap(assistTick) == assistTick
		for {
			if !attending && c.passes.Load() == seen && a.pass() {
				break
			}
			attending = false
			before := c.passes.Load()
			timer.Reset(assistAfter)
			<-timer.C
			if a.quit.Load() {
				return
			}
			if c.passes.Load() != before {
				continue
			}
			if c.sleeping.Load() {
				a.state.Store(assistShut)
				c.Flush() // what was held back before had us attend in vain
				if !c.sleeping.Load() {
					a.leaderWakes(assistAfter)
				}
				break
			}
			if a.pass() {
				break
			}
		}
		seen = c.passes.Load()
	}
}

// park waits until the gate lets something through.
func (a *assist) park() bool {
	if a.quit.Load() {
		return false
	}
	err := a.raw.Read(a.look)
	if os.IsTimeout(err) { // a timer of the endpoint is due
		_ = a.file.SetReadDeadline(time.Time{})
		return true
	}
	return err == nil
}

// pass drives once, if nobody leads, and opens the gate.
func (a *assist) pass() bool {
	c := a.nctx
	if !c.lead.TryLock() {
		return false
	}
	defer c.unlead()
	if c.state.Load() == ctxReleased {
		return true
	}
	c.poller.wait(0)
	now := c.Now()
	c.ep.Poll(now)
	if at, ok := c.ep.NextTimer(); ok {
		_ = a.file.SetReadDeadline(time.Now().Add(max(at-now, 0)))
	}
	a.state.Store(assistOpen)
	_ = a.raw.Control(a.open)
	c.Flush() // what was held back before had us attend in vain
	return true
}
