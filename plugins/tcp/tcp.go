package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
)

const scheme = "tcp"

func init() { carrier.Register(New(Options{})) }

// Options configures the plugin. The zero value is ready to use.
type Options struct {
	// Advertise is the address that peers dial, if it differs from the bound address, for example behind a network
	// address translator. It is an IP address, optionally with a port. The port defaults to that of the listening
	// socket. If Advertise is empty, peers dial the bound address or, if that is a wildcard, the machine's address on
	// its default route.
	Advertise string
	// ReusePort gives each context its own listening socket on the same port, so that the kernel distributes new
	// connections among them. The first socket is bound exclusively and then shared with sockets of the same user.
	// ReusePort helps if many connections are made and many cores are available. It is not available on Windows.
	ReusePort bool
	// Spread is the number of contexts among which to distribute peers that connect to the address without a context
	// number. Each context of a peer always reaches the same context of this class. No connection is accepted until
	// Spread contexts exist. The maximum is 256. Zero means that all such peers reach the first context.
	Spread int
	// Portable makes each connection use two goroutines, even if its context has a poller.
	Portable bool
	// Unassisted disables background polling of a context that no goroutine drives. Peers are then served only during
	// calls to Progress. It has no effect with Portable.
	Unassisted bool
	// Listener is a socket to listen on, for example one inherited from systemd, instead of one that the plugin binds.
	// The host and the port to open must each be that of the socket or unspecified, as in "tcp://:0". Listener cannot
	// be combined with ReusePort.
	//
	// The open class owns the socket. Other processes may share it: a class that is draining stops accepting from it
	// and leaves later connections to those processes. If the program closes the socket anyway, the failure is logged,
	// no further peers can connect, and existing connections continue.
	Listener *net.TCPListener
	// Control, if not nil, is called for each socket before it is bound or connected, to set socket options. See
	// net.ListenConfig.Control. It is not called for Listener.
	Control func(network, address string, c syscall.RawConn) error
	// Resolver looks up host names. Nil means net.DefaultResolver.
	Resolver Resolver
	// MaxHalfOpen is the maximum number of half-open connections, which are accepted connections whose HELLO has not
	// arrived. Zero means 256. When the limit is reached, the next connection waits until the oldest one is 0.1 s old,
	// which is then closed. With TLS, a closed connection still counts while a function of the tls.Config runs for it.
	MaxHalfOpen int
	// HandshakeTimeout limits the time from accepting a connection until its HELLO arrives, and the duration of the TLS
	// handshake on a dialed connection. Zero means 5 s.
	HandshakeTimeout time.Duration
	// WriteTimeout is the time after which a session is closed if bytes are waiting to be sent and the peer accepts
	// none of them. It applies even to peers that still send, to which PeerTimeout does not apply. Zero means 10 s,
	// or PeerTimeout if that is longer.
	WriteTimeout time.Duration
	// TLS makes every connection of the class use TLS 1.3. Nil means no TLS. Both sides must agree. Otherwise each
	// rejects the other with an error that says so.
	//
	// One configuration serves both roles. Certificates (or GetCertificate) are presented to peers that connect, and to
	// dialed peers that request one. RootCAs verify dialed peers. ClientAuth and ClientCAs verify peers that connect.
	//
	// The certificate of a dialed peer must be valid for the host by which the address was looked up: its DNS name, or
	// its IP address if the text contains one. If ServerName is set, the certificate must always be valid for that
	// name. Addresses without a host name (those in bulk handles, and those of peers that connect) require the IP
	// address in the certificate. There is one session for each IP address and port. A second host name for it is
	// checked against the certificate of the existing session, so a server cannot select certificates by the requested
	// name. A listener rejects a certificate chain of more than 5 KiB.
	//
	// The certificate counts as verified, together with its chain (see carrier.Proof), if package tls has verified it.
	// It counts as verified without a chain if only VerifyConnection or VerifyPeerCertificate has accepted it. If
	// GetConfigForClient is set and returns a configuration, the functions of that configuration count.
	//
	// The configuration is copied. Regardless of its contents, versions before 1.3 are rejected, the protocol (ALPN) is
	// "quicksilver/1", and sessions are not resumed, so that every connection authenticates the peer anew
	// (na.Context.Identity). Its functions run on goroutines of the plugin, possibly concurrently, and count toward
	// HandshakeTimeout. If one panics or calls runtime.Goexit, that connection is closed.
	TLS *tls.Config
	// KeepAlive is the time for which a connection may be idle before the system probes it. If no probe is answered for
	// the same time again, and for at least 3 s, the connection fails. Zero means 10 s. A negative value disables
	// probing. KeepAlive detects machines that have disappeared, whereas na.Config.PeerTimeout detects processes that
	// hang.
	KeepAlive time.Duration
}

