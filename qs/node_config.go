package qs

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all" // every transport
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// A Config configures a node. The zero value works.
type Config struct {
	// TLS, if set, is used for all connections of "tcp://" and all packets of "udp://": TLS 1.3,
	// with one configuration as client and server. Nil means what TCP says, and no TLS if that is
	// nil, too. Both sides must agree. Every other scheme refuses it: "sm://" needs none, since
	// only processes of one user can open its memory.
	TLS *tls.Config
	// Local says when a node on two transports ("tcp://:7000,sm://") uses the second one for peers
	// on this machine: na.LocalAuto, the default, unless TLS is on; na.LocalNever; na.LocalAlways.
	Local na.Local
	// TCP has the other options of "tcp://". The node fills in TLS and, with several Contexts,
	// ReusePort and Spread.
	TCP tcp.Options
	// PeerTimeout is how long a peer may be silent while calls wait for it, or are handled for it,
	// before it counts as lost. Zero means 5 s; the least is 500 ms.
	PeerTimeout time.Duration
	// IdleTimeout is the time after which an idle session that this node has dialed ends, if its
	// peer agrees; the next call connects again. Zero means 5 minutes, and never for a node that
	// serves methods but does not listen. Negative means never. See [na.Config].
	IdleTimeout time.Duration
	// CertificateGrace is how long calls in flight may continue in a session after a certificate of
	// it has expired, this node's or the peer's. Later calls connect again, with the current
	// certificates (those in the files of LoadTLS). If these are valid no call fails. Otherwise
	// calls fail with ErrUnreachable or ErrPermission and NotRun, and name the certificate. Each
	// node checks the certificate of its peer, and either may end the session.
	//
	// Zero means 1 minute. Negative means that sessions outlive the certificates of their peers.
	// Without TLS it has no effect.
	CertificateGrace time.Duration
	// CallTimeout is the deadline of calls whose context has none. Zero means none: such a call may
	// wait for ever. Streams, uploads and duplexes are exempt, since a subscription or a session has no
	// natural end: they have the deadlines of their contexts only.
	CallTimeout time.Duration
	// MaxPeers is how many processes may be connected, with room for the requests of each. Zero
	// means 488. Each costs about 130 KiB of HG.NA.Budget, which follows, with the default number
	// of envelopes, touched only when messages come; HG.NA.Room becomes 16 MiB or more. A node that
	// calls itself is one of them. Sessions that are idle make room for others.
	MaxPeers int
	// MaxInput limits the encoded input of a call, in bytes, without what it lends. It applies to
	// the calls that n makes and to those that it accepts. A larger call does not run: the caller
	// gets hg.ErrOverflow and NotRun. Zero means HG.MaxInput, and 64 MiB if that is zero too.
	MaxInput int64
	// Balancer chooses the address of each attempt, for Peers without PeerOptions.Balancer; those
	// of Node.Peer are among them. Nil means the first address that does not fail. All these Peers
	// share it, so that RoundRobin counts the calls of all.
	Balancer Balancer
	// Authorize decides whether a request runs: nil allows it. Anything else, a panic too, denies
	// it before its input is decoded: the caller gets NotRun and ErrPermission, or the code of the
	// error.
	//
	//   - It is asked about every request, "hg/health" and others of the library among them, but
	//     not about what belongs to a call in flight (items of a stream, pieces of a Reader or a
	//     Writer), nor about Peer.Ping and the probes of Peers.
	//   - It sees the Caller, Metadata and Method of the Call, and not In.
	//   - It is called concurrently, on workers, also for methods that are Inline (unless
	//     HG.AuthorizeQuick is set), and may block. Meanwhile it keeps that worker and a place of
	//     HG.MaxActive and HG.MaxActivePerPeer; others go on as long as there are more.
	//   - About "hg/health" and "hg/ping" it is asked on up to 16 goroutines of their own; while it
	//     blocks there, the streams of that client stand still.
	Authorize func(ctx context.Context, c *Call) error
	// MaxConcurrent is how many handlers of all methods run at a time; 0 means HG.MaxActive. The
	// option MaxConcurrent bounds those of one method, within this. Streams, uploads and duplexes
	// take no place of this: each has a goroutine, and HG.MaxStreams, HG.MaxStreamsPerPeer and the
	// option MaxConcurrent of their method bound them.
	//
	// A handler that calls its own node and waits keeps its place meanwhile: if all places are held
	// by such handlers, they wait for one another until their deadlines. A request that waits for a
	// place until little of its time is left (an eighth, but at least 1 ms and at most 250 ms) is
	// refused with ErrTimeout, and its error says which limit held it up.
	MaxConcurrent int
	// ClientLimits limits what all clients of one name together may use of the methods of this
	// node, over all their processes and sessions. The name is Identity.Name, which the certificate
	// of a client proves. The entry "" is the limit of each name without an entry, and of all
	// clients without a verified name as one. A request beyond a limit is refused at once, after
	// Authorize and before its input is decoded: the caller gets ErrExhausted and NotRun, and the
	// error names the client and the limit. The map is copied.
	ClientLimits map[string]ClientLimit
	// ShutdownTimeout is how long Serve and Shutdown wait for calls in flight before they cancel
	// them, which cancels the contexts of handlers. They return at most 1 s later, even if a
	// handler ignores its context. Zero means 10 s, negative means to cancel everything at once.
	ShutdownTimeout time.Duration
	// Contexts is the number of event loops that share the port, for machines with many cores. Each
	// has two goroutines in Serve, one of which stands by. Zero means 1. Peers are distributed over
	// the contexts: each peer always reaches the same one, and answers and calls back leave through
	// it. Calls to one Peer always use the same context. It is for "tcp://" only: over other
	// transports open a Node with an address of its own for each core.
	Contexts int
	// Name is the name under which peers show this node: their logs, errors and tools show a client
	// that does not listen as "worker (10.0.0.3:41234)". It has at most 64 bytes of printable
	// characters without parentheses. Empty means the base name of os.Args[0], and none in the
	// simulator. Peers cannot verify it.
	Name string
	// Inspect makes the node answer the tools. "qs rpcs" and "qs call" get its methods with the
	// types of their input and output. "qs top" and "qs ger" get its load, its limits, the calls in
	// flight, and its peers by name and address. Every process that can connect may ask, unless
	// Authorize denies "hg/rpcs" and "hg/gauges". It adds no cost per call, except while "qs top"
	// runs, which counts the calls that end.
	Inspect bool
	// ClientInterceptors run around calls, ServerInterceptors around handlers. The first is the
	// outermost. Interceptors of a method, given to Define, run inside ClientInterceptors.
	ClientInterceptors, ServerInterceptors []Interceptor
	// Logger gets what cannot be returned as an error, from all layers. Nil means HG.Logger, or
	// else slog.Default(). LogCalls logs calls.
	Logger *slog.Logger
	// HG configures the layers below: limits, Observe, Codec. The node sets its Dispatch, and what
	// the fields above determine. A plugin in HG.NA.Plugins must be for the node's scheme and has
	// options of its own: with one for tcp, TLS, TCP and Contexts must be zero; with one for udp,
	// TLS.
	HG hg.Config
}

