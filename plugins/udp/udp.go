package udp

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/inet"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

const scheme = "udp"

func init() { carrier.Register(New(Options{})) }

// Options configures the plugin. The zero value is ready to use.
type Options struct {
	// TLS encrypts every packet and authenticates peers, as in tcp.Options. The net.Conn passed to
	// its functions provides only addresses. Time spent in them counts toward the 5 s allowed for a
	// handshake. Nil means no TLS.
	TLS *tls.Config
	// Trusted permits listening on non-loopback addresses without TLS. Packets are then neither
	// encrypted nor authenticated, so every host on the network must be trusted. Setting the
	// environment variable QS_UDP_TRUSTED=1 has the same effect.
	Trusted bool
	// Profile is "modern" or "seed". If it is empty, QS_UDP_PROFILE is used. The default is
	// "modern".
	Profile string
	// Ack is "adaptive", "lazy" or "eager". If it is empty, QS_UDP_ACK is used. The default is
	// "adaptive".
	Ack string
	// Resolver looks up host names. Nil means net.DefaultResolver.
	Resolver Resolver
	// Portable makes a goroutine read the socket, even on systems where the context's poller could
	// read it.
	Portable bool
	// Unassisted disables the background poller. Peers are then served only during calls to
	// Progress. A Portable socket is read in either case.
	Unassisted bool
}

// A Resolver looks up the addresses of a host. *net.Resolver implements it.
type Resolver = inet.Resolver

// New returns a plugin with the given options, for use in na.Config.Plugins. Invalid options are
// reported by na.Open.
func New(opts Options) carrier.Plugin { return plugin{opts: opts} }

type plugin struct {
	opts Options
	tune func(d *domain) // set by tests; may be nil
}

// Scheme implements carrier.Plugin.
func (plugin) Scheme() string { return scheme }

// HostResolver returns Options.Resolver. Package qs uses it to look up the hosts in Peers.
func (p plugin) HostResolver() Resolver { return p.opts.Resolver }

// A domain holds the plugin's state for one class.
type domain struct {
	class   carrier.Class
	names   inet.Names
	start   time.Time
	log     *slog.Logger
	open    func(netip.AddrPort, *sharedSocket) (socket, error)
	profile arq.Profile
	ack     arq.AckMode
	session atomic.Uint64 // session number of the latest dial
	peers   int           // maximum number of peers of a context; 0 means the protocol's limit
	guard   *tlsAcceptor  // nil without TLS
	// shared is the socket used by all contexts. It is nil if the class does not listen, in which
	// case each context has a socket of its own.
	shared *sharedSocket
}

// Open implements carrier.Plugin.
func (p plugin) Open(class carrier.Class, rest string) (*carrier.Network, error) {
	cfg := class.Config()
	d := &domain{class: class, start: time.Now(), log: cfg.Logger, open: openPolled}
	d.session.Store(uint64(d.start.UnixNano()))
	if p.opts.Portable {
		d.open = openPortable
	}
	d.names.Scheme, d.names.Resolver = scheme, p.opts.Resolver
	if d.names.Resolver == nil {
		d.names.Resolver = net.DefaultResolver
	}
	or := func(v, env string) string {
		if v == "" {
			return os.Getenv(env)
		}
		return v
	}
	var err error
	if d.profile, err = arq.ParseProfile(or(p.opts.Profile, "QS_UDP_PROFILE")); err != nil {
		return nil, codes.WithText(codes.ErrInvalid, "udp: "+err.Error())
	}
	if d.ack, err = arq.ParseAckMode(or(p.opts.Ack, "QS_UDP_ACK")); err != nil {
		return nil, codes.WithText(codes.ErrInvalid, "udp: "+err.Error())
	}
	if want := secure.Validate(p.opts.TLS); want != "" {
		return nil, codes.WithText(codes.ErrInvalid, "udp: options: TLS.MaxVersion is "+tls.VersionName(p.opts.TLS.MaxVersion)+", want "+want)
	}
	if p.opts.TLS != nil && rest != "" {
		if err := secure.MayListen(scheme, p.opts.TLS); err != nil {
			return nil, err
		}
	}
	if d.guard, err = newTLSAcceptor(p.opts.TLS, d.log); err != nil {
		return nil, codes.WithText(codes.ErrInvalid, "udp: "+err.Error())
	}
	if p.tune != nil {
		p.tune(d)
	}
	d.names.Certify = secure.ByHost(p.opts.TLS)
	n := &carrier.Network{
		Exact: true, Names: &d.names, NewCarrier: d.newCarrier, Close: d.close,
		Unassisted: p.opts.Unassisted, Secure: p.opts.TLS != nil, WallClock: secure.WallClock(p.opts.TLS),
	}
	if rest != "" {
		if err := d.listen(rest, p.opts.Trusted || p.opts.TLS != nil || os.Getenv("QS_UDP_TRUSTED") == "1"); err != nil {
			return nil, err
		}
		n.Listen = d.names.Self
	}
	if d.names.Self == "" {
		d.names.Self = class.PrivateName(scheme)
	}
	return n, nil
}

// listen opens the shared socket and binds it to the address in rest. It returns an error if the
// address is not a loopback address, unless TLS is configured or trusted is true.
func (d *domain) listen(rest string, trusted bool) error {
	where, err := d.names.Where(rest)
	if err != nil {
		return err
	}
	if !where.Addr().IsLoopback() && !trusted {
		return codes.WithText(codes.ErrPermission, "listen on "+rest+": udp neither encrypts nor authenticates its packets, so beyond loopback "+
			"it needs TLS (Config.TLS, or udp.Options.TLS), or Options.Trusted or QS_UDP_TRUSTED=1 where the network is trusted")
	}
	d.shared = &sharedSocket{class: d.class, at: where, open: d.open, guard: d.guard, now: d.now}
	if err := d.shared.bind(); err != nil {
		return err
	}
	d.names.Bound = d.shared.at
	ap := d.names.Bound
	if ap.Addr().IsUnspecified() {
		ap = netip.AddrPortFrom(inet.Outward(ap.Addr()), ap.Port())
	}
	d.names.Self = inet.Canonical(scheme, ap)
	return nil
}

// now returns the time since the class was opened. It is monotonic and never zero.
func (d *domain) now() time.Duration { return time.Since(d.start) + 1 }

// close closes the shared socket, unless a context has already done so.
func (d *domain) close() error {
	if d.shared != nil {
		d.shared.close()
	}
	return nil
}
