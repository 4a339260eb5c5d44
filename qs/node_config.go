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

// A Config configures a node. The zero value is ready to use.
type Config struct {
	// TLS, if set, is used for all connections of "tcp://" and all packets of "udp://". The version
	// is TLS 1.3, and the same configuration is used as client and as server. If TLS is nil,
	// TCP.TLS is used, and if that is nil too, there is no TLS. Both sides must use TLS, or
	// neither. Open fails if TLS is set for another scheme. "sm://" does not need TLS, because only
	// processes of the same user can open its memory.
	TLS *tls.Config
	// Local determines whether a node on two transports ("tcp://:7000,sm://") uses the second one
	// for peers on this machine. With na.LocalAuto, the default, it does so unless TLS is on. The
	// other values are na.LocalNever and na.LocalAlways.
	Local na.Local
	// TCP holds further options of "tcp://". The node fills in TLS and, with several Contexts, Spread
	// and, unless there is a Listener, ReusePort.
	TCP tcp.Options
	// PeerTimeout is the time after which a peer is considered lost if it has sent no data while
	// calls to or from it are in flight. Zero means 5 s. The minimum is 500 ms.
	PeerTimeout time.Duration
	// IdleTimeout is the time after which an idle session dialed by this node is closed, if its
	// peer agrees. The next call reconnects. Zero means 5 minutes, or never for a node that serves
	// methods but does not listen. A negative value means never. See [na.Config].
	IdleTimeout time.Duration
	// CertificateGrace is the time for which calls in flight may continue in a session after the
	// certificate of this node or of the peer has expired. Later calls reconnect with the current
	// certificates (those in the files of LoadTLS). If these are valid, no call fails. Otherwise,
	// calls fail with ErrUnreachable or ErrPermission and NotRun, and the error names the
	// certificate. Each node checks its peer's certificate, and either may close the session.
	//
	// Zero means 1 minute. A negative value means that sessions outlive the certificates of their
	// peers. Without TLS, CertificateGrace has no effect.
	CertificateGrace time.Duration
	// CallTimeout limits the duration of calls whose context has no deadline. Zero means that such
	// a call may wait forever. Streams, uploads and duplexes are exempt because a subscription or a
	// session has no natural end. Only the deadlines of their contexts apply to them.
	CallTimeout time.Duration
	// MaxPeers is the maximum number of connected processes, for each of which memory is reserved
	// for its requests. Zero means 488. Each process needs about 130 KiB of HG.NA.Budget with the
	// default number of envelopes (request buffers). The memory is touched only when messages
	// arrive. MaxPeers sets HG.NA.Budget, and sets HG.NA.Room to at least 16 MiB. A node that calls
	// itself is counted as a peer. Idle sessions are closed to admit new peers.
	MaxPeers int
	// MaxInput is the maximum size in bytes of the encoded input of a call, excluding the data of
	// Sources and Sinks. It applies both to calls that this node makes and to calls that it serves.
	// A larger call is not run, and its caller receives hg.ErrOverflow and NotRun. Zero means
	// HG.MaxInput, or 64 MiB if that is zero, too.
	MaxInput int64
	// Balancer chooses the address of each attempt for Peers without PeerOptions.Balancer, such as
	// those returned by Node.Peer. Nil means the first healthy address. All these Peers share it,
	// so that RoundRobin, for example, counts all their calls together.
	Balancer Balancer
	// Authorize decides whether a request may run. A nil error allows it. An error or a panic
	// denies it before its input is decoded. The caller then receives NotRun and ErrPermission, or
	// the code of the error.
	//
	//   - Authorize is called for every request, including "hg/health" and others of the library. It is
	//     not called for the data of a call in flight (items of a stream, chunks of a Reader or a
	//     Writer), for Peer.Ping, or for the probes of Peers.
	//   - Caller, Metadata and Method of the Call are set, but In is not.
	//   - Authorize is called concurrently. It runs on workers, even for Inline methods (unless
	//     HG.AuthorizeQuick is set), and may block. A blocked call occupies a worker, and counts against
	//     HG.MaxActive and HG.MaxActivePerPeer.
	//   - For "hg/health" and "hg/ping", it is called in up to 16 separate goroutines. While it blocks
	//     there, the streams of that client are blocked.
	Authorize func(ctx context.Context, c *Call) error
	// MaxConcurrent limits the number of running handlers of all methods together. Zero means
	// HG.MaxActive. The option MaxConcurrent limits those of a single method. Handlers of streams,
	// uploads and duplexes are not counted. Each of them has a goroutine, and is limited by
	// HG.MaxStreams, HG.MaxStreamsPerPeer and the method's option MaxConcurrent.
	//
	// A handler that calls its own node and waits is still counted. If all running handlers do so,
	// they deadlock until their deadlines. A waiting request with little time left (an eighth of
	// its total time, but at least 1 ms and at most 250 ms) is refused with ErrTimeout, and its
	// error names the limit.
	MaxConcurrent int
	// ClientLimits limits the use of this node's methods by client name, for all processes and
	// sessions of the same name together. The key is Identity.Name, as proven by the client's
	// certificate. The entry "" is the limit for each name without an entry of its own, and for all
	// clients without a verified name together. A request that exceeds a limit is refused
	// immediately, after Authorize and before its input is decoded. Its caller receives
	// ErrExhausted and NotRun, with an error that names the client and the limit. The map is
	// copied.
	ClientLimits map[string]ClientLimit
	// ShutdownTimeout is the time for which Serve and Shutdown wait for calls in flight. After that
	// they cancel these calls, including the contexts of handlers, and return at most 1 s later,
	// even if a handler ignores its context. Zero means 10 s. A negative value means that all calls
	// are canceled immediately.
	ShutdownTimeout time.Duration
	// Contexts is the number of event loops that share the port, for machines with many cores. Each
	// of them has two goroutines in Serve, one of them on standby. Zero means 1. Peers are
	// distributed over the contexts. Each peer always reaches the same context, which also sends
	// the responses and calls to that peer. Calls to one Peer always use the same context. Several
	// Contexts are supported only by "tcp://". With other transports, open one Node per core, each
	// with its own address.
	Contexts int
	// Name is the display name of this node in the logs, errors and tools of its peers, where a
	// client that does not listen appears as "worker (10.0.0.3:41234)". It has at most 64 bytes of
	// printable characters without parentheses. If it is empty, the base name of os.Args[0] is
	// used, except in the simulator, where there is no name. Peers cannot verify it.
	Name string
	// Inspect enables the requests made by tools. "qs rpcs" and "qs call" read the methods with the
	// types of their input and output. "qs top" and "qs ger" read the load, the limits, the calls
	// in flight, and the names and addresses of peers. Any process that can connect may read them,
	// unless Authorize denies "hg/rpcs" and "hg/gauges". Inspect adds no cost per call, except
	// while "qs top" is running, which counts completed calls.
	Inspect bool
	// ClientInterceptors wrap calls and ServerInterceptors wrap handlers. The first is the
	// outermost. Interceptors in the options of a method run inside ClientInterceptors.
	ClientInterceptors, ServerInterceptors []Interceptor
	// Logger logs events of all layers that cannot be returned as errors. Nil means HG.Logger or,
	// if that is nil, slog.Default(). To log calls, use LogCalls.
	Logger *slog.Logger
	// HG configures the layers below, for example their limits, Observe and Codec. The node sets
	// Dispatch and the fields that are determined by the fields above. A plugin in HG.NA.Plugins
	// must be for the node's scheme, and has its own options. If there is one for tcp, TLS, TCP and
	// Contexts must be zero. If there is one for udp, TLS must be nil.
	HG hg.Config
}

