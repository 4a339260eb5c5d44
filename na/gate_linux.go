package na

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A netGate is a pollGate that uses Go's network poller. It watches an epoll set that contains the
// context's epoll set in one-shot mode.
type netGate struct {
	epfd  int // the context's epoll set
	file  *os.File
	raw   syscall.RawConn
	timer *time.Timer // used by sleepFor

	// Arguments of raw's methods, created once to avoid an allocation per call.
	look         func(fd uintptr) bool
	opens, shuts func(fd uintptr)
}

func newGate(p *poller) (pollGate, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set nonblocking: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.epfd)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, p.epfd, &ev); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	g := &netGate{epfd: p.epfd, file: os.NewFile(uintptr(fd), "background poller"), timer: time.NewTimer(0)}
	if g.raw, err = g.file.SyscallConn(); err != nil {
		_ = g.file.Close()
		return nil, err
	}
	g.look = func(fd uintptr) bool {
		var events [1]unix.EpollEvent
		n, _ := unix.EpollWait(int(fd), events[:], 0)
		return n > 0
	}
	g.opens = func(fd uintptr) { g.set(fd, unix.EPOLLIN|unix.EPOLLONESHOT) }
	g.shuts = func(fd uintptr) { g.set(fd, 0) }
	return g, nil
}

// open implements pollGate.
func (g *netGate) open() { _ = g.raw.Control(g.opens) }

// shut implements pollGate.
func (g *netGate) shut() { _ = g.raw.Control(g.shuts) }

// set sets the events that open the gate. The descriptor is still open, because only the leader
// calls close, open and shut.
func (g *netGate) set(fd uintptr, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(g.epfd)}
	_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, g.epfd, &ev)
}

// park implements pollGate.
func (g *netGate) park() bool {
	err := g.raw.Read(g.look)
	if os.IsTimeout(err) { // wake or alarm has set a read deadline
		_ = g.file.SetReadDeadline(time.Time{})
		return true
	}
	return err == nil
}

// sleepFor implements pollGate.
func (g *netGate) sleepFor(d time.Duration) {
	g.timer.Reset(d)
	<-g.timer.C
}

// aLongTimeAgo is a deadline in the past, which makes a read return immediately.
var aLongTimeAgo = time.Unix(1, 0)

// wake implements pollGate.
func (g *netGate) wake() { _ = g.file.SetReadDeadline(aLongTimeAgo) }

// alarm implements pollGate.
func (g *netGate) alarm(d time.Duration) { _ = g.file.SetReadDeadline(time.Now().Add(d)) }

// close implements pollGate.
func (g *netGate) close() { _ = g.file.Close() }
