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

// Options configures Start. The zero value is valid.
type Options struct {
	// Port is the port of the server that rank 0 runs under Slurm if QS_RENDEZVOUS is not set. Zero means
	// DefaultPort.
	Port int
	// Timeout is the time limit for the startup. Zero means one minute.
	Timeout time.Duration
	// TLS configures the connection to the server, and ServerTLS the server that rank 0 may have to run.
	TLS, ServerTLS *tls.Config
}

// Start joins the processes that were started together with this one, as described by the environment (see FromEnv).
// It blocks until all have joined. Without a launcher, the process is the only one.
//
// If QS_RENDEZVOUS_KEY is set, the server and the members authenticate each other with that key. If it is not, and
// TLS with client certificates is not used either, any process that can reach the server can join.
func Start(ctx context.Context, o Options) (*Member, error) {
	return startWith(ctx, o, os.LookupEnv)
}

// startWith implements Start with a given environment.
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

// startServer runs the server in this process until stop is called. stop blocks until the last bytes have been sent
// to the other members.
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
		_ = Serve(ctx, l, cfg) // every member receives the error from the server, including this one
	}()
	return func() {
		cancel(ErrClosed)
		<-ended
	}, nil
}
