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

// A portable is a socket that a goroutine reads.
type portable struct {
	shared *sharedSocket
	conn   *net.UDPConn
	done   chan struct{} // closed when the reader has ended; nil: there is none
}

// openPortable binds a socket; an address without an IP is every address of the machine.
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
	return &portable{shared: d, conn: conn}, nil
}

func (s *portable) addr() netip.AddrPort {
	return inet.Unmapped(s.conn.LocalAddr().(*net.UDPAddr).AddrPort())
}

// room implements socket. It is not known what the system has given.
func (s *portable) room() int { return bufferSize }

func (s *portable) watch(*contextCarrier) error {
	if s.done == nil {
		s.done = make(chan struct{})
		go s.read()
	}
	return nil
}

func (s *portable) unwatch(*contextCarrier) {}

// read gives the shared socket what arrives. Errors are about datagrams that were sent, and say nothing about the next one.
func (s *portable) read() {
	defer close(s.done)
	b := make([]byte, arq.MaxSize)
	var in [1]arrival
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			in[0].b, in[0].from = b[:n], inet.Unmapped(from)
			s.take(in[:])
			if raceflag.Enabled {
				spoil(b[:n])
			}
		}
	}
}

// take gives datagrams to their contexts.
func (s *portable) take(in []arrival) {
	defer s.shared.class.Rescue(func(error) {})
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.shared.route(in)
}

// send implements socket. It may wait for a full buffer of the system to be emptied into a network.
func (s *portable) send(o *outbox) {
	for i := range o.list {
		if _, err := s.conn.WriteToUDPAddrPort(o.list[i].b, o.list[i].to); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			if why, ok := errors.AsType[syscall.Errno](err); ok {
				err = why
			}
			o.refuse(o.list[i], err)
		}
	}
}

// retries implements socket: a dial that nobody answers ends within 1.6 s.
func (s *portable) retries() int { return 4 }

func (s *portable) close() {
	_ = s.conn.Close()
	if s.done != nil {
		<-s.done
	}
}