// withDefaults returns c with defaults filled in, for a node at addr. The error lists all invalid
// fields.
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
		if problem := limit.problem(); problem != "" {
			addErr("ClientLimits[%q]: %s", name, problem)
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

// setBudget sets the limits in HG.NA that are determined by MaxPeers.
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

// schemesOf returns the schemes of the transports in addr. second is empty if there is only one
// transport.
func schemesOf(addr string) (first, second string) {
	first, second, _ = strings.Cut(addr, ",")
	first, _, _ = strings.Cut(first, "://")
	second, _, _ = strings.Cut(second, "://")
	return first, second
}

// noTLSReason returns the reason why TLS cannot be set for a transport.
func noTLSReason(scheme string) string {
	if scheme == "sm" {
		return "messages are in memory that only processes of one user can open"
	}
	return "messages would not be encrypted"
}

// transportPlugin returns a plugin with the options TLS, TCP and Contexts, or nil if none of them
// is set. It calls addErr for an option that would have no effect, so that a node never runs
// without TLS by mistake.
func (c *Config) transportPlugin(
	scheme, beside, addr string, addErr func(format string, args ...any),
) na.Plugin {
	given := false // HG.NA.Plugins contains a plugin for tcp or udp
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
		// Windows cannot share a port safely, so all contexts share one socket there, as they do the
		// socket that the program passes.
		opts.ReusePort, opts.Spread = runtime.GOOS != "windows" && opts.Listener == nil, c.Contexts
	}
	return tcp.New(opts)
}
