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

// Options say how a process starts that finds the rest in its environment. All may be zero.
type Options struct {
	// Port is where rank 0 serves under Slurm without QS_RENDEZVOUS. Zero means DefaultPort.
	Port int
	// Timeout bounds the startup. Zero means a minute.
	Timeout time.Duration
	// TLS is for the connection to the server, ServerTLS for the server that rank 0 may have to run.
	TLS, ServerTLS *tls.Config
}

// Start joins the processes that were started together with this one; see FromEnv. It returns when all have joined. Without a
// launcher the process is the only one.
//
// With QS_RENDEZVOUS_KEY, server and members prove to each other that they know it. Without it, and without TLS that asks
// for certificates, whoever can reach the server can join.
func Start(ctx context.Context, o Options) (*Member, error) {
	return start(ctx, o, os.LookupEnv)
}

func start(ctx context.Context, o Options, lookup func(string) (string, bool)) (*Member, error) {
	p, err := FromEnv(lookup, cmp.Or(o.Port, DefaultPort))
	if err != nil {
		return nil, err
	}
	auth := protocol.Auth{None: p.Secret == nil, Secret: p.Secret}
	stop := func() {}
	if p.Serve {
		if stop, err = p.serve(ctx, ServerConfig{Size: p.Size, Auth: auth, TLS: o.ServerTLS, Startup: o.Timeout}); err != nil {
			return nil, err
		}
	}
	m, err := Join(ctx, Config{Addr: p.Addr, Rank: p.Rank, Size: p.Size, Auth: auth, TLS: o.TLS, Timeout: o.Timeout})
	if err != nil {
		stop()
		return nil, err
	}
	m.stop = stop
	return m, nil
}

// serve runs the server in this process until stop, which waits for its last words to the others.
func (p *Place) serve(ctx context.Context, cfg ServerConfig) (stop func(), err error) {
	listen := "127.0.0.1:0" // alone
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
		_ = Serve(ctx, l, cfg) // each member is told what went wrong, this one too
	}()
	return func() {
		cancel(ErrClosed)
		<-ended
	}, nil
}