// A Resolver looks up the addresses of a host. *net.Resolver implements it.
type Resolver = inet.Resolver

// New returns a plugin with the given options, for use in na.Config.Plugins. Invalid options are reported by na.Open.
func New(opts Options) carrier.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// HostResolver returns Options.Resolver. Package qs uses it to look up the hosts in Peers.
func (p plugin) HostResolver() Resolver { return p.opts.Resolver }

// validate returns a single error that describes all invalid fields.
func (o *Options) validate() error {
	var errs []error
	bad := func(field string, v any, want string) {
		errs = append(errs, codes.WithText(codes.ErrInvalid, fmt.Sprintf("tcp: options: %s is %v, want %s", field, v, want)))
	}
	if o.Advertise != "" {
		if _, err := parseAdvertise(o.Advertise, 1); err != nil {
			bad("Advertise", o.Advertise, "an IP address, or IP:port")
		}
	}
	if o.ReusePort && runtime.GOOS == "windows" {
		bad("ReusePort", o.ReusePort, "false on Windows")
	}
	if o.ReusePort && o.Listener != nil {
		bad("ReusePort", o.ReusePort, "false with a Listener")
	}
	if o.Spread < 0 || o.Spread > 256 {
		bad("Spread", o.Spread, "0 to 256")
	}
	if o.MaxHalfOpen < 0 {
		bad("MaxHalfOpen", o.MaxHalfOpen, "a positive number, or 0 for 256")
	}
	if o.HandshakeTimeout < 0 {
		bad("HandshakeTimeout", o.HandshakeTimeout, "a duration, or 0 for 5s")
	}
	if o.WriteTimeout < 0 {
		bad("WriteTimeout", o.WriteTimeout, "a duration, or 0 for 10s")
	}
	if want := secure.Validate(o.TLS); want != "" {
		bad("TLS.MaxVersion", tls.VersionName(o.TLS.MaxVersion), want)
	}
	return errors.Join(errs...)
}

// withDefaults returns a copy of o in which zero fields have their defaults.
func (o Options) withDefaults(peerTimeout time.Duration) Options {
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.MaxHalfOpen == 0 {
		o.MaxHalfOpen = 256
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 5 * time.Second
	}
	o.HandshakeTimeout = min(o.HandshakeTimeout, maxTime)
	if o.WriteTimeout == 0 {
		o.WriteTimeout = max(defaultWriteTimeout, peerTimeout)
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 10 * time.Second
	}
	return o
}

// maxTime is the maximum of the durations in Options. It prevents sums of them from overflowing.
const maxTime time.Duration = math.MaxInt64 / 4

const defaultWriteTimeout = 10 * time.Second

