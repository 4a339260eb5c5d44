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

// A Config says how a node is opened. The zero value works.
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
	// IdleTimeout is after how long a session that this node has dialled ends, if nothing goes on in it and its peer agrees; the next call
	// connects anew. Zero means 5 minutes, and never for a node that serves methods and does not listen; negative means never. See
	// [na.Config].
	IdleTimeout time.Duration
	// CertificateGrace is how long calls that are under way in a session may go on after a certificate that it was made with has expired,
	// this node's or the peer's. Calls that begin after that connect anew, with the certificates of then (those in the files of LoadTLS): where
	// these are valid no call fails, and else it fails with ErrUnreachable or ErrPermission, NotRun, and names the certificate. Each node looks
	// at the certificate of its peer, and the other one follows. Zero means 1 minute; negative means that sessions outlive the certificates of
	// their peers. Without TLS it means nothing.
	CertificateGrace time.Duration
	// CallTimeout is the deadline of calls whose context has none. Zero means none: such a call may
	// wait for ever.
	CallTimeout time.Duration
	// MaxPeers is how many processes may be connected, with room for the requests of each. Zero
	// means 488. Each costs about 130 KiB of HG.NA.Budget, which follows, with the default number
	// of envelopes, touched only when messages come; HG.NA.Room becomes 16 MiB or more. A node that
	// calls itself is one of them. Sessions that are idle make room for others.
	MaxPeers int
	// MaxInput bounds the encoded input of a call, in bytes, without what it lends: of the calls that n makes and of those that it
	// accepts. A larger one does not run: the caller gets hg.ErrOverflow, and NotRun. Zero means what HG.MaxInput says, 64 MiB if that is
	// zero, too.
	MaxInput int64
	// Balancer chooses the address of each attempt, for Peers whose PeerOptions.Balancer is nil, those of Node.Peer among them. Nil is the
	// first address that does not fail. It is used by all of them at once: RoundRobin takes turns over the calls of all.
	Balancer Balancer
	// Authorize decides whether a request runs: nil allows it. Anything else, a panic too, denies
	// it before its input is decoded: the caller gets NotRun and ErrPermission, or the code of the
	// error.
	//
	//   - It is asked about every request, "hg/health" and others of the library among them, but not
	//     about what belongs to a call in flight (items of a stream, pieces of a Reader or a Writer),
	//     nor about Peer.Ping and the probes of Peers.
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
	// ClientLimits bounds what the clients of one name have of the methods of this node together, however many processes and sessions they
	// are. The name is Identity.Name, which the certificate of a client proves. Under "" is the limit of each name that has none of its own, and of all
	// clients without a proven name as one. A request beyond a limit is refused at once, after Authorize and before its input is decoded:
	// its caller gets ErrExhausted and NotRun, and the error names the client and the limit. The map is copied.
	ClientLimits map[string]ClientLimit
	// ShutdownTimeout is how long Serve and Shutdown wait for calls in flight before they cancel
	// them, which ends the contexts of handlers. They return at most 1 s later, also when a handler
	// does not heed its context. Zero means 10 s, negative that everything is canceled at once.
	ShutdownTimeout time.Duration
	// Contexts is the number of event loops that share the port, with two goroutines each in Serve,
	// one of which stands by: for machines with many cores. Zero means 1. Peers are spread over them: each peer always
	// reaches the same one, and answers and calls back leave by that. Calls to one Peer always
	// leave by the same one. On "tcp://" only: over other transports open a Node with an address of
	// its own for each core.
	Contexts int
	// Name is what the node calls itself towards its peers: their logs, errors and tools show a client that does not listen as
	// "worker (10.0.0.3:41234)". At most 64 bytes of printable characters without parentheses. Empty means the base name of os.Args[0],
	// in the simulator none. Peers learn it, and take it for the claim that it is.
	Name string
	// Inspect has the node answer the tools: "qs rpcs" and "qs call" with its methods and the types of their input and output, "qs top" and
	// "qs ger" with its work, its limits, the calls under way, and who its peers are, by name and address. Every process that can connect may ask,
	// unless Authorize denies "hg/rpcs" and "hg/gauges". Calls cost no more for it, but while "qs top" looks: then what ends is counted.
	Inspect bool
	// ClientInterceptors wraps calls, ServerInterceptors wraps handlers. The first is the outermost. Those of a method, which Define was
	// given, are inside ClientInterceptors.
	ClientInterceptors, ServerInterceptors []Interceptor
	// Logger gets what no error can carry, from all layers. Nil means HG.Logger, and slog.Default()
	// if that is nil, too. Calls are logged by LogCalls.
	Logger *slog.Logger
	// HG is the configuration of the layers below: limits, Observe, Codec. The node sets its
	// Dispatch, and the rest as the fields above say. A plugin in HG.NA.Plugins must be for the
	// node's scheme and brings its own options: with one for tcp, TLS, TCP and Contexts must be
	// zero; with one for udp, TLS.
	HG hg.Config
}

