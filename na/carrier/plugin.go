package carrier

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// A Plugin is one kind of network. Plugins register themselves in init, or are given in na.Config.Plugins.
type Plugin interface {
	// Scheme is the part of an address before "://".
	Scheme() string
	// Open opens the network for a class. listen is what follows "://" in the address that the class was opened with: empty for
	// a class that only dials, else where to listen. It may block for as long as binding takes. An error carries a code of
	// package codes, such as ErrAddrInUse.
	Open(class Class, listen string) (*Network, error)
}

// A Companion is a Plugin that can be the second transport of a class, for peers that both reach by it, as sm:// beside tcp://.
type Companion interface {
	Plugin
	// OpenBeside opens it beside the first transport, before the class has a context. listens says that peers can dial the class, so that it must be
	// reachable here, too. A nil Network with an error is what this process cannot have: the class logs the error, and has its first
	// transport alone.
	OpenBeside(class Class, listens bool) (*Network, error)
}

// A Class is what a plugin is given of the class that opens it.
type Class interface {
	// Config returns what plugins need of the configuration of the class.
	Config() Config
	// PrivateName is the canonical name that peers see of a class which does not listen: "scheme://@" and a random number.
	PrivateName(scheme string) string
	// Context returns the context with a target id, or nil: the HELLO is answered with ByeOf of codes.ErrNoEntry then, and with one of
	// codes.ErrClosed after Carrier.Shut. To the peer both are codes.ErrUnreachable: nothing ran. It may be called from anywhere.
	Context(target int) Core
	// Rescue is Core.Rescue where it is not known yet which context the peer wants.
	Rescue(cut func(err error))
	// Redirect is for a Companion: it has a HELLO that shows an offer and names no context be for the context that made the offer.
	Redirect(g *Greeting)
}

// A Config is what plugins need of the configuration of a class, with its defaults filled in.
type Config struct {
	Logger      *slog.Logger  // for warnings; not nil
	PeerTimeout time.Duration // how long a peer may be silent
	Contexts    int           // that the class may make
	Eager       int           // bytes of the longest message
	Poller      bool          // Core.Poller is not nil: the system can tell which descriptors are ready
}

// A Network is a plugin opened for a class.
type Network struct {
	// Listen is the canonical name, "scheme://rest", under which peers dial the class; empty if it does not listen.
	Listen string
	// Names checks and resolves the names of peers.
	Names Names
	// NewCarrier makes the carrier of a context.
	NewCarrier func(core Core) (Carrier, error)
	// Close gives back what the plugin holds, once, when the last context has been released; nil for nothing.
	Close func() error

	// Host identifies the machine, for na.Identity; empty when unknown.
	Host string
	// Secure says that connections are encrypted, and that peers prove who they are (see Prover).
	Secure bool
	// WallClock is the clock by which Proof.Expires is judged, the same that handshakes use. It may be called Locked, from any goroutine, and does
	// not wait. Nil means time.Now.
	WallClock func() time.Time
	// Exact says that the carriers never send anything in place of bytes that are gone, and may deliver DATA in any order.
	Exact bool
	// FlushEvery is after how many operations frames that are held back to leave together leave all the same, because a peer that
	// polls may begin. Zero means at the end of the batch.
	FlushEvery int
	// WriteTimeout is how long a peer may take nothing of what there is for it (see WriteMeter). Zero means for ever.
	WriteTimeout time.Duration
	// Unassisted says that contexts which nobody drives are left alone: no goroutine of the library serves their peers.
	Unassisted bool
	// Place is the same for classes that reach one another by this network. It counts for a second transport only.
	Place [16]byte
}

// Names are what a network calls peers. Its methods may be called from any goroutine, and do not wait.
type Names interface {
	// Check reports why name, "scheme://rest", could not be dialed, or is not the canonical form. The name in the HELLO of a peer is checked, too,
	// and that may be anything. It is not asked for private names of the scheme (Class.PrivateName) that are dialed. Locked.
	Check(name string) error
	// Resolve turns the text of an address, "scheme://rest" without "#" and what follows, into a canonical name, and calls done once, from any goroutine, unless the
	// returned cancel was called before. It may call done before it returns. cancel may be nil.
	Resolve(text string, done func(name string, err error)) (cancel func())
}

// An Expander is Names of a network where a canonical name may stand for several addresses of one host.
type Expander interface {
	// Expand returns the names of the addresses that a canonical name stands for, in the order in which they are to be dialed (RFC 8305); nil
	// if name is that of one address. It may be called from any goroutine, and does not wait.
	Expand(name string) []string
}

// A Certifier is Names of a network whose peers have certificates. Its methods may be called from any goroutine, and do not wait.
type Certifier interface {
	// Host returns the host in the text of an address that the peer's certificate must carry; empty for the address itself.
	Host(text string) string
	// Carries reports why the certificate in p, nil for none, is not that of host, or of the address name where host is empty.
	Carries(p *Proof, name, host string) error
}

var (
	pluginsMu sync.Mutex
	plugins   = map[string]Plugin{}
)

// Register makes p available to na.Open by its scheme. It panics when p is nil or the scheme is taken.
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

// Find returns the registered plugin of a scheme, or nil, and the schemes of all, sorted.
func Find(scheme string) (p Plugin, all []string) {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	for s := range plugins {
		all = append(all, s)
	}
	slices.Sort(all)
	return plugins[scheme], all
}
