package rendezvous

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// Options configure Start. The zero value works.
type Options struct {
	// Port is the port of the server of rank 0 under Slurm, if QS_RENDEZVOUS is not set. Zero means DefaultPort.
	Port int
	// Timeout is how long the startup may take. Zero means a minute.
	Timeout time.Duration
	// TLS is for the connection to the server, ServerTLS for the server that rank 0 may have to run.
	TLS, ServerTLS *tls.Config
}

// Start joins the processes that were started together with this one, which the environment describes; see FromEnv. It
// blocks until all have joined. Without a launcher the process is the only one.
//
// With QS_RENDEZVOUS_KEY, server and members authenticate each other with that key. Without it, and without TLS with
// client certificates, every process that can reach the server can join.
func Start(ctx context.Context, o Options) (*Member, error) {
	return startWith(ctx, o, os.LookupEnv)
}

// startWith is Start with another environment.
func startWith(ctx context.Context, o Options, lookup func(string) (string, bool)) (*Member, error) {
	p, err := FromEnv(lookup, cmp.Or(o.Port, DefaultPort))
	if err != nil {
		return nil, err
	}
	auth := protocol.Auth{None: p.Secret == nil, Secret: p.Secret}
	stop := func() {}
	if p.Serve {
		if stop, err = p.startServer(ctx, ServerConfig{Size: p.Size, Auth: auth, TLS: o.ServerTLS, Startup: o.Timeout}); err != nil {
			return nil, err
		}
	}
	m, err := Join(ctx, Config{Addr: p.Addr, Rank: p.Rank, Size: p.Size, Auth: auth, TLS: o.TLS, Timeout: o.Timeout})
	if err != nil {
		stop()
		return nil, err
	}
	m.stopServer = stop
	return m, nil
}

// startServer runs the server in this process until stop is called, which waits until the last bytes were sent to the
// other members.
func (p *Place) startServer(ctx context.Context, cfg ServerConfig) (stop func(), err error) {
	listen := "127.0.0.1:0" // there is no other member
	if p.Addr != "" {
		_, port, err := net.SplitHostPort(p.Addr)
		if err != nil {
			return nil, fmt.Errorf("rendezvous: %w", err)
		}
		listen = ":" + port
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("rendezvous: %w", err)
	}
	if p.Addr == "" {
		p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = Serve(ctx, l, cfg) // every member gets the error from the server, this one too
	}()
	return func() {
		cancel(ErrClosed)
		<-ended
	}, nil
}
