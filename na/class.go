package na

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Class represents this process in a network. It has an address, registered memory and contexts.
type Class struct {
	cfg     Config
	domain  *domain
	regions atomic.Int64
	tokens  tokenSource
	serves  atomic.Bool
	unready atomic.Bool // set by SetReady(false)
	freed   atomic.Bool // set once the plugins have closed their networks

	messages messageForms // message forms of the layer above; immutable after UseMessages

	mu       sync.Mutex // guards the fields below
	contexts []*Context
	open     int // number of contexts that have not been released
	draining bool
	closed   bool
}

// Open opens the network identified by addr, which takes one of these forms:
//
//   - "tcp://" to dial only, or "tcp://host:port" to listen as well. With port 0 the system
//     chooses a port. "udp://" takes the same forms.
//   - "sm://name" to listen in shared memory, for processes of the same user on this machine.
//   - "sm://name-*" to listen at a unique name. Context.Self has the text that replaces the *.
//   - "tcp://host:port,sm://" to open a second transport. "udp://host:port,sm://" works the same
//     way.
//
// With two transports, peers have the addresses of the first. Peers on this machine that have
// opened both transports as well are reached over the second, subject to Config.Local. If this
// process cannot open the second transport, it logs the reason to Config.Logger and reaches all
// peers over the first.
//
// If cfg is invalid, the error lists all invalid fields and matches ErrInvalid.
func Open(addr string, cfg Config) (*Class, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	first, second, both := strings.Cut(addr, ",")
	p, rest, err := pluginOf(addr, first, cfg.Plugins)
	if err != nil {
		return nil, err
	}
	var beside carrier.Companion
	if both {
		if beside, err = secondPluginFor(addr, second, cfg.Plugins); err != nil {
			return nil, err
		}
	}
	cls := &Class{cfg: cfg.withDefaults()}
	if err := cls.cfg.envelopeContract(); err != nil {
		return nil, err
	}
	if cls.domain, err = openDomain(cls, p, rest, beside); err != nil {
		return nil, fmt.Errorf("na: open %s: %w", addr, err)
	}
	return cls, nil
}

// pluginOf returns the plugin for one, an address of a single transport that is part of addr, and
// the rest of one after the scheme. It searches given before the registered plugins.
func pluginOf(addr, one string, given []Plugin) (p Plugin, rest string, err error) {
	scheme, rest, ok := strings.Cut(one, "://")
	if !ok {
		return nil, "", fmt.Errorf(`na: open %q: missing scheme, want "tcp://", "tcp://host:port" or "tcp://host:port,sm://": %w`, addr, ErrInvalid)
	}
	p, err = findPlugin(scheme, given)
	return p, rest, err
}

// Config returns the configuration with defaults filled in.
func (c *Class) Config() Config { return c.cfg }

// Limits returns the class's limits.
func (c *Class) Limits() Limits { return c.domain.limits() }

// Addr returns the address of the context with id 0.
func (c *Class) Addr() Addr { return c.domain.addr }

// Regions returns the number of registered memory regions.
func (c *Class) Regions() int64 { return c.regions.Load() }

// Registered returns descriptions of registered regions. The result has no more than most
// elements. Registered is safe for concurrent use. It holds a lock that is needed to serve memory
// requests by peers, for a few microseconds per thousand regions.
func (c *Class) Registered(most int) (all []MemStat) {
	for _, m := range c.domain.listRegistered(most) {
		all = append(all, MemStat{m.key.Len, m.key.Access, m.user.Load()})
	}
	return all
}

// Now returns the current time of the class's clock. The clock is monotonic, and only differences
// between its values are meaningful.
func (c *Class) Now() time.Duration { return c.domain.now() }

// Rand fills b with cryptographically random bytes. In a simulator, they are derived from its seed.
func (c *Class) Rand(b []byte) { c.domain.rand(b) }

// NewContext creates a context. Its ID is the number of contexts that were created before it.
func (c *Class) NewContext() (*Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.draining {
		return nil, fmt.Errorf("na: new context: class is %w", ErrClosed)
	}
	if len(c.contexts) >= c.cfg.Contexts {
		return nil, fmt.Errorf("na: new context: limit of %d contexts reached (na.Config.Contexts): %w", len(c.contexts), ErrAgain)
	}
	nctx, err := newContext(c, len(c.contexts))
	if err != nil {
		return nil, err
	}
	c.contexts = append(c.contexts, nctx)
	c.open++
	return nctx, nil
}

// Close closes every context. It does not block. Callbacks of canceled operations run in each
// context's Trigger. The address becomes free soon after the last of them has returned, at which
// point Closed returns true. Close returns any error from the plugin closing its network. If the
// network is closed later, with the last context, the error is logged instead. Further calls to
// Close do nothing.
func (c *Class) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	contexts, last := c.contexts, c.open == 0
	c.mu.Unlock()
	if last {
		return c.closeNetworks()
	}
	for _, nctx := range contexts {
		nctx.Close()
	}
	return nil
}

// Closed reports whether closing is complete, that is, every context has been released and the
// plugin has freed the address.
func (c *Class) Closed() bool { return c.freed.Load() }

// onContextReleased removes a released context and closes the networks after the last one. Because
// the caller holds the context's lead, an error is logged by another goroutine: the user's logger
// must not be called here.
func (c *Class) onContextReleased(nctx *Context) {
	c.mu.Lock()
	c.open--
	last := c.closed && c.open == 0
	c.mu.Unlock()
	if !last {
		return
	}
	if err := c.closeNetworks(); err != nil {
		nctx.Spawn(func() { c.domain.logCloseError(err) })
	}
}

// closeNetworks closes the networks and records that they are closed. It must be called only once.
func (c *Class) closeNetworks() error {
	defer c.freed.Store(true)
	return c.domain.close()
}

// SetReady sets the response to probes by peers (Context.Probe): success if ready is true, which is
// the default, and ErrNotReady otherwise. A draining context always responds with ErrDraining.
// SetReady does not block and is safe for concurrent use.
func (c *Class) SetReady(ready bool) { c.unready.Store(!ready) }

// IsReady returns the last value passed to SetReady, or true if there was none.
func (c *Class) IsReady() bool { return !c.unready.Load() }

// Serve records that this class serves peers' requests, which affects Config.IdleTimeout.
// RecvUnexpected does so as well.
func (c *Class) Serve() {
	if !c.serves.Load() {
		c.serves.Store(true)
	}
}

// hasHandlers reports whether Serve or RecvUnexpected has been called.
func (c *Class) hasHandlers() bool { return c.serves.Load() }
