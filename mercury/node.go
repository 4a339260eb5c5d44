package mercury

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// Checksums selects whether requests use the longer header of a library built with MERCURY_USE_CHECKSUMS.
type Checksums uint8

// Checksum modes.
const (
	Auto Checksums = iota // detect the mode of each peer with a request for an unknown RPC
	On
	Off
)

// Config configures a Node. The zero value is ready to use.
type Config struct {
	// Timeout is the timeout of calls, reads and writes whose context has no deadline. It is needed because C does not
	// respond to requests that it cannot decode, and because a peer that hangs is not detected. 0 means 1 minute, and a
	// negative value means no timeout.
	Timeout time.Duration
	// Checksums selects the kind of header for requests. A response has the same kind of header as its request.
	// Checksums sent by a peer are always verified. If input is corrupt, no handler runs and the response is
	// HG_CHECKSUM_ERROR. If output is corrupt, the call fails with ErrChecksum. Data transferred by Get and Put has no
	// checksums.
	Checksums Checksums
	// AnyInterface allows Open to listen on all addresses of the machine. Every process that can connect can make
	// calls, as described in the package comment.
	AnyInterface bool
	// MessageSize is the maximum size in bytes of a message including its headers, called max_unexpected_size in C. 0
	// means 4,096. Longer input or output is read by the other side in a separate transfer.
	MessageSize int
	// MaxBody is the maximum size in bytes of input or output that does not fit into a message. 0 means 64 MiB.
	MaxBody int64
	// Budget is the maximum total size in bytes, over all peers, of the input of requests whose handlers have not
	// returned. 0 means 256 MiB.
	Budget int64
	// MaxPeers is the maximum number of connections. 0 means 1,024.
	MaxPeers int
	// MaxActive is the maximum number of handlers running at a time for one peer. 0 means 256. MaxQueued is the maximum
	// number of further requests queued for that peer. 0 means 4,096. Any requests beyond that are refused with
	// ErrAgain.
	MaxActive, MaxQueued int
	// SetupTimeout limits the time to set up a connection. 0 means 5 seconds.
	SetupTimeout time.Duration
	// Logger logs panics of handlers. It also logs why peers with another protocol were refused, once per host and
	// reason. Nil means slog.Default().
	Logger *slog.Logger
}

// setDefault sets *v to def if it is zero.
func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// normalize replaces zero fields with their defaults and validates cfg.
func (cfg *Config) normalize() error {
	setDefault(&cfg.Timeout, time.Minute)
	setDefault(&cfg.MessageSize, 4096)
	setDefault(&cfg.MaxBody, 64<<20)
	setDefault(&cfg.Budget, 256<<20)
	setDefault(&cfg.MaxPeers, 1024)
	setDefault(&cfg.MaxActive, 256)
	setDefault(&cfg.MaxQueued, 4096)
	setDefault(&cfg.SetupTimeout, 5*time.Second)
	if cfg.Checksums > Off || cfg.MessageSize < 512 || cfg.MessageSize > maxMessage ||
		cfg.MaxBody < 0 || cfg.MaxBody > hgwire.MaxBulk || cfg.Budget < 0 ||
		cfg.MaxPeers < 0 || cfg.MaxActive < 0 || cfg.MaxQueued < 0 || cfg.SetupTimeout < 0 {
		return errorf(ErrInvalid, "mercury: open: invalid Config: negative field, MessageSize outside 512 to %d, or unknown Checksums", maxMessage)
	}
	return nil
}

// A Node is a client and a server, like a Mercury class with its context. It is safe for concurrent use.
type Node struct {
	cfg  Config
	ln   net.Listener
	self netip.AddrPort // address of ln
	addr string
	pid  uint32

	handlers  atomic.Pointer[map[uint64]handler] // the map is never modified, but replaced with mu held
	bodyBytes atomic.Int64                       // number of bytes of Config.Budget in use
	panics    atomic.Int64

	mu           sync.RWMutex // guards the fields below
	closed       bool
	pendingDials map[netip.AddrPort]*pendingDial
	conns        map[string]*conn    // by the peer's address in text form
	setups       int                 // number of connections being set up
	selfConn     *conn               // the node's connection to itself; nil until first used
	selfPeer     *conn               // other end of selfConn
	refusals     map[refusalKey]bool // refusals that have been logged

	regionMu sync.Mutex
	segments map[uint64]*segment // by key; nil after Close; guarded by regionMu
}

