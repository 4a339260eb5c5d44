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

// Options holds what the plugin can be told. The zero value works.
type Options struct {
	// Advertise is the address that peers are told to dial when it is not the one that is bound, for example behind a
	// network address translator: an IP address, with a port or with that of the listening socket. Empty means the
	// address that is bound; if that is a wildcard, the address of the machine that its default route uses.
	Advertise string
	// ReusePort gives each context a listening socket of its own on the same port, so that the kernel spreads new
	// connections over them. The first is bound exclusively and then opened to siblings of the same user. It helps
	// where many connections are made on many cores. Not on Windows.
	ReusePort bool
	// Spread is the number of contexts over which peers are spread that connect to the address without a number: each context
	// of a peer always reaches the same one. Nobody is let in before so many contexts have been made. Zero means that they reach
	// the first.
	Spread int
	// Portable reads with goroutines even where the context's poller could.
	Portable bool
	// Unassisted leaves a context alone that nobody drives: peers are served only inside Progress. Not with Portable.
	Unassisted bool
	// Listener is used to listen, instead of a socket that the plugin binds: one that systemd or another process has handed over. The
	// class owns it once it is open: one that somebody else closes lets nobody in any more, which is logged, and Serve goes on with who is there. The address to open is that of the socket, or "tcp://:0". Not with ReusePort.
	Listener *net.TCPListener
	// Control is called for each socket before it is bound or connected, as net.ListenConfig.Control is: for options of sockets. Sockets of
	// Listener are as they are.
	Control func(network, address string, c syscall.RawConn) error
	// Resolver looks up host names. Nil means net.DefaultResolver.
	Resolver Resolver
	// MaxHalfOpen bounds the connections that came in and have not said HELLO. Zero means 256. When there
	// are as many, the oldest is closed after 0.1 s of silence, and the next waits for that. With TLS one
	// that has taken too long counts until the function of the program that it is in, if any, has returned.
	MaxHalfOpen int
	// HandshakeTimeout is how long a connection that came in may take to say HELLO, and how long TLS may take to begin on
	// one that was dialled. Zero means 5 s.
	HandshakeTimeout time.Duration
	// WriteTimeout is how long a peer may take nothing of what there is for it before the session with it ends. It is about
	// peers that still send, to which PeerTimeout does not apply. Zero means 10 s, or PeerTimeout if that is longer.
	WriteTimeout time.Duration
	// TLS has every connection of the class use TLS 1.3. Nil means no TLS. Both sides must agree: a side that meets the
	// other kind refuses it, with an error that says so.
	//
	// One configuration serves both roles. Certificates (or GetCertificate) are shown to those who connect, and to those
	// who are dialled and ask. RootCAs says who may be dialled; ClientAuth and ClientCAs say who may connect. A certificate
	// must carry the host that the address was looked up by: its DNS name, or the IP address if the text has one; with ServerName
	// that name instead, whatever is dialled. There is one session for each IP address and port: a second name of it is looked for in
	// the certificate of the session that is there, so a server cannot choose between certificates by the name that is asked for.
	// Addresses that come without a name (those in bulk handles, and of peers that connect) need the IP address in the
	// certificate. A chain of more than 5 KiB is refused by who listens. It counts as verified (carrier.Proof), with its chain, when package tls has verified it; alone, when
	// only VerifyConnection or VerifyPeerCertificate has let it pass: those of the configuration that GetConfigForClient
	// returned, if it did.
	//
	// The configuration is copied. Whatever it says, versions before 1.3 are refused, the protocol (ALPN) is
	// "quicksilver/1", and nothing is resumed: every connection proves anew who the peer is (na.Context.Identity). Functions
	// in it run on goroutines of the plugin, several at a time, and count towards HandshakeTimeout. A panic in one, or an end of
	// its goroutine, ends that connection.
	TLS *tls.Config
	// KeepAlive is how long a connection is idle before the system probes it; when no probe is answered for as long again, and
	// for 3 s at least, the connection ends. Zero means 10 s, negative means never. It finds machines that are gone; processes
	// that hang are found by na.Config's PeerTimeout.
	KeepAlive time.Duration
}

// A Resolver finds the addresses of a host. *net.Resolver is one.
type Resolver = inet.Resolver

// New returns a plugin with options of its own, for na.Config.Plugins. Bad options are reported by na.Open.
func New(opts Options) carrier.Plugin { return plugin{opts} }

