//go:build unix

package mercury

import (
	"net"
	"syscall"
)

// A try writes to a socket, or reads from it. One goroutine at a time may use it.
type try struct {
	do   func(func(fd uintptr) bool) error
	call func(fd int, b []byte) (int, error)
	fun  func(fd uintptr) bool // run, as a value that is made once

	at   place // these four are those of the call of move that runs
	wait bool
	n    int
	err  error
}

// newTries returns what writes to nc and what reads from it, or nil if nc is no socket.
func newTries(nc net.Conn) (write, read *try) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return nil, nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, nil
	}
	return newTry(raw.Write, syscall.Write), newTry(raw.Read, syscall.Read)
}

func newTry(do func(func(fd uintptr) bool) error, call func(int, []byte) (int, error)) *try {
	t := &try{do: do, call: call}
	t.fun = t.run
	return t
}

// move moves some of the bytes at p: at once, or if it may wait as soon as the socket is ready. It reports whether the socket was ready. The
// error is errGone if the memory of p has been taken away. A place in a memory is locked while the system copies, and not while move waits.
func (t *try) move(p place, wait bool) (n int, ready bool, err error) {
	t.at, t.wait, t.n, t.err = p, wait, 0, nil // do returns at once if the connection is closed
	err = t.do(t.fun)
	t.at = place{}
	if err == nil {
		err = t.err
	}
	if err == syscall.EAGAIN {
		return 0, false, nil
	}
	return max(t.n, 0), true, err
}

// run reports whether move has ended.
func (t *try) run(fd uintptr) bool {
	b := t.at.b
	if m := t.at.mem; m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.buf == nil {
			t.err = errGone
			return true
		}
		b = m.buf[t.at.off : t.at.off+t.at.n]
	}
	for {
		if t.n, t.err = t.call(int(fd), b); t.err != syscall.EINTR {
			return t.err != syscall.EAGAIN || !t.wait
		}
	}
}