// withDefaults returns c with its defaults, for a node at addr. The error lists all invalid fields.
func (c Config) withDefaults(addr string) (Config, error) {
	scheme, beside := schemesOf(addr)
	var errs []error
	addErr := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("qs: config: "+format+": %w", append(args, hg.ErrInvalid)...))
	}
	if c.MaxConcurrent < 0 {
		addErr("MaxConcurrent is %d, want a positive number, or 0 for HG.MaxActive", c.MaxConcurrent)
	}
	for name, limit := range c.ClientLimits {
		if err := limit.check(); err != nil {
			addErr("ClientLimits[%q]: %v", name, err)
		}
	}
	if c.Contexts < 0 || c.Contexts > 256 {
		addErr("Contexts is %d, want 1 to 256, or 0 for 1", c.Contexts)
	}
	if c.HG.NA.Contexts > 0 && c.HG.NA.Contexts < c.Contexts {
		addErr("Contexts is %d, but HG.NA.Contexts allows %d", c.Contexts, c.HG.NA.Contexts)
	}
	if c.PeerTimeout != 0 && c.HG.NA.PeerTimeout != 0 && c.PeerTimeout != c.HG.NA.PeerTimeout {
		addErr("PeerTimeout is %v, but HG.NA.PeerTimeout is %v: set one of them", c.PeerTimeout,
			c.HG.NA.PeerTimeout)
	}
	if c.IdleTimeout != 0 && c.HG.NA.IdleTimeout != 0 && c.IdleTimeout != c.HG.NA.IdleTimeout {
		addErr("IdleTimeout is %v, but HG.NA.IdleTimeout is %v: set one of them", c.IdleTimeout,
			c.HG.NA.IdleTimeout)
	}
	if c.CertificateGrace != 0 && c.HG.NA.CertificateGrace != 0 &&
		c.CertificateGrace != c.HG.NA.CertificateGrace {
		addErr("CertificateGrace is %v, but HG.NA.CertificateGrace is %v: set one of them",
			c.CertificateGrace, c.HG.NA.CertificateGrace)
	}
	if c.CallTimeout < 0 {
		addErr("CallTimeout is %v, want a positive duration, or 0 for none", c.CallTimeout)
	}
	if c.Name != "" && c.HG.NA.Name != "" && c.Name != c.HG.NA.Name {
		addErr("Name is %q, but HG.NA.Name is %q: set one of them", c.Name, c.HG.NA.Name)
	}
	if c.MaxInput < 0 {
		addErr("MaxInput is %d, want a positive number, or 0 for HG.MaxInput", c.MaxInput)
	}
	if c.MaxInput != 0 && c.HG.MaxInput != 0 && c.MaxInput != c.HG.MaxInput {
		addErr("MaxInput is %d, but HG.MaxInput is %d: set one of them", c.MaxInput, c.HG.MaxInput)
	}
	c.setBudget(addErr)
	if c.Authorize != nil && c.HG.Authorize != nil {
		addErr("Authorize and HG.Authorize are set: set one of them")
	}
	if c.Local != na.LocalAuto {
		if c.HG.NA.Local != na.LocalAuto && c.HG.NA.Local != c.Local {
			addErr("Local is %v, but HG.NA.Local is %v: set one of them", c.Local, c.HG.NA.Local)
		}
		c.HG.NA.Local = c.Local
	}
	own := c.transportPlugin(scheme, beside, addr, addErr)
	if c.HG.Dispatch != nil {
		addErr("HG.Dispatch is set, but qs dispatches handlers itself")
	}
	for _, i := range append(c.ClientInterceptors[:len(c.ClientInterceptors):len(c.ClientInterceptors)],
		c.ServerInterceptors...) {
		if i == nil {
			addErr("an interceptor is nil")
			break
		}
	}
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	if c.Contexts == 0 {
		c.Contexts = 1
	}
	if c.MaxConcurrent == 0 {
		c.MaxConcurrent = c.HG.MaxActive
	}
	if c.MaxConcurrent == 0 {
		c.MaxConcurrent = 1024
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 10 * time.Second
	}
	c.ClientLimits = maps.Clone(c.ClientLimits)
	c.HG.Reflect = c.HG.Reflect || c.Inspect
	if c.MaxInput != 0 {
		c.HG.MaxInput = c.MaxInput
	}
	if c.Balancer == nil {
		c.Balancer = inOrder{}
	}
	if c.Logger != nil {
		c.HG.Logger = c.Logger
	}
	if c.Name != "" {
		c.HG.NA.Name = c.Name
	}
	if c.IdleTimeout != 0 {
		c.HG.NA.IdleTimeout = c.IdleTimeout
	}
	if c.CertificateGrace != 0 {
		c.HG.NA.CertificateGrace = c.CertificateGrace
	}
	if c.PeerTimeout != 0 {
		c.HG.NA.PeerTimeout = c.PeerTimeout
	}
	if own != nil {
		c.HG.NA.Plugins = append(c.HG.NA.Plugins[:len(c.HG.NA.Plugins):len(c.HG.NA.Plugins)], own)
	}
	if c.Contexts > 1 {
		c.HG.NA.Contexts = max(c.HG.NA.Contexts, c.Contexts)
	}
	return c, nil
}

