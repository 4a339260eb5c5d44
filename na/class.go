package na

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Class is this process's membership of a network: an address, registered memory, and contexts.
type Class struct {
	cfg     Config
	domain  *domain
	regions atomic.Int64
	tokens  tokenSource
	serves  atomic.Bool
	unready atomic.Bool // SetReady
	freed   atomic.Bool // the plugins have given their networks back

	messages messageForms // of the layer above; not changed after UseMessages

	mu       sync.Mutex // guards the fields below
	contexts []*Context
	open     int // contexts that have not been released
	draining bool
	closed   bool
}

// Open opens the network that addr names: "tcp://" to originate only, "tcp://host:port" to listen too (port 0 lets the
// system choose). "udp://host:port" is alike. "sm://name" listens in shared memory, to processes of the same user on this machine, and
// "sm://name-*" at a name that nobody else has: something unique is put for the *, as Context.Self then says. What else an
// address may hold is in the plugin's documentation. Bad fields of cfg are all reported in one error, which matches ErrInvalid.
//
// "tcp://host:port,sm://" opens a second transport beside the first: peers have their addresses of the first, and those on this
// machine that have opened both, too, are reached by the second, as Config.Local says. udp takes sm likewise. Where this process cannot have
// the second, Config.Logger is told why, and all are reached by the first.
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

// pluginOf returns the plugin of one of the transports in addr, and what follows its scheme.
func pluginOf(addr, one string, given []Plugin) (p Plugin, rest string, err error) {
	scheme, rest, ok := strings.Cut(one, "://")
	if !ok {
		return nil, "", fmt.Errorf(`na: open %q: no scheme, write it as "tcp://", "tcp://host:port" or "tcp://host:port,sm://": %w`, addr, ErrInvalid)
	}
	p, err = findPlugin(scheme, given)
	return p, rest, err
}

// Config returns the configuration with its defaults filled in.
func (c *Class) Config() Config { return c.cfg }

// Limits tells what the class can do.
func (c *Class) Limits() Limits { return c.domain.limits() }

// Addr returns the address of context 0.
func (c *Class) Addr() Addr { return c.domain.addr }

// Regions returns how many regions are registered now.
func (c *Class) Regions() int64 { return c.regions.Load() }

// Registered describes registered memory: all that there is, or most arbitrary ones of more. It may be called from any goroutine, and takes a lock
// that requests of peers for memory need, for some microseconds for each thousand.
func (c *Class) Registered(most int) (all []MemStat) {
	for _, m := range c.domain.listRegistered(most) {
		all = append(all, MemStat{m.key.Len, m.key.Access, m.user.Load()})
	}
	return all
}

// Now reads the clock of the class: monotonic, only differences mean something.
func (c *Class) Now() time.Duration { return c.domain.now() }

// Rand fills b with random bytes that a peer cannot guess. On a simulator they follow from its seed.
func (c *Class) Rand(b []byte) { c.domain.rand(b) }

// NewContext makes the next context; its id is the number of those made before.
func (c *Class) NewContext() (*Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.draining {
		return nil, fmt.Errorf("na: new context: class: %w", ErrClosed)
	}
	if len(c.contexts) >= c.cfg.Contexts {
		return nil, fmt.Errorf("na: new context: the class has %d, as many as Config.Contexts allows: %w", len(c.contexts), ErrAgain)
	}
	nctx, err := newContext(c, len(c.contexts))
	if err != nil {
		return nil, err
	}
	c.contexts = append(c.contexts, nctx)
	c.open++
	return nctx, nil
}

// Close closes every context. It does not wait for operations: callbacks of what is canceled run in Trigger of each context, and the
// address is free soon after the last has run, when Closed reports true. An error is that of the plugin, which could not give its
// network back; where the last context does that later, the error is logged. Calling it again does nothing.
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

// Closed reports whether everything has been given back: every context is drained, and the plugin has freed the address.
func (c *Class) Closed() bool { return c.freed.Load() }

// onContextReleased is called when a context has given everything back. The lead of that context is held, so that no logger may run here.
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

// closeNetworks gives the networks back. It is called once.
func (c *Class) closeNetworks() error {
	defer c.freed.Store(true)
	return c.domain.close()
}

// SetReady says what probes of peers are told (Context.Probe): with true, the default, that the class is ready, with false the error
// ErrNotReady. While a context drains its peers are told ErrDraining in any case. It does not block, and may be called from any goroutine.
func (c *Class) SetReady(ready bool) { c.unready.Store(!ready) }

// IsReady reports what SetReady has said last.
func (c *Class) IsReady() bool { return !c.unready.Load() }

// Serve notes that peers have reason to send requests here: see Config.IdleTimeout. RecvUnexpected does it, too.
func (c *Class) Serve() {
	if !c.serves.Load() {
		c.serves.Store(true)
	}
}

// hasHandlers reports whether Serve was called.
func (c *Class) hasHandlers() bool { return c.serves.Load() }
