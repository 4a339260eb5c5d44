package carrier

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// A Plugin implements one kind of network, such as TCP. A plugin is registered by calling Register,
// usually in an init function, or is listed in na.Config.Plugins.
type Plugin interface {
	// Scheme returns the part of an address before "://".
	Scheme() string
	// Open opens the network for a class. listen is the part after "://" in the address with which
	// the class was opened. It says where to listen, or is empty for a class that only dials. Open
	// may block while it binds. Errors have a code of package codes, such as ErrAddrInUse.
	Open(class Class, listen string) (*Network, error)
}

// A Companion is a Plugin that can be the second transport of a class, for peers that have it as
// well, such as sm:// in addition to tcp://.
type Companion interface {
	Plugin
	// OpenBeside opens the network in addition to the first transport, before the class has a
	// context. listens reports whether peers can dial the class, in which case it must also be
	// reachable through the Companion. If OpenBeside returns a nil Network and an error, the class
	// logs the error and uses only its first transport.
	OpenBeside(class Class, listens bool) (*Network, error)
}

// A Class is the class that opens a plugin, as seen by the plugin. It is implemented by package na.
type Class interface {
	// Config returns the part of the class's configuration that plugins need.
	Config() Config
	// PrivateName returns the canonical name, as seen by peers, of a class that does not listen:
	// "scheme://@" followed by a random number.
	PrivateName(scheme string) string
	// Context returns the context with the given target ID, or nil if there is none. If it is nil,
	// the carrier must answer the HELLO with ByeOf(codes.ErrNoEntry). After Carrier.Shut, it must
	// answer with ByeOf(codes.ErrClosed). Both appear as codes.ErrUnreachable to the peer, meaning
	// that nothing ran. Context is safe for concurrent use.
	Context(target int) Core
	// Rescue is like Core.Rescue, for code that does not yet know to which context the peer connects.
	Rescue(cut func(err error))
	// Redirect sets the target of g to the context that made an offer, if g presents that offer and
	// names no context. The network of a Companion must call it before it reads g.Target.
	Redirect(g *Greeting)
}

// A Config is the part of a class's configuration that plugins need, with defaults filled in.
type Config struct {
	Logger      *slog.Logger  // for warnings; not nil
	PeerTimeout time.Duration // how long a peer may be silent
	Contexts    int           // maximum number of contexts of the class
	Eager       int           // maximum message size, in bytes
	Poller      bool          // Core.Poller is not nil because the system has a poller for descriptors
}

// A Network is the result of opening a plugin for a class.
type Network struct {
	// Listen is the canonical name, "scheme://rest", by which peers dial the class, or empty if the
	// class does not listen.
	Listen string
	// Names checks and resolves the names of peers.
	Names Names
	// NewCarrier creates the carrier of a context.
	NewCarrier func(core Core) (Carrier, error)
	// Close frees the plugin's resources. It is called once, after the last context has been
	// released. It may be nil if there is nothing to free.
	Close func() error

	// Host identifies the machine, for na.Identity. It is empty if unknown.
	Host string
	// Secure reports whether connections are encrypted and peers prove their identity (see Prover).
	Secure bool
	// WallClock is the clock for Proof.Expires, which must be the one that handshakes use. It may be
	// called Locked, from any goroutine, and must not wait. If nil, time.Now is used.
	WallClock func() time.Time
	// Exact reports whether carriers never send zeros in place of memory that has become inaccessible.
	// Carriers of an Exact network may deliver DATA in any order.
	Exact bool
	// FlushEvery is the number of operations after which frames held back for batching are sent
	// early, so that a polling peer can start. Zero means that they are sent at the end of the batch.
	FlushEvery int
	// WriteTimeout is how long a peer may go without reading any of the data that is waiting for it
	// before its session is closed (see WriteMeter). Zero means no limit.
	WriteTimeout time.Duration
	// Unassisted disables the goroutine of the library that polls contexts that the program does not
	// drive.
	Unassisted bool
	// Place identifies the set of classes that can reach one another through this network. It is used
	// only if the network is a second transport.
	Place [16]byte
}

// Names checks and resolves the names of peers in a network. Its methods may be called from any
// goroutine and must not wait.
type Names interface {
	// Check returns an error if name, "scheme://rest", cannot be dialed or is not canonical. Names in
	// the HELLO of a peer are also checked and may contain any bytes. Check is not called for private
	// names of the scheme (Class.PrivateName) that are dialed. Locked.
	Check(name string) error
	// Resolve converts the text of an address, "scheme://rest" without "#" and a context, to a
	// canonical name. It calls done exactly once, from any goroutine, possibly before it returns,
	// unless the returned cancel function has been called first. cancel may be nil.
	Resolve(text string, done func(name string, err error)) (cancel func())
}

// An Expander is the Names of a network in which a canonical name may stand for several addresses
// of one host.
type Expander interface {
	// Expand returns the names of the addresses for which a canonical name stands, in the order in
	// which to dial them (RFC 8305), or nil if name stands for a single address. It may be called
	// from any goroutine and must not wait.
	Expand(name string) []string
}

// A Certifier is the Names of a network whose peers have certificates. Its methods may be called
// from any goroutine and must not wait.
type Certifier interface {
	// Host returns the host in the text of an address that the peer's certificate must match. It
	// returns "" for the address itself.
	Host(text string) string
	// Carries returns an error if the certificate in p does not match host or, if host is empty, the
	// address name. p is nil if there is no certificate.
	Carries(p *Proof, name, host string) error
}

var (
	pluginsMu sync.Mutex
	plugins   = map[string]Plugin{}
)

// Register makes p available to na.Open by its scheme. It panics if p is nil or if the scheme is
// already registered.
func Register(p Plugin) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	if p == nil {
		panic("carrier: Register of a nil plugin")
	}
	if plugins[p.Scheme()] != nil {
		panic("carrier: plugin " + p.Scheme() + " is registered twice")
	}
	plugins[p.Scheme()] = p
}

// Find returns the plugin registered for scheme, or nil if there is none. all lists all registered
// schemes in sorted order.
func Find(scheme string) (p Plugin, all []string) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	for s := range plugins {
		all = append(all, s)
	}
	slices.Sort(all)
	return plugins[scheme], all
}