// keepaliveParams returns the keepalive parameters of a socket, and userTimeout, the time for which sent data may
// remain unacknowledged (TCP_USER_TIMEOUT). userTimeout is the time after which keepalive probes fail on an idle
// connection, but at least PeerTimeout and WriteTimeout.
//
// About ten probes are sent. On a network that drops a fifth of the packets in each direction, all of only three probes
// would be lost one time in twenty.
func (o *Options) keepaliveParams(peerTimeout time.Duration) (keep net.KeepAliveConfig, userTimeout time.Duration) {
	if o.KeepAlive < 0 {
		return net.KeepAliveConfig{Enable: false}, 0
	}
	idle := max(o.KeepAlive, time.Second)
	each := max(idle/10, time.Second)
	count := max(int(idle/each), 3)
	keep = net.KeepAliveConfig{Enable: true, Idle: idle, Interval: each, Count: count}
	userTimeout = max(idle+each*time.Duration(count+1), peerTimeout+each)
	if o.WriteTimeout > defaultWriteTimeout { // the system applies TCP_USER_TIMEOUT even while the peer's window is closed
		userTimeout = max(userTimeout, o.WriteTimeout+each)
	}
	return keep, userTimeout
}

// A domain is the state of the plugin for one class.
type domain struct {
	opts     Options
	security *security // nil without TLS
	log      *slog.Logger
	class    carrier.Class
	names    inet.Names

	peerTimeout time.Duration // na.Config.PeerTimeout
	hasPoller   bool          // the contexts of the class have pollers

	server *netconn.Server
}

// Open implements carrier.Plugin.
func (p plugin) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	if err := p.opts.validate(); err != nil {
		return nil, err
	}
	cfg := class.Config()
	patience := cfg.PeerTimeout
	d := &domain{class: class, opts: p.opts.withDefaults(patience), hasPoller: cfg.Poller, peerTimeout: patience, log: cfg.Logger}
	d.names.Scheme, d.names.Resolver = scheme, d.opts.Resolver
	if d.security = newSecurity(&d.opts, d.log); d.security != nil && rest != "" {
		if err := secure.MayListen(scheme, d.security.config); err != nil {
			return nil, err
		}
	}
	d.names.Certify = d.security != nil && secure.ByHost(d.security.config)
	listener, err := d.listen(rest)
	if err != nil {
		return nil, err
	}
	d.server = d.newServer()
	n := &carrier.Network{
		Names: &d.names, NewCarrier: d.newPortable, Close: d.server.Close,
		Unassisted: d.opts.Unassisted, Secure: d.opts.TLS != nil, WallClock: secure.WallClock(d.opts.TLS), WriteTimeout: d.opts.WriteTimeout,
	}
	if listener != nil {
		n.Listen = d.names.Self
		d.server.Listen(listener)
	}
	if d.usePoller() {
		n.NewCarrier = d.newEpollCarrier
	}
	if d.names.Self == "" {
		d.names.Self = class.PrivateName(scheme)
	}
	return n, nil
}

// usePoller reports whether the goroutine that polls a context also reads its sockets.
func (d *domain) usePoller() bool { return d.hasPoller && !d.opts.Portable }

// newPortable returns a carrier that uses two goroutines for each connection.
func (d *domain) newPortable(core carrier.Core) (carrier.Carrier, error) {
	return netconn.New(&netconn.Transport{
		Server: d.server,
		Dial: func(ctx context.Context, name, host string) (net.Conn, error) {
			s, err := d.connect(ctx, name, host)
			if err != nil {
				return nil, err // a nil *socket would be a non-nil net.Conn
			}
			return s, nil
		},
		Lost: func(err error) error { return lostError("connection lost", err) },
	}, core)
}

// unreachableError returns the error for a dial that failed with err. action describes what failed.
func unreachableError(action string, err error) error {
	return codes.WithText(codes.ErrUnreachable, action+": "+secure.Innermost(err))
}

// lostError returns the error for a connection that failed with err. If err is a TLS alert sent by the peer, the code
// is ErrPermission, because the peer would also reject further attempts. action describes what failed.
func lostError(action string, err error) error {
	code := codes.ErrPeerLost
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		code, action = codes.ErrPermission, "TLS"
	}
	return codes.WithText(code, action+": "+secure.Reason(err))
}
