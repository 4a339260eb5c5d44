package streamnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// Options describes a network. Scheme and Dial are required. The functions may be called
// concurrently.
type Options struct {
	// Scheme is the part of an address before "://". It must consist of lower-case letters and, after
	// the first character, also digits, '+', '-', and '.'.
	Scheme string

	// Dial connects to the peer with the given name, which is the part of its address after "://". It
	// may block. ctx is canceled when the session or the class is closed, and Dial must return soon
	// afterward. If the error matches codes.ErrAgain or codes.ErrPeerLost, the peer may accept soon:
	// na dials again after a pause, and calls wait. Any other error fails the calls with
	// codes.ErrUnreachable and the text of the error, and the name is dialed again only after a
	// pause.
	Dial func(ctx context.Context, name string) (net.Conn, error)

	// Listen listens at where, which is the part after "://" in the address with which the class is
	// opened and is not empty. name is the name for peers to dial: where or a replacement, for
	// example one containing the port chosen by the system. It must remain valid while the class is
	// open. The class closes the listener. An error without a code of package codes is reported as
	// codes.ErrAddrInUse if it is syscall.EADDRINUSE and as codes.ErrAddrInvalid otherwise. If Listen
	// is nil, classes can only dial.
	Listen func(where string) (l net.Listener, name string, err error)

	// Check returns an error if name cannot be the name of a peer. It must not block. An error
	// without a code of package codes is reported as codes.ErrInvalid. A peer must have only one
	// name, so Check should reject other spellings of it. If Check is nil, every name is valid.
	Check func(name string) error

	// Verify reports whether the peer of an accepted connection is the one listening at name, as its
	// HELLO claims. For TCP this is whether it connects from the same machine. Verify must not block.
	// If it returns true, calls to name also use this connection, and if two processes dial each
	// other at the same time, only one connection is kept. If Verify is nil or returns false, calls
	// in the other direction use a separate connection.
	Verify func(conn net.Conn, name string) bool

	// Secure reports whether every connection is encrypted and proves the peer's identity, because it
	// is a *tls.Conn or implements carrier.Prover.
	Secure bool

	// MaxHalfOpen limits the number of half-open connections, which are accepted connections whose
	// HELLO has not arrived. Zero means 256. At the limit, the oldest is closed once it has been
	// silent for 0.1 s, and the next connection waits for that.
	MaxHalfOpen int
	// HandshakeTimeout limits the time until the HELLO of an accepted connection has arrived,
	// including TLS, and the time for TLS on a dialed connection. Zero means 5 s.
	HandshakeTimeout time.Duration
	// WriteTimeout is how long a peer may read no data while data is waiting for it before its
	// session is closed. Zero means 10 s, or na.Config.PeerTimeout if that is longer.
	WriteTimeout time.Duration
}

// New returns a plugin for the network that opts describes. It does not validate opts. If they are
// invalid, na.Open returns an error that matches codes.ErrInvalid.
func New(opts Options) carrier.Plugin { return plugin{opts} }

const (
	defaultHandshake    = 5 * time.Second
	defaultWriteTimeout = 10 * time.Second
)

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (p plugin) Scheme() string { return p.opts.Scheme }

// validate returns an error that describes all invalid fields of o, or nil if there are none.
func (o *Options) validate() error {
	var errs []error
	require := func(ok bool, field, want string) {
		if !ok {
			errs = append(errs, codes.WithText(codes.ErrInvalid, fmt.Sprintf("streamnet: options of %q: %s is not valid, want %s", o.Scheme, field, want)))
		}
	}
	require(o.Dial != nil, "Dial", "a function")
	require(o.MaxHalfOpen >= 0, "MaxHalfOpen", "a number of connections, or 0 for 256")
	require(o.HandshakeTimeout >= 0, "HandshakeTimeout", "a duration, or 0 for 5s")
	require(o.WriteTimeout >= 0, "WriteTimeout", "a duration, or 0 for 10s")
	return errors.Join(errs...)
}

// Open implements carrier.Plugin.
func (p plugin) Open(class carrier.Class, where string) (*carrier.Network, error) {
	o := p.opts
	if err := o.validate(); err != nil {
		return nil, err
	}
	cfg := class.Config()
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = defaultHandshake
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = max(defaultWriteTimeout, cfg.PeerTimeout)
	}
	n := &network{Options: o}
	server := &netconn.Server{
		Class: class, Log: cfg.Logger, MaxHalfOpen: o.MaxHalfOpen, HandshakeTimeout: o.HandshakeTimeout, Begin: n.begin,
	}
	if o.Verify != nil {
		server.Verify = n.verify
	}
	if where != "" {
		l, name, err := n.listen(where)
		if err != nil {
			return nil, err
		}
		server.Listen(l)
		n.self = n.prefix() + name
	}
	transport := &netconn.Transport{Server: server, Dial: n.dial, Lost: lost}
	return &carrier.Network{
		Listen: n.self, Names: n, Close: server.Close, Secure: o.Secure, WriteTimeout: o.WriteTimeout,
		NewCarrier: func(core carrier.Core) (carrier.Carrier, error) { return netconn.New(transport, core) },
	}, nil
}