// setBudget derives the limits of package na from MaxPeers.
func (c *Config) setBudget(addErr func(format string, args ...any)) {
	const maxPeers = 1 << 20
	switch {
	case c.MaxPeers == 0:
	case c.MaxPeers < 0 || c.MaxPeers > maxPeers:
		addErr("MaxPeers is %d, want 1 to %d, or 0 for 488", c.MaxPeers, maxPeers)
	case c.HG.NA.Budget != 0 || c.HG.NA.Peers != 0:
		addErr("MaxPeers is set, and HG.NA.Budget or HG.NA.Peers too: set one of them")
	default:
		to := &c.HG.NA
		to.Peers = c.MaxPeers
		to.Budget = na.GuaranteedBytes(c.MaxPeers, cmp.Or(to.Envelopes, 32), cmp.Or(to.Eager, 4<<10))
		if to.Room == 0 {
			to.Room = max(16<<20, to.Budget/4)
		}
	}
}

// schemesOf returns the schemes of the transports in addr. The second one is empty if there is one
// transport.
func schemesOf(addr string) (first, second string) {
	first, second, _ = strings.Cut(addr, ",")
	first, _, _ = strings.Cut(first, "://")
	second, _, _ = strings.Cut(second, "://")
	return first, second
}

// noTLSReason returns why TLS cannot be set for a transport.
func noTLSReason(scheme string) string {
	if scheme == "sm" {
		return "messages are in memory that only processes of one user can open"
	}
	return "messages would not be encrypted"
}

