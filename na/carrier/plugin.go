package carrier

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// A Plugin is one kind of network. Plugins register themselves in init, or are listed in
// na.Config.Plugins.
type Plugin interface {
	// Scheme is the part of an address before "://".
	Scheme() string
	// Open opens the network for a class. listen is the part after "://" in the address that the
	// class was opened with: empty for a class that only dials, else where to listen. It may block
	// for as long as binding takes. An error has a code of package codes, such as ErrAddrInUse.
	Open(class Class, listen string) (*Network, error)
}

// A Companion is a Plugin that can be the second transport of a class, for peers that have it too,
// as sm:// next to tcp://.
type Companion interface {
	Plugin
	// OpenBeside opens the network next to the first transport, before the class has a context.
	// listens means that peers can dial the class, so that it must be reachable by the Companion,
	// too. If it returns a nil Network and an error, the class logs the error and uses its first
	// transport alone.
	OpenBeside(class Class, listens bool) (*Network, error)
}

// A Class is the class that opens a plugin, as the plugin sees it. Package na implements it.
type Class interface {
	// Config returns the part of the configuration of the class that plugins need.
	Config() Config
	// PrivateName returns the canonical name of a class that does not listen, as peers see it:
	// "scheme://@" and a random number.
	PrivateName(scheme string) string
	// Context returns the context with a target id, or nil: then the HELLO is answered with ByeOf
	// of codes.ErrNoEntry, and with one of codes.ErrClosed after Carrier.Shut. For the peer both
	// are codes.ErrUnreachable: nothing ran. It may be called from any goroutine.
	Context(target int) Core
	// Rescue is Core.Rescue for code that does not know yet to which context the peer connects.
	Rescue(cut func(err error))
	// Redirect is for a Companion: it changes the target of a HELLO that presents an offer and
	// names no context to the context that made the offer.
	Redirect(g *Greeting)
}

// A Config is the part of the configuration of a class that plugins need, with defaults filled in.
type Config struct {
	Logger      *slog.Logger  // for warnings; not nil
	PeerTimeout time.Duration // how long a peer may be silent
	Contexts    int           // number of contexts that the class may make
	Eager       int           // bytes of the longest message
	Poller      bool          // Core.Poller is not nil: the system has a poller for descriptors
}

// A Network is a plugin opened for a class.
type Network struct {
	// Listen is the canonical name, "scheme://rest", under which peers dial the class; empty if it
	// does not listen.
	Listen string
	// Names checks and resolves the names of peers.
	Names Names
	// NewCarrier makes the carrier of a context.
	NewCarrier func(core Core) (Carrier, error)
	// Close frees the resources of the plugin. It is called once, after the last context has been
	// released; nil if there is nothing to free.
	Close func() error

	// Host identifies the machine, for na.Identity; empty when unknown.
	Host string
	// Secure means that connections are encrypted, and that peers prove their identity (see
	// Prover).
	Secure bool
	// WallClock is the clock for Proof.Expires, the same that handshakes use. It may be called
	// Locked, from any goroutine, and does not wait. Nil means time.Now.
	WallClock func() time.Time
	// Exact means that the carriers never send anything in place of withdrawn bytes, and may
	// deliver DATA in any order.
	Exact bool
	// FlushEvery is the number of operations after which frames that are held back to be batched
	// are sent early, so that a peer that polls can begin. Zero means at the end of the batch.
	FlushEvery int
	// WriteTimeout is how long a peer may take no data while data waits for it (see WriteMeter).
	// Zero means forever.
	WriteTimeout time.Duration
	// Unassisted means that no goroutine of the library polls contexts that the program does not
	// drive.
	Unassisted bool
	// Place is equal for classes that can reach one another by this network. It is used for a
	// second transport only.
	Place [16]byte
}

// Names checks and resolves the names of peers in a network. Its methods may be called from any
// goroutine, and do not wait.
type Names interface {
	// Check returns why name, "scheme://rest", cannot be dialed, or is not canonical. Names in the
	// HELLO of a peer are checked, too, and may be any bytes. It is not called for private names of
	// the scheme (Class.PrivateName) that are dialed. Locked.
	Check(name string) error
	// Resolve converts the text of an address, "scheme://rest" without "#" and a context, into a
	// canonical name. It calls done once, from any goroutine, possibly before it returns, unless
	// the returned cancel was called before. cancel may be nil.
	Resolve(text string, done func(name string, err error)) (cancel func())
}

// An Expander is the Names of a network in which a canonical name may stand for several addresses
// of one host.
type Expander interface {
	// Expand returns the names of the addresses that a canonical name stands for, in the order in
	// which to dial them (RFC 8305); nil if name is that of one address. It may be called from any
	// goroutine, and does not wait.
	Expand(name string) []string
}

// A Certifier is the Names of a network whose peers have certificates. Its methods may be called
// from any goroutine, and do not wait.
type Certifier interface {
	// Host returns the host in the text of an address that the peer's certificate must match; empty
	// for the address itself.
	Host(text string) string
	// Carries returns why the certificate in p, nil for none, does not match host, or the address
	// name if host is empty.
	Carries(p *Proof, name, host string) error
}

var (
	pluginsMu sync.Mutex
	plugins   = map[string]Plugin{}
)

// Register makes p available to na.Open by its scheme. It panics if p is nil or the scheme is
// registered already.
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

// Find returns the plugin that is registered for a scheme, or nil, and all registered schemes,
// sorted.
func Find(scheme string) (p Plugin, all []string) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	for s := range plugins {
		all = append(all, s)
	}
	slices.Sort(all)
	return plugins[scheme], all
}