// A network is the plugin as opened for a class.
type network struct {
	Options
	self string // canonical name, or empty if the class does not listen
}

func (n *network) prefix() string { return n.Scheme + "://" }

// broken returns an error that reports that a function in the options has violated its contract as
// described by what.
func (n *network) broken(what string) error {
	return codes.WithText(codes.ErrInvalid, "streamnet: options of "+strconv.Quote(n.Scheme)+": "+what)
}

// listen calls Options.Listen and validates the name that it returns.
func (n *network) listen(where string) (net.Listener, string, error) {
	if n.Options.Listen == nil {
		return nil, "", codes.WithText(codes.ErrUnsupported, n.Scheme+": plugin cannot listen, open classes with "+n.prefix())
	}
	l, name, err := n.Options.Listen(where)
	if err != nil {
		code := codes.ErrAddrInvalid
		if errors.Is(err, syscall.EADDRINUSE) {
			code = codes.ErrAddrInUse
		}
		return nil, "", withCode(code, "listen on "+n.prefix()+where, err)
	}
	if l == nil {
		return nil, "", n.broken("Options.Listen returned neither a listener nor an error")
	}
	if err := n.Check(n.prefix() + name); err != nil {
		_ = l.Close()
		return nil, "", err
	}
	return l, name, nil
}

// dial connects to the peer with the given canonical name and, if the connection is a *tls.Conn,
// performs the TLS handshake.
func (n *network) dial(ctx context.Context, name, _ string) (net.Conn, error) {
	nc, err := n.Options.Dial(ctx, strings.TrimPrefix(name, n.prefix()))
	if err != nil {
		return nil, withCode(codes.ErrUnreachable, "dial", err)
	}
	if nc == nil {
		return nil, n.broken("Options.Dial returned neither a connection nor an error")
	}
	_ = nc.SetDeadline(time.Now().Add(n.HandshakeTimeout))
	c, err := secured(ctx, nc)
	if err != nil {
		_ = nc.Close()
		return nil, withCode(codes.ErrUnreachable, "TLS", err)
	}
	_ = nc.SetDeadline(time.Time{})
	return c, nil
}

// begin performs the TLS handshake on nc, an accepted connection, if nc is a *tls.Conn.
func (n *network) begin(nc net.Conn, _ time.Time) (net.Conn, error) {
	return secured(context.Background(), nc)
}

// verify reports whether the peer of nc is the one listening at the canonical name.
func (n *network) verify(nc net.Conn, name string) bool {
	rest, ok := strings.CutPrefix(name, n.prefix())
	if s, is := nc.(*tlsConn); is {
		nc = s.Conn
	}
	return ok && n.Verify(nc, rest)
}

// Check implements carrier.Names.
func (n *network) Check(name string) error {
	rest, ok := strings.CutPrefix(name, n.prefix())
	switch {
	case !ok || rest == "":
		return codes.WithText(codes.ErrInvalid, "address "+name+" is not one of "+n.prefix())
	case strings.HasPrefix(rest, "@"):
		return codes.WithText(codes.ErrUnreachable,
			"address "+name+" is of a process that does not listen")
	case n.Options.Check == nil:
		return nil
	}
	return withCode(codes.ErrInvalid, "address "+name, n.Options.Check(rest))
}

// Resolve implements carrier.Names. The text of an address is its name.
func (n *network) Resolve(text string, done func(name string, err error)) (cancel func()) {
	if err := n.Check(text); err != nil {
		done("", codes.WithText(codes.ErrInvalid, err.Error()))
	} else {
		done(text, nil)
	}
	return nil
}

// A tlsConn is a TLS connection whose handshake has completed.
type tlsConn struct {
	*tls.Conn
	proof carrier.Proof
}

// Proof implements carrier.Prover.
func (c *tlsConn) Proof() carrier.Proof { return c.proof }

// secured performs the TLS handshake on nc and returns a *tlsConn. If nc is not a *tls.Conn, it
// returns nc itself.
func secured(ctx context.Context, nc net.Conn) (net.Conn, error) {
	c, ok := nc.(*tls.Conn)
	if !ok {
		return nc, nil
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	s := &tlsConn{Conn: c}
	if s.proof.Secure = true; len(c.ConnectionState().VerifiedChains) > 0 {
		s.proof.Certificates = c.ConnectionState().VerifiedChains[0]
		s.proof.Name = carrier.NameOf(s.proof.Certificates[0])
	}
	return s, nil
}

// lost returns the error with which a session is closed if its connection fails with err.
func lost(err error) error { return withCode(codes.ErrPeerLost, "connection lost", err) }

// withCode returns err with what prepended to its text, and with code unless err has one of package
// codes.
func withCode(code codes.Code, what string, err error) error {
	if err == nil {
		return nil
	}
	if c, ok := errors.AsType[codes.Code](err); ok {
		code = c
	}
	return codes.WithText(code, what+": "+err.Error())
}