type plugin struct{ opts Options }

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// HostResolver returns Options.Resolver. Package qs looks up the hosts of Peers with it.
func (p plugin) HostResolver() Resolver { return p.opts.Resolver }

// validate reports every bad field at once.
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
		bad("ReusePort", o.ReusePort, "false on Windows, where a shared port can be stolen by any process")
	}
	if o.ReusePort && o.Listener != nil {
		bad("ReusePort", o.ReusePort, "false with a Listener: its port is not ours to share")
	}
	if o.Spread < 0 || o.Spread > 256 {
		bad("Spread", o.Spread, "a number of contexts up to 256, or 0")
	}
	if o.MaxHalfOpen < 0 {
		bad("MaxHalfOpen", o.MaxHalfOpen, "a number of connections, or 0 for 256")
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

// withDefaults returns o with every zero field set.
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

// maxTime is as good as never, and sums of it do not overflow.
const maxTime time.Duration = math.MaxInt64 / 4

const defaultWriteTimeout = 10 * time.Second

// probes returns the parameters of the system's keepalive, and how long sent data may stay unacknowledged: as long as
// the probes of an idle connection take, and no less than a peer may be silent, or take nothing. Ten probes, because of three on a network that
// loses a fifth of its packets each way one time in twenty none is answered.
func (o *Options) probes(peerTimeout time.Duration) (keep net.KeepAliveConfig, userTimeout time.Duration) {
	if o.KeepAlive < 0 {
		return net.KeepAliveConfig{Enable: false}, 0
	}
	idle := max(o.KeepAlive, time.Second)
	each := max(idle/10, time.Second)
	count := max(int(idle/each), 3)
	keep = net.KeepAliveConfig{Enable: true, Idle: idle, Interval: each, Count: count}
	userTimeout = max(idle+each*time.Duration(count+1), peerTimeout+each)
	if o.WriteTimeout > defaultWriteTimeout { // the system counts a window that is shut, too
		userTimeout = max(userTimeout, o.WriteTimeout+each)
	}
	return keep, userTimeout
}

// A domain is the plugin opened by a class: its name and its listening sockets.
type domain struct {
	opts  Options
	sec   *security // nil without TLS
	log   *slog.Logger
	class carrier.Class
	names inet.Names

	peerTimeout time.Duration // of na.Config
	poller      bool          // contexts have one

	server *netconn.Server
}

// Open implements carrier.Plugin.
func (p plugin) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	if err := p.opts.validate(); err != nil {
		return nil, err
	}
	cfg := class.Config()
	patience := cfg.PeerTimeout
	d := &domain{class: class, opts: p.opts.withDefaults(patience), poller: cfg.Poller, peerTimeout: patience, log: cfg.Logger}
	d.names.Scheme, d.names.Resolver = scheme, d.opts.Resolver
	if d.sec = newSecurity(&d.opts, d.log); d.sec != nil && rest != "" {
		if err := secure.MayListen(scheme, d.sec.own); err != nil {
			return nil, err
		}
	}
	d.names.Certify = d.sec != nil && secure.ByHost(d.sec.own)
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
		n.NewCarrier = d.newPolled
	}
	if d.names.Self == "" {
		d.names.Self = class.PrivateName(scheme)
	}
	return n, nil
}

// usePoller reports whether sockets are read by the goroutine that leads Progress.
func (d *domain) usePoller() bool { return d.poller && !d.opts.Portable }

// newPortable makes the carrier of a context whose sockets have goroutines.
func (d *domain) newPortable(core carrier.Core) (carrier.Carrier, error) {
	return netconn.New(&netconn.Transport{
		Server: d.server,
		Dial: func(ctx context.Context, name, host string) (net.Conn, error) {
			s, err := d.connect(ctx, name, host)
			if err != nil {
				return nil, err // not a *socket that is nil
			}
			return s, nil
		},
		Lost: func(err error) error { return lost("connection lost", err) },
	}, core)
}

// unreachable is the error of a connection that could not be made.
func unreachable(what string, err error) error {
	return codes.WithText(codes.ErrUnreachable, what+": "+secure.Innermost(err))
}

// lost is the error of a connection that has ended. One that the peer's TLS has refused is refused at every attempt.
func lost(what string, err error) error {
	code := codes.ErrPeerLost
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		code, what = codes.ErrPermission, "TLS"
	}
	return codes.WithText(code, what+": "+secure.Reason(err))
}
