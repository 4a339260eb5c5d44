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

// Checksums says whether requests have the longer header of a library that was built with MERCURY_USE_CHECKSUMS.
type Checksums uint8

const (
	Auto Checksums = iota // ask each peer, by a request that no peer knows
	On
	Off
)

// Config says how a Node works. The zero value is a good one.
type Config struct {
	// Timeout ends calls, reads and writes whose context has no deadline: C does not answer requests that it cannot decode, nor does
	// anything tell of a peer that hangs. 0 means 1 minute, negative means never.
	Timeout time.Duration
	// Checksums is for requests; responses follow their request. Those of a peer are verified if it fills them in: damaged input is
	// answered with HG_CHECKSUM_ERROR and no handler runs, damaged output is ErrChecksum. What Get and Put move has none.
	Checksums Checksums
	// AnyInterface allows Open to listen on every address of the machine. Any process that can connect can call: see the package comment.
	AnyInterface bool
	// MessageSize is how long a message may be with its headers: max_unexpected_size of the C side. 0 means 4,096 bytes.
	// What is longer travels apart, whichever side set it.
	MessageSize int
	// MaxBody is how long input or output may be that travels apart. 0 means 64 MiB.
	MaxBody int64
	// Budget bounds the input that was received and whose handler has not ended, over all peers. 0 means 256 MiB.
	Budget int64
	// MaxPeers bounds the connections. 0 means 1,024.
	MaxPeers int
	// MaxActive is how many handlers run at a time for one peer. 0 means 256. MaxQueued more requests of it wait, 4,096 by
	// default; those beyond are refused with ErrAgain.
	MaxActive, MaxQueued int
	// SetupTimeout is how long a connection may take to be made. 0 means 5 seconds.
	SetupTimeout time.Duration
	// Logger gets the panics of handlers, and why peers are refused whose protocol is another one: each reason once for a host. Nil means
	// slog.Default().
	Logger *slog.Logger
}

func or[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (cfg *Config) complete() error {
	or(&cfg.Timeout, time.Minute)
	or(&cfg.MessageSize, 4096)
	or(&cfg.MaxBody, 64<<20)
	or(&cfg.Budget, 256<<20)
	or(&cfg.MaxPeers, 1024)
	or(&cfg.MaxActive, 256)
	or(&cfg.MaxQueued, 4096)
	or(&cfg.SetupTimeout, 5*time.Second)
	if cfg.Checksums > Off || cfg.MessageSize < 512 || cfg.MessageSize > maxMessage || cfg.MaxBody < 0 || cfg.MaxBody > hgwire.MaxBulk || cfg.Budget < 0 ||
		cfg.MaxPeers < 0 || cfg.MaxActive < 0 || cfg.MaxQueued < 0 || cfg.SetupTimeout < 0 {
		return errorf(ErrInvalid, "mercury: open: a negative field of Config, MessageSize not 512 to %d, or unknown Checksums", maxMessage)
	}
	return nil
}

// A Node is client and server in one, as a Mercury class with its context is. It is safe for concurrent use.
type Node struct {
	cfg  Config
	ln   net.Listener
	self netip.AddrPort // where ln listens
	addr string
	pid  uint32

	handlers atomic.Pointer[map[uint64]handler] // replaced under mu
	bodies   atomic.Int64                       // of Budget
	panics   atomic.Int64

	mu      sync.RWMutex
	closed  bool
	links   map[netip.AddrPort]*link
	conns   map[string]*conn // by the text of their name
	setups  int              // connections that are being made
	own     *conn            // to this process
	ownPeer *conn            // its other end

	refusals map[refusal]bool // that the log has; guarded by mu

	regionMu sync.Mutex
	segments map[uint64]*segment // by their keys; nil when closed
}

type handler struct {
	fun      func(*Request)
	inline   bool
	provider *Provider // that removes it when it is closed, or nil
}

// Open makes a node that listens on addr, "ofi+tcp://127.0.0.1:0" for example, where port 0 lets the system choose. Without Config's
// AnyInterface the address must be one of this machine; it may also name an interface or a host, which Lookup looks up, for Config.SetupTimeout
// at most. Only IPv4 is supported. C processes can call it at Addr.
func Open(addr string, cfg Config) (*Node, error) {
	if err := cfg.complete(); err != nil {
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
		return nil, errorf(ErrInvalid, "mercury: open %s: anybody on the network could call, unencrypted: name an address, or set Config.AnyInterface", addr)
	}
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("mercury: open %s: %w", addr, err)
	}
	n := &Node{cfg: cfg, ln: ln, pid: uint32(os.Getpid()), links: map[netip.AddrPort]*link{}, conns: map[string]*conn{}, segments: map[uint64]*segment{}, refusals: map[refusal]bool{}}
	n.self = netip.AddrPortFrom(at.Addr(), uint16(ln.Addr().(*net.TCPAddr).Port))
	n.addr = addrText(n.self)
	n.handlers.Store(&map[uint64]handler{})
	go n.accept()
	return n, nil
}

const (
	scheme    = "ofi+tcp://"
	oldScheme = "ofi+tcp;ofi_rxm://" // another protocol, of libfabric alone
)

