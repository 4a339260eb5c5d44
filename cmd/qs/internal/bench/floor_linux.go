package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
)

// The floor is the minimum latency of a call. Two processes send size bytes back and forth over a TCP connection,
// without the frames, operations and callbacks of the library. To receive, each process polls the socket for the
// duration spin, and then sleeps in epoll_wait until data arrives.

// A floorEnd is one end of the TCP connection.
type floorEnd struct {
	fd, epfd int
	spin     time.Duration
}

// newFloorEnd takes over the connection nc, and uses its descriptor without the poller of package net.
func newFloorEnd(nc *net.TCPConn, spin time.Duration) (*floorEnd, error) {
	defer func() { _ = nc.Close() }()
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	e := &floorEnd{fd: -1, epfd: -1, spin: spin}
	if cerr := raw.Control(func(fd uintptr) { e.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil || err != nil {
		return nil, errors.Join(cerr, err)
	}
	if e.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, errors.Join(err, unix.Close(e.fd))
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN}
	if err := unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, e.fd, &ev); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *floorEnd) close() {
	_ = unix.Close(e.epfd)
	_ = unix.Close(e.fd)
}

// read reads exactly len(b) bytes. It polls for the duration spin before it sleeps.
func (e *floorEnd) read(b []byte) error {
	var events [1]unix.EpollEvent
	var begun time.Time
	for looks := 0; len(b) > 0; looks++ {
		n, err := unix.Read(e.fd, b)
		switch {
		case err == unix.EAGAIN:
			if looks == 0 {
				begun = time.Now()
			}
			if looks%8 == 7 && time.Since(begun) >= e.spin || e.spin <= 0 {
				if _, err := unix.EpollWait(e.epfd, events[:], -1); err != nil && err != unix.EINTR {
					return err
				}
				looks = -1
			}
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		default:
			b = b[n:]
			looks = -1
		}
	}
	return nil
}

// write writes all of b. It blocks while the socket buffer is full.
func (e *floorEnd) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(e.fd, b)
		switch {
		case err == unix.EAGAIN:
			room := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLOUT}}
			if _, err := unix.Poll(room, -1); err != nil && err != unix.EINTR {
				return err
			}
		case err != nil:
			return err
		default:
			b = b[n:]
		}
	}
	return nil
}

// Floor measures round trips to an echo process, which it starts and stops.
func (p *Perf) Floor(spin time.Duration) (r Result, err error) {
	c, err := self.Start(self.Ready, "floor", strconv.Itoa(p.Size), spin.String())
	if err != nil {
		return r, err
	}
	defer c.Stop()
	ap, err := netip.ParseAddrPort(strings.TrimPrefix(c.Addr, "tcp://"))
	if err != nil {
		return r, err
	}
	nc, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(ap))
	if err != nil {
		return r, err
	}
	e, err := newFloorEnd(nc, spin)
	if err != nil {
		return r, err
	}
	defer e.close()
	out, in := Pattern(p.Size), make([]byte, p.Size)
	lat := make([]time.Duration, 0, 1<<18)
	start := time.Now()
	for begun := start; p.goesOn(start.Add(p.Time)) || len(lat) == 0; {
		if err := errors.Join(e.write(out), e.read(in)); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
		now := time.Now()
		lat = append(lat, now.Sub(begun))
		begun = now
	}
	return floorResult("floor-tcp", start, lat, in)
}

// floorResult returns a Result for the latencies lat, measured since start. It returns an error if in, the last answer,
// is not the data that was sent.
func floorResult(peer string, start time.Time, lat []time.Duration, in []byte) (r Result, err error) {
	rate := float64(len(lat)) / time.Since(start).Seconds()
	if !isPattern(in) {
		return r, errors.New("floor: the response differs from the request")
	}
	slices.Sort(lat)
	return Result{Peer: peer, P50: Percentile(lat, 50), P99: Percentile(lat, 99), Rate: map[string]float64{"1": rate}}, nil
}

// floorArgs parses the two arguments of an echo process. The first is a size in bytes, and the second is parsed by
// parse and described by what.
func floorArgs[T any](args []string, what string, parse func(string) (T, error)) (size int, v T, err error) {
	if len(args) != 2 {
		return 0, v, errors.New("want a size and " + what)
	}
	if size, err = strconv.Atoi(args[0]); err == nil {
		v, err = parse(args[1])
	}
	return size, v, err
}

// acceptOne prints the address of l and accepts one connection. If standard input is closed because the parent process
// has exited, it calls clean and exits.
func acceptOne(l net.Listener, out io.Writer, clean func()) (net.Conn, error) {
	fmt.Fprintln(out, self.Ready+l.Addr().Network()+"://"+l.Addr().String())
	go func() { // the parent process has exited
		_, _ = io.Copy(io.Discard, os.Stdin)
		clean()
		os.Exit(0)
	}()
	return l.Accept()
}

// EchoTCP runs the echo process of Floor. It accepts one connection and returns all data to the sender.
func EchoTCP(args []string, out io.Writer) error {
	size, spin, err := floorArgs(args, "a time to spin", time.ParseDuration)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	nc, err := acceptOne(l, out, func() {})
	if err != nil {
		return err
	}
	e, err := newFloorEnd(nc.(*net.TCPConn), spin)
	if err != nil {
		return err
	}
	defer e.close()
	for b := make([]byte, size); ; {
		if err := e.read(b); err != nil {
			return nil // the measurement is complete and the connection has been closed
		}
		if err := e.write(b); err != nil {
			return err
		}
	}
}
