package hg

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An ID names an RPC on the wire: the first 8 bytes of the SHA-256 of its name, little-endian.
type ID uint64

// A Handler runs at the target: inside Trigger, or in [Request.Run] where Config.Dispatch is set. It answers with r.Respond, or
// returns an error, which is the answer; so is a panic. One that returns nil without an answer and without r.Detach is answered
// na.ErrNoResponse. An error after the answer is logged and counted (Stats.Late). It may block and may call anything; meanwhile only
// the Trigger or Run that runs it waits.
type Handler func(r Request) error

// An RPC is what Register is told.
type RPC struct {
	Name string
	// Handler serves the RPC; nil where this process is only an origin of it.
	Handler Handler
	// OneWay says that no response is wanted: the call ends when the request has left. Origin and target must agree.
	OneWay bool
	// Inline has the handler run in Trigger although Config.Dispatch is set: for handlers that never block. One that takes over
	// 10 ms is logged, once for each RPC. With Config.Authorize, which may block, requests are dispatched all the same.
	Inline bool
	// Codec encodes input and output. Nil means Config.Codec. Origin and target must agree: a request in another codec is refused.
	Codec codec.Codec
	// MaxActive bounds the requests of this RPC whose handlers have begun and that have not ended, in all contexts of the class; zero
	// means only Config.MaxActive does. Queue bounds those that may wait for that; zero means as many as MaxActive, negative none. One
	// more is refused at once: its origin gets ErrExhausted, and NotRun.
	MaxActive, Queue int
	// Timeout bounds each request of this RPC here, from its arrival on, also where the origin has set no timeout or a longer one; zero
	// means only the origin does. When it has passed a request that has not begun is refused, and the context of a handler ends, both as at
	// the deadline of the origin. What that handler then answers is up to it; an error that matches context.DeadlineExceeded, and has no code from
	// 64 on, reaches the origin as ErrTimeout.
	Timeout time.Duration
	// Shape describes input and output, for [inspect.RPCsRPC]; the program chooses how.
	Shape string

	methodLimit *methodLimit      // by MaxActive and Queue; nil for none
	own         hghook.RPCOptions // of an RPC of this module
}

// registry holds the RPCs of a class. Readers take no lock.
type registry struct {
	hash func(name string) ID // replaced by tests of collisions

	mu  sync.Mutex // serializes writers
	all atomic.Pointer[map[ID]*RPC]
}

func (r *registry) init() {
	r.hash = HashName
	r.all.Store(&map[ID]*RPC{})
}

func (r *registry) findRPC(id ID) *RPC { return (*r.all.Load())[id] }

// HashName returns the id of a name.
func HashName(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(binary.LittleEndian.Uint64(sum[:]))
}

// Register makes an RPC known under its name and returns its id; handler is nil where this process is only an origin.
func (c *Class) Register(name string, handler Handler) (ID, error) {
	return c.RegisterRPC(RPC{Name: name, Handler: handler})
}

// RegisterRPC is Register with all that can be said. A name that is registered without a handler, to be called, may be registered once
// more, with one: that replaces the first in one step, and calls that are made meanwhile do not notice. Else the error matches na.ErrExists when the
// name is registered; it does, too, when another name has the same id: both names are in its text.
func (c *Class) RegisterRPC(rpc RPC) (ID, error) {
	if rpc.Name == "" || len(rpc.Name) > 255 {
		return 0, fmt.Errorf("hg: register: name of %d bytes, want 1 to 255: %w", len(rpc.Name), ErrInvalid)
	}
	if rpc.own.Expedited && (rpc.Handler != nil && !rpc.Inline || rpc.MaxActive > 0) {
		return 0, fmt.Errorf("hg: register %q: Expedited needs Inline, and no MaxActive: %w", rpc.Name, ErrInvalid)
	}
	if rpc.MaxActive < 0 {
		return 0, fmt.Errorf("hg: register %q: MaxActive is %d, want a number of requests, or 0 for no bound of its own: %w", rpc.Name, rpc.MaxActive, ErrInvalid)
	}
	if rpc.Timeout < 0 {
		return 0, fmt.Errorf("hg: register %q: Timeout is %v, want a time, or 0 for none of its own: %w", rpc.Name, rpc.Timeout, ErrInvalid)
	}
	r := &c.rpcs
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.all.Load()
	id := r.hash(rpc.Name)
	if rpc.Codec == nil {
		rpc.Codec = c.cfg.Codec
	}
	if other := old[id]; other != nil {
		switch {
		case other.Name != rpc.Name:
			return 0, fmt.Errorf("hg: register %q: its id %#x is that of %q; change one of the two names: %w", rpc.Name, uint64(id), other.Name, na.ErrExists)
		case other.Handler != nil || rpc.Handler == nil:
			return 0, fmt.Errorf("hg: register %q: the name is registered already: %w", rpc.Name, na.ErrExists)
		}
	}
	all := make(map[ID]*RPC, len(old)+1)
	for k, v := range old {
		all[k] = v
	}
	rpc.methodLimit = rpc.newMethodLimit()
	all[id] = &rpc
	r.all.Store(&all)
	if rpc.Handler != nil && !rpc.own.ServeDraining && !strings.HasPrefix(rpc.Name, "hg/") { // those are there in any class
		c.na.Serve()
	}
	return id, nil
}

// Deregister forgets an RPC. Calls of it that are under way go on. The error matches ErrNoEntry.
func (c *Class) Deregister(id ID) error {
	r := &c.rpcs
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.all.Load()
	if old[id] == nil {
		return fmt.Errorf("hg: deregister: no RPC has the id %#x: %w", uint64(id), ErrNoEntry)
	}
	all := make(map[ID]*RPC, len(old))
	for k, v := range old {
		if k != id {
			all[k] = v
		}
	}
	r.all.Store(&all)
	return nil
}

// Registered returns what was registered under a name.
func (c *Class) Registered(name string) (RPC, bool) {
	if rpc := c.rpcs.findRPC(c.rpcs.hash(name)); rpc != nil && rpc.Name == name {
		return *rpc, true
	}
	return RPC{}, false
}

// noMethodError is the answer to a request for an RPC that is not served here; the origin adds the name, which does not travel. With help it names
// others: Config.Reflect.
func (r *registry) noMethodError(id ID, help bool) error {
	if !help {
		return na.WithText(ErrNoMethod, fmt.Sprintf("no method has the id %#x", uint64(id)))
	}
	if rpc := r.findRPC(id); rpc != nil {
		return na.WithText(ErrNoMethod, fmt.Sprintf("%q has no handler", rpc.Name))
	}
	var names []string
	for _, rpc := range *r.all.Load() {
		if rpc.Handler != nil {
			names = append(names, rpc.Name)
		}
	}
	slices.Sort(names)
	have := "none is registered"
	if len(names) > 8 {
		names = append(names[:8], "…")
	}
	if len(names) > 0 {
		have = "registered are " + strings.Join(names, ", ")
	}
	return na.WithText(ErrNoMethod, fmt.Sprintf("no method has the id %#x, %s", uint64(id), have))
}
