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
	freed   atomic.Bool // the plugins have closed their networks

	messages messageForms // the message forms of the layer above; constant after UseMessages

	mu       sync.Mutex // guards the fields below
	contexts []*Context
	open     int // contexts that have not been released
	draining bool
	closed   bool
}

// Open opens the network that addr names. The forms of addr are:
//   - "tcp://" only to dial, "tcp://host:port" also to listen; port 0 lets the system choose; "udp://" is the same
//   - "sm://name" to listen in shared memory, for processes of the same user on this machine
//   - "sm://name-*" to listen at a unique name: Context.Self has the text that replaces the *
//   - "tcp://host:port,sm://" to open a second transport; "udp://host:port,sm://" is the same
//
// With two transports, peers have their addresses of the first. Those on this machine that have
// opened both too are reached by the second, as Config.Local says. If this process cannot open the
// second one, Config.Logger gets the reason, and all peers are reached by the first.
//
// The error lists all invalid fields of cfg, and matches ErrInvalid.
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

// pluginOf returns the plugin for one, a transport in addr, and its address without the scheme.
func pluginOf(addr, one string, given []Plugin) (p Plugin, rest string, err error) {
	scheme, rest, ok := strings.Cut(one, "://")
	if !ok {
		return nil, "", fmt.Errorf(`na: open %q: missing scheme, want "tcp://", "tcp://host:port" or "tcp://host:port,sm://": %w`, addr, ErrInvalid)
	}
	p, err = findPlugin(scheme, given)
	return p, rest, err
}

// Config returns the configuration with its defaults filled in.
func (c *Class) Config() Config { return c.cfg }

// Limits returns the limits of the class.
func (c *Class) Limits() Limits { return c.domain.limits() }

// Addr returns the address of context 0.
func (c *Class) Addr() Addr { return c.domain.addr }

// Regions returns the number of registered regions.
func (c *Class) Regions() int64 { return c.regions.Load() }

// Registered describes the registered regions, at most most of them. It may be called from any
// goroutine. It holds a lock that peers' requests for memory need, for some microseconds per
// thousand regions.
func (c *Class) Registered(most int) (all []MemStat) {
	for _, m := range c.domain.listRegistered(most) {
		all = append(all, MemStat{m.key.Len, m.key.Access, m.user.Load()})
	}
	return all
}

// Now returns the time of the class's clock. It is monotonic, and only differences are meaningful.
func (c *Class) Now() time.Duration { return c.domain.now() }

// Rand fills b with random bytes that a peer cannot guess. In a simulator they follow from its
// seed.
func (c *Class) Rand(b []byte) { c.domain.rand(b) }

// NewContext makes a context. Its ID is the number of contexts made before.
func (c *Class) NewContext() (*Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.draining {
		return nil, fmt.Errorf("na: new context: class is %w", ErrClosed)
	}
	if len(c.contexts) >= c.cfg.Contexts {
		return nil, fmt.Errorf("na: new context: limit of %d contexts reached (Config.Contexts): %w", len(c.contexts), ErrAgain)
	}
	nctx, err := newContext(c, len(c.contexts))
	if err != nil {
		return nil, err
	}
	c.contexts = append(c.contexts, nctx)
	c.open++
	return nctx, nil
}

// Close closes every context, without blocking. Callbacks of canceled operations run in Trigger of
// each context. The address is free soon after the last of them has returned, when Closed reports
// true. An error is that of the plugin for closing its network; if that happens later, with the
// last context, the error is logged. Calling Close again does nothing.
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

// Closed reports whether closing is complete: every context is released, and the plugin has freed
// the address.
func (c *Class) Closed() bool { return c.freed.Load() }

// onContextReleased removes a released context, and closes the networks after the last one. The
// caller holds the lead of that context, so onContextReleased does not call the user's logger.
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

// closeNetworks closes the networks. It is called once.
func (c *Class) closeNetworks() error {
	defer c.freed.Store(true)
	return c.domain.close()
}

// SetReady sets the response to probes of peers (Context.Probe): success if ready is true, which is
// the default, else ErrNotReady. A draining context always responds with ErrDraining. It does not
// block, and may be called from any goroutine.
func (c *Class) SetReady(ready bool) { c.unready.Store(!ready) }

// IsReady reports the last value passed to SetReady.
func (c *Class) IsReady() bool { return !c.unready.Load() }

// Serve records that this class serves requests of peers: see Config.IdleTimeout. RecvUnexpected
// does so too.
func (c *Class) Serve() {
	if !c.serves.Load() {
		c.serves.Store(true)
	}
}

// hasHandlers reports whether Serve was called.
func (c *Class) hasHandlers() bool { return c.serves.Load() }
