package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// A portableSocket is a connection of the portable carrier, with TLS or without.
type portableSocket interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// A portableTLS is one with TLS. Deadlines are those of the socket.
type portableTLS struct {
	*secured
	nc *net.TCPConn
}

// Close says close_notify, as far as the deadline for writing allows it, and closes the socket.
func (c *portableTLS) Close() error {
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastGrace))
	_ = c.CloseWrite()
	return c.nc.Close()
}

// SetReadDeadline implements portableSocket.
func (c *portableTLS) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline implements portableSocket.
func (c *portableTLS) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// begin has a peer that connected begin TLS, if that is asked for.
func (d *domain) begin(nc *net.TCPConn, due time.Time) (portableSocket, error) {
	if d.sec == nil {
		return nc, nil
	}
	t, err := d.sec.serve(nc, nc.RemoteAddr(), due)
	if err != nil {
		return nil, err
	}
	return &portableTLS{t, nc}, nil
}

// turnAway tells a peer why it is not let in. pc is what begin returned.
func (d *domain) turnAway(nc *net.TCPConn, pc portableSocket, err error) {
	t, _ := pc.(*portableTLS)
	switch _, ours := errors.AsType[na.Code](err); {
	case t != nil:
		turnAway(nc, t.secured, err)
	case d.sec != nil:
		turnAway(nc, nil, err)
	case ours: // it has said something, and not what it should
		_, _ = nc.Write(engine.Goaway(err))
	}
}

// dialTLS begins TLS on a connection that was dialled, and closes it when that fails.
func (d *domain) dialTLS(ctx context.Context, nc *net.TCPConn, name string) (portableSocket, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	t, err := d.sec.dial(nc, name)
	if stop(); err != nil {
		_ = nc.Close()
		return nil, insecure(err)
	}
	_ = nc.SetDeadline(time.Time{})
	return &portableTLS{t, nc}, nil
}

// Proof implements engine.Prover.
func (c *portableConn) Proof() na.Identity {
	if t, ok := c.nc.(*portableTLS); ok {
		return t.who
	}
	return na.Identity{}
}

var _ engine.Prover = (*portableConn)(nil)