// transportPlugin returns the plugin with the options TLS, TCP and Contexts, or nil if none is set.
// An option without effect is an error: a node that silently ran without TLS would be a security
// hole.
func (c *Config) transportPlugin(
	scheme, beside, addr string, addErr func(format string, args ...any),
) na.Plugin {
	given := false // HG.NA.Plugins has one for tcp or udp
	for _, p := range c.HG.NA.Plugins {
		switch {
		case p == nil: // na.Open returns the error
		case p.Scheme() == beside:
		case p.Scheme() != scheme:
			addErr("HG.NA.Plugins has a plugin for %s://, which a node at %q does not use", p.Scheme(),
				addr)
		case scheme == "tcp" || scheme == "udp":
			given = true
		}
	}
	several, asked := c.Contexts > 1, false
	for _, f := range []struct {
		set             bool
		field, of, hint string
		fits            bool
	}{
		{c.TLS != nil, "TLS", "tcp:// and udp://", noTLSReason(scheme), scheme == "tcp" ||
			scheme == "udp"},
		{!reflect.ValueOf(c.TCP).IsZero(), "TCP", "tcp://",
			"use HG.NA.Plugins for options of other transports", scheme == "tcp"},
		{several, "Contexts", "tcp://",
			"only tcp shares one address among contexts; open several Nodes",
			scheme == "tcp"},
	} {
		asked = asked || f.set
		switch {
		case f.set && !f.fits:
			addErr("%s is for %s, not %q: %s", f.field, f.of, addr, f.hint)
		case f.set && given && scheme == "udp":
			addErr("%s is set, but HG.NA.Plugins has a plugin for udp://: set the TLS of that plugin instead",
				f.field)
		case f.set && given:
			addErr("%s is set, but HG.NA.Plugins has a plugin for tcp://: set TCP instead",
				f.field)
		}
	}
	opts := c.TCP
	if opts.TLS != nil && c.TLS != nil && opts.TLS != c.TLS {
		addErr("TLS and TCP.TLS are different configurations: set one of them")
	}
	if opts.Spread != 0 && opts.Spread != max(c.Contexts, 1) {
		addErr("TCP.Spread is %d, but Contexts is %d: set Contexts only", opts.Spread, c.Contexts)
	}
	if !asked {
		return nil
	}
	if scheme == "udp" {
		return udp.New(udp.Options{TLS: c.TLS})
	}
	if c.TLS != nil {
		opts.TLS = c.TLS
	}
	if several {
		// Windows cannot share a port safely: there all contexts share one socket.
		opts.ReusePort, opts.Spread = runtime.GOOS != "windows", c.Contexts
	}
	return tcp.New(opts)
}
