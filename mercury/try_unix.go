//go:build unix

package mercury

import (
	"net"
	"syscall"
)

// A try writes to a socket, or reads from it, without waiting for it. One goroutine at a time may use it.
type try struct {
	do  func(func(fd uintptr) bool) error
	fun func(fd uintptr) bool
	b   []byte
	n   int
	err error
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
	t := &try{do: do}
	t.fun = func(fd uintptr) bool {
		for {
			if t.n, t.err = call(int(fd), t.b); t.err != syscall.EINTR {
				return true
			}
		}
	}
	return t
}

// some moves some of b at once, and reports whether the socket was ready.
func (t *try) some(b []byte) (n int, ready bool, err error) {
	t.b, t.n, t.err = b, 0, nil // do returns at once if the connection is closed
	err = t.do(t.fun)
	t.b = nil
	if err == nil && t.err == syscall.EAGAIN {
		return 0, false, nil
	}
	if err == nil {
		err = t.err
	}
	return max(t.n, 0), true, err
}

// from writes n bytes at off of m, or as many as the socket has room for, and at least one if it may wait. It reports whether the
// memory is there.
func (t *try) from(m *memory, off, n uint64, wait bool) (done int, there bool, err error) {
	doErr := t.do(func(fd uintptr) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if there = m.buf != nil; !there {
			return true
		}
		for {
			done, err = syscall.Write(int(fd), m.buf[off:off+n])
			switch err {
			case syscall.EINTR:
			case syscall.EAGAIN:
				done, err = 0, nil
				return !wait
			default:
				return true
			}
		}
	})
	if err == nil {
		err = doErr
	}
	return max(done, 0), there, err
}