// A handler serves requests for one RPC.
type handler struct {
	serve    func(*Request)
	inline   bool      // run in the goroutine that reads the connection
	provider *Provider // provider whose Close removes the handler; nil if none
}

// Open returns a node that listens on addr, for example "ofi+tcp://127.0.0.1:0". If the port is 0, the system chooses
// one. The address must be one of this machine, unless Config.AnyInterface is set. Instead of an IP address, addr may
// contain the name of an interface or a host, which Open resolves like Lookup, within Config.SetupTimeout. Only IPv4 is
// supported. C processes reach the node at Addr.
func Open(addr string, cfg Config) (*Node, error) {
	if err := cfg.normalize(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), cfg.SetupTimeout)
	defer cancel()
	addr, err := Lookup(ctx, addr)
	if err != nil {
		return nil, err
	}
	at, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	if at.Addr().IsUnspecified() && !cfg.AnyInterface {
		return nil, errorf(ErrInvalid,
			"mercury: open %s: listening on all interfaces requires Config.AnyInterface", addr)
	}
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("mercury: open %s: %w", addr, err)
	}
	n := &Node{
		cfg: cfg, ln: ln, pid: uint32(os.Getpid()),
		pendingDials: map[netip.AddrPort]*pendingDial{}, conns: map[string]*conn{},
		segments: map[uint64]*segment{}, refusals: map[refusalKey]bool{},
	}
	n.self = netip.AddrPortFrom(at.Addr(), uint16(ln.Addr().(*net.TCPAddr).Port))
	n.addr = addrText(n.self)
	n.handlers.Store(&map[uint64]handler{})
	go n.acceptLoop()
	return n, nil
}

const (
	scheme    = "ofi+tcp://"
	oldScheme = "ofi+tcp;ofi_rxm://" // prefix of addresses of ofi_rxm, another protocol of libfabric
)

// parseAddr parses an address in the format of C. The host must be an IPv4 address.
func parseAddr(addr string) (netip.AddrPort, error) {
	rest, ok := strings.CutPrefix(addr, scheme)
	a, err := netip.ParseAddrPort(strings.Replace(rest, "localhost:", "127.0.0.1:", 1))
	if strings.HasPrefix(addr, oldScheme) {
		return a, errorf(ErrUnsupported,
			"mercury: address %q uses the unsupported provider ofi_rxm (update libfabric to 1.18 there)", addr)
	}
	if !ok || err != nil || !a.Addr().Is4() {
		return a, errorf(ErrInvalid,
			"mercury: invalid address %q, want %s and an IPv4 address with a port", addr, scheme)
	}
	return a, nil
}

// addrText returns a in the format printed by C.
func addrText(a netip.AddrPort) string { return scheme + a.String() }

// Addr returns the address of the node, in the format of HG_Addr_lookup in C. With Config.AnyInterface, the host is
// 0.0.0.0, which must be replaced before the address is passed to other processes.
func (n *Node) Addr() string { return n.addr }

// Peers returns the addresses of the connected processes.
func (n *Node) Peers() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	all := make([]string, 0, len(n.conns))
	for a := range n.conns {
		all = append(all, a)
	}
	return all
}

// Handle registers fn as the handler of the RPC id, until RemoveHandler is called. Each request is handled in its own
// goroutine. Handle may be called at any time. It panics if id already has a handler or if fn is nil.
func (n *Node) Handle(id uint64, fn func(*Request)) { n.mustAddHandler(id, handler{serve: fn}) }

// HandleInline is like Handle for a function that is quick and never blocks. It runs fn in the goroutine that reads the
// connection. The input of the request is valid only until fn returns.
func (n *Node) HandleInline(id uint64, fn func(*Request)) {
	n.mustAddHandler(id, handler{serve: fn, inline: true})
}