// withDefaults returns c, complete, for a node at addr.
func (c Config) withDefaults(addr string) (Config, error) {
	scheme, beside := schemesOf(addr)
	var errs []error
	addErr := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("qs: config: "+format+": %w", append(args, hg.ErrInvalid)...))
	}
	if c.MaxConcurrent < 0 {
		addErr("MaxConcurrent is %d, want a number of handlers, or 0 for HG.MaxActive", c.MaxConcurrent)
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
		addErr("PeerTimeout is %v, but HG.NA.PeerTimeout is %v: set one of them", c.PeerTimeout, c.HG.NA.PeerTimeout)
	}
	if c.IdleTimeout != 0 && c.HG.NA.IdleTimeout != 0 && c.IdleTimeout != c.HG.NA.IdleTimeout {
		addErr("IdleTimeout is %v, but HG.NA.IdleTimeout is %v: set one of them", c.IdleTimeout, c.HG.NA.IdleTimeout)
	}
	if c.CertificateGrace != 0 && c.HG.NA.CertificateGrace != 0 && c.CertificateGrace != c.HG.NA.CertificateGrace {
		addErr("CertificateGrace is %v, but HG.NA.CertificateGrace is %v: set one of them", c.CertificateGrace, c.HG.NA.CertificateGrace)
	}
	if c.CallTimeout < 0 {
		addErr("CallTimeout is %v, want a time, or 0 for none", c.CallTimeout)
	}
	if c.Name != "" && c.HG.NA.Name != "" && c.Name != c.HG.NA.Name {
		addErr("Name is %q, but HG.NA.Name is %q: set one of them", c.Name, c.HG.NA.Name)
	}
	if c.MaxInput < 0 {
		addErr("MaxInput is %d, want a number of bytes, or 0 for HG.MaxInput", c.MaxInput)
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
		addErr("HG.Dispatch is set, but handlers run as MaxConcurrent says; use package hg")
	}
	for _, i := range append(c.ClientInterceptors[:len(c.ClientInterceptors):len(c.ClientInterceptors)], c.ServerInterceptors...) {
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

// setBudget sets the budget for MaxPeers.
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

// schemesOf returns those of the transports that addr opens; the second is empty when there is one.
func schemesOf(addr string) (first, second string) {
	first, second, _ = strings.Cut(addr, ",")
	first, _, _ = strings.Cut(first, "://")
	second, _, _ = strings.Cut(second, "://")
	return first, second
}

// noTLSReason says why there is no TLS over a transport.
func noTLSReason(scheme string) string {
	if scheme == "sm" {
		return "it needs none, for what peers say stays in memory that only processes of one user can open"
	}
	return "nothing would be encrypted"
}

// transportPlugin returns the plugin that TLS, TCP and Contexts ask for, nil if they ask for nothing. None of them, and no plugin that is
// given, may come to nothing without a word: the node would go without TLS.
func (c *Config) transportPlugin(scheme, beside, addr string, addErr func(format string, args ...any)) na.Plugin {
	given := false // one for tcp or udp
	for _, p := range c.HG.NA.Plugins {
		switch {
		case p == nil: // na.Open says so
		case p.Scheme() == beside:
		case p.Scheme() != scheme:
			addErr("HG.NA.Plugins holds a plugin for %s://, which a node at %q does not use", p.Scheme(), addr)
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
		{c.TLS != nil, "TLS", "tcp:// and udp://", noTLSReason(scheme), scheme == "tcp" || scheme == "udp"},
		{!reflect.ValueOf(c.TCP).IsZero(), "TCP", "tcp://", "use HG.NA.Plugins for options of others", scheme == "tcp"},
		{several, "Contexts", "tcp://", "several share an address there only: open a Node for each, at addresses of their own", scheme == "tcp"},
	} {
		switch asked = asked || f.set; {
		case f.set && !f.fits:
			addErr("%s is for %s, not %q: %s", f.field, f.of, addr, f.hint)
		case f.set && given && scheme == "udp":
			addErr("%s is set, but HG.NA.Plugins holds a plugin for udp://, which has options of its own: set its TLS instead", f.field)
		case f.set && given:
			addErr("%s is set, but HG.NA.Plugins holds a plugin for tcp://, which has options of its own: set TCP instead", f.field)
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
		opts.ReusePort, opts.Spread = runtime.GOOS != "windows", c.Contexts // Windows cannot share a port safely: one socket does
	}
	return tcp.New(opts)
}
