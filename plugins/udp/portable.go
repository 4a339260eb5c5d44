package udp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A goroutineSocket is a socket that is read by a dedicated goroutine rather than by the contexts'
// pollers.
type goroutineSocket struct {
	shared *sharedSocket
	conn   *net.UDPConn
	done   chan struct{} // closed when the reading goroutine has exited; nil if none was started
}

// openPortable opens a goroutineSocket and binds it to where. If where has no IP address, the
// socket is bound to all of the machine's addresses.
func openPortable(where netip.AddrPort, d *sharedSocket) (socket, error) {
	network := "udp"
	if where.Addr().Is4() {
		network = "udp4"
	}
	at, err := net.ResolveUDPAddr(network, addrText(where))
	if err != nil {
		return nil, bindError(where, err)
	}
	conn, err := net.ListenUDP(network, at)
	if err != nil {
		return nil, bindError(where, err)
	}
	_ = conn.SetReadBuffer(bufferSize)
	_ = conn.SetWriteBuffer(bufferSize)
	return &goroutineSocket{shared: d, conn: conn}, nil
}

func (s *goroutineSocket) localAddr() netip.AddrPort {
	return inet.Unmapped(s.conn.LocalAddr().(*net.UDPAddr).AddrPort())
}

// bufferSize implements socket. It returns the requested size, because package net does not report
// the size that the system has granted.
func (s *goroutineSocket) bufferSize() int { return bufferSize }

func (s *goroutineSocket) watch(*contextCarrier) error {
	if s.done == nil {
		s.done = make(chan struct{})
		go s.read()
	}
	return nil
}

func (s *goroutineSocket) unwatch(*contextCarrier) {}

// read passes received datagrams to the shared socket until the socket is closed. It ignores all
// other errors, because they concern datagrams that were sent.
func (s *goroutineSocket) read() {
	defer close(s.done)
	b := make([]byte, arq.MaxSize)
	var in [1]inboundDatagram
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			in[0].b, in[0].from = b[:n], inet.Unmapped(from)
			s.dispatch(in[:])
			if raceflag.Enabled {
				poisonMemory(b[:n])
			}
		}
	}
}

// dispatch passes the datagrams in to their contexts through the shared socket.
func (s *goroutineSocket) dispatch(in []inboundDatagram) {
	defer s.shared.class.Rescue(func(error) {})
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.shared.routeDatagrams(in)
}

// send implements socket. It may block while the system's send buffer is full.
func (s *goroutineSocket) send(o *outbox) {
	for i := range o.list {
		if _, err := s.conn.WriteToUDPAddrPort(o.list[i].b, o.list[i].to); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			if why, ok := errors.AsType[syscall.Errno](err); ok {
				err = why
			}
			o.noteFailure(o.list[i], err)
		}
	}
}

// retriesRefused implements socket. With four retries, an unanswered dial fails within 1.6 s.
func (s *goroutineSocket) retriesRefused() int { return 4 }

// hasInput implements socket. The goroutine of the socket reads what arrives.
func (s *goroutineSocket) hasInput() bool { return false }

func (s *goroutineSocket) close() {
	_ = s.conn.Close()
	if s.done != nil {
		<-s.done
	}
}