// mustAddHandler adds h as the handler of the RPC id. It panics if id already has a handler.
func (n *Node) mustAddHandler(id uint64, h handler) {
	if !n.addHandler(id, h) {
		panic(fmt.Sprintf("mercury: RPC %#x has a handler already", id))
	}
}

// addHandler adds h as the handler of the RPC id. It returns false if id already has a handler. It panics if h has no
// function.
func (n *Node) addHandler(id uint64, h handler) bool {
	if h.serve == nil {
		panic("mercury: Handle without a function")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(*n.handlers.Load())
	if all[id].serve != nil {
		return false
	}
	all[id] = h
	n.handlers.Store(&all)
	return true
}

// RemoveHandler removes the handler of the RPC id, like margo_deregister, and reports whether there was one. Later
// requests receive the response HG_NOENTRY. Requests that were accepted earlier still run, and RemoveHandler does not
// wait for them. The ID may be passed to Handle again immediately.
func (n *Node) RemoveHandler(id uint64) bool { return n.removeHandler(id, nil) }

// removeHandler is like RemoveHandler, but if p is not nil, it removes only a handler of p.
func (n *Node) removeHandler(id uint64, p *Provider) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(*n.handlers.Load())
	if h := all[id]; h.serve == nil || p != nil && h.provider != p {
		return false
	}
	delete(all, id)
	n.handlers.Store(&all)
	return true
}

// A refusalKey is a host together with the reason why it was refused.
type refusalKey struct {
	host   netip.Addr
	reason string
}

// maxRefusals is the maximum number of refusals that are logged.
const maxRefusals = 256

// logRefusal logs the reason why a peer is refused, once per host and reason.
func (n *Node) logRefusal(peer netip.AddrPort, reason error) {
	r := refusalKey{peer.Addr().Unmap(), reason.Error()}
	n.mu.Lock()
	isLogged := n.refusals[r] || len(n.refusals) >= maxRefusals
	if !isLogged {
		n.refusals[r] = true
	}
	n.mu.Unlock()
	if !isLogged {
		n.logger().Warn("mercury: refused a peer with another protocol; not logged again for its host",
			"peer", peer, "reason", r.reason)
	}
}

// logger returns Config.Logger, or slog.Default() if that is nil.
func (n *Node) logger() *slog.Logger {
	if n.cfg.Logger != nil {
		return n.cfg.Logger
	}
	return slog.Default()
}

// Close stops listening, closes all connections and revokes all lent memory. Calls fail with ErrClosed, and the
// contexts of requests are canceled. Close does not wait for handlers and may be called in a handler. It returns nil
// and may be called more than once.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	var all []*conn
	for _, c := range n.conns {
		all = append(all, c)
	}
	for _, l := range n.pendingDials {
		l.cancel()
	}
	if n.selfConn != nil {
		all = append(all, n.selfConn, n.selfPeer)
	}
	n.mu.Unlock()
	_ = n.ln.Close()
	n.regionMu.Lock()
	segments := n.segments
	n.segments = nil
	n.regionMu.Unlock()
	for _, s := range segments {
		s.mem.revoke()
	}
	for _, c := range all {
		c.fail(ErrClosed)
	}
	return nil
}

// withTimeout returns ctx with Config.Timeout added if ctx has no deadline. The CancelFunc may be nil.
func (n *Node) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || n.cfg.Timeout < 0 {
		return ctx, nil
	}
	return context.WithTimeout(ctx, n.cfg.Timeout)
}

// chargeBudget reserves size bytes of Config.Budget and reports whether they were available. A negative size releases
// bytes.
func (n *Node) chargeBudget(size int64) bool {
	if n.bodyBytes.Add(size) <= n.cfg.Budget || size <= 0 {
		return true
	}
	n.bodyBytes.Add(-size)
	return false
}

// ID returns the ID of the RPC that C registers under name with HG_Register_name or MERCURY_REGISTER.
func ID(name string) uint64 { return hgwire.ID(name) }

// isClosed reports whether err means that the listener or connection was closed.
func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
