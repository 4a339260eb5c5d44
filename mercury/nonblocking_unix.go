//go:build unix

package mercury

import (
	"net"
	"syscall"
)

// A nonblockingIO performs system calls for one direction of a socket, either reads or writes. It is not safe for
// concurrent use.
type nonblockingIO struct {
	rawIO   func(func(fd uintptr) bool) error   // syscall.RawConn.Read or Write
	syscall func(fd int, b []byte) (int, error) // syscall.Read or Write
	runFunc func(fd uintptr) bool               // runOnce as a method value, allocated once

	// These fields are the arguments and results of the current transfer.
	target buffer
	wait   bool
	n      int
	err    error
}

// newNonblockingIO returns the two directions of nc, or nil if nc is not a socket.
func newNonblockingIO(nc net.Conn) (write, read *nonblockingIO) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return nil, nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, nil
	}
	return newDirection(raw.Write, syscall.Write), newDirection(raw.Read, syscall.Read)
}

// newDirection returns a nonblockingIO that uses call, for which do waits until the socket is ready.
func newDirection(do func(func(fd uintptr) bool) error, call func(int, []byte) (int, error)) *nonblockingIO {
	t := &nonblockingIO{rawIO: do, syscall: call}
	t.runFunc = t.runOnce
	return t
}

// transfer reads or writes some of the bytes of p with a single system call. If the socket is not ready, it waits for
// the socket if wait is set, and otherwise returns with ready false. The error is errRevoked if the memory of p has
// been revoked. The lock of that memory is held during the system call, but not during the wait.
func (t *nonblockingIO) transfer(p buffer, wait bool) (n int, ready bool, err error) {
	// These results remain if rawIO does not call runOnce, which happens on a closed connection.
	t.target, t.wait, t.n, t.err = p, wait, 0, nil
	err = t.rawIO(t.runFunc)
	t.target = buffer{}
	if err == nil {
		err = t.err
	}
	if err == syscall.EAGAIN {
		return 0, false, nil
	}
	return max(t.n, 0), true, err
}

// runOnce performs the system call. It returns false if rawIO must wait for the socket and then call it again.
func (t *nonblockingIO) runOnce(fd uintptr) bool {
	b := t.target.b
	if m := t.target.mem; m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.buf == nil {
			t.err = errRevoked
			return true
		}
		b = m.buf[t.target.off : t.target.off+t.target.n]
	}
	for {
		if t.n, t.err = t.syscall(int(fd), b); t.err != syscall.EINTR {
			return t.err != syscall.EAGAIN || !t.wait
		}
	}
}