// parseAddr parses an address as C prints it. A host must be an IPv4 address.
func parseAddr(addr string) (netip.AddrPort, error) {
	rest, ok := strings.CutPrefix(addr, scheme)
	a, err := netip.ParseAddrPort(strings.Replace(rest, "localhost:", "127.0.0.1:", 1))
	if strings.HasPrefix(addr, oldScheme) {
		return a, errorf(ErrUnsupported, "mercury: %q is of a process with libfabric before 1.18, or with its provider ofi_rxm: update libfabric there", addr)
	}
	if !ok || err != nil || !a.Addr().Is4() {
		return a, errorf(ErrInvalid, "mercury: %q is not an address: want %s, an IPv4 address and a port; mercury.Lookup looks up names", addr, scheme)
	}
	return a, nil
}

func addrText(a netip.AddrPort) string { return scheme + a.String() }

// Addr returns the address of the node, which C takes for HG_Addr_lookup. With AnyInterface the host is 0.0.0.0: replace it.
func (n *Node) Addr() string { return n.addr }

// Peers returns the addresses of the processes with which there is a connection.
func (n *Node) Peers() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	all := make([]string, 0, len(n.conns))
	for a := range n.conns {
		all = append(all, a)
	}
	return all
}

// Handle has fn answer requests of the RPC id, each on a goroutine of its own, until RemoveHandler. It may be called at any time. It panics
// if id has a handler, or if fn is nil.
func (n *Node) Handle(id uint64, fn func(*Request)) { n.handle(id, handler{fun: fn}) }

// HandleInline is Handle for a function that is quick and never waits: it runs on the goroutine that reads the connection.
// The request's input is good until fn returns.
func (n *Node) HandleInline(id uint64, fn func(*Request)) {
	n.handle(id, handler{fun: fn, inline: true})
}

func (n *Node) handle(id uint64, h handler) {
	if !n.addHandler(id, h) {
		panic(fmt.Sprintf("mercury: RPC %#x has a handler already", id))
	}
}

// addHandler reports whether id had no handler.
func (n *Node) addHandler(id uint64, h handler) bool {
	if h.fun == nil {
		panic("mercury: Handle without a function")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(*n.handlers.Load())
	if all[id].fun != nil {
		return false
	}
	all[id] = h
	n.handlers.Store(&all)
	return true
}

// RemoveHandler has requests of the RPC id answered with HG_NOENTRY again, as margo_deregister does, and reports whether there was a handler.
// Requests that were accepted before still run: RemoveHandler does not wait for them. The id may be given to Handle again at once.
func (n *Node) RemoveHandler(id uint64) bool { return n.removeHandler(id, nil) }

// removeHandler is RemoveHandler, for handlers of p alone unless it is nil.
func (n *Node) removeHandler(id uint64, p *Provider) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(*n.handlers.Load())
	if h := all[id]; h.fun == nil || p != nil && h.provider != p {
		return false
	}
	delete(all, id)
	n.handlers.Store(&all)
	return true
}

// A refusal is why a host cannot be served.
type refusal struct {
	host   netip.Addr
	reason string
}

// maxRefusals bounds what peers that are refused can write into the log.
const maxRefusals = 256

// refused logs why a peer cannot be served, unless the log has it already.
func (n *Node) refused(peer netip.AddrPort, reason error) {
	r := refusal{peer.Addr().Unmap(), reason.Error()}
	n.mu.Lock()
	told := n.refusals[r] || len(n.refusals) >= maxRefusals
	if !told {
		n.refusals[r] = true
	}
	n.mu.Unlock()
	if !told {
		n.log().Warn("mercury: a peer of another protocol is refused; not logged again for its host", "peer", peer, "reason", r.reason)
	}
}

func (n *Node) log() *slog.Logger {
	if n.cfg.Logger != nil {
		return n.cfg.Logger
	}
	return slog.Default()
}

// Close stops listening, ends all connections and takes all lent memory away. Calls end with ErrClosed, the contexts of requests are canceled. Close
// does not wait for handlers. It is nil, and may be called twice, and in a handler.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	var all []*conn
	for _, c := range n.conns {
		all = append(all, c)
	}
	for _, l := range n.links {
		l.cancel()
	}
	if n.own != nil {
		all = append(all, n.own, n.ownPeer)
	}
	n.mu.Unlock()
	_ = n.ln.Close()
	n.regionMu.Lock()
	segments := n.segments
	n.segments = nil
	n.regionMu.Unlock()
	for _, s := range segments {
		s.mem.takeAway()
	}
	for _, c := range all {
		c.fail(ErrClosed)
	}
	return nil
}

// bound gives ctx a deadline if it has none.
func (n *Node) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || n.cfg.Timeout < 0 {
		return ctx, nil
	}
	return context.WithTimeout(ctx, n.cfg.Timeout)
}

// charge takes size of the budget for bodies, or gives it back, and reports whether it was there.
func (n *Node) charge(size int64) bool {
	if n.bodies.Add(size) <= n.cfg.Budget || size <= 0 {
		return true
	}
	n.bodies.Add(-size)
	return false
}

// ID returns the identity of the RPC that C registers by name, with HG_Register_name or MERCURY_REGISTER.
func ID(name string) uint64 { return hgwire.ID(name) }

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
