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

// A Handler serves a request at the target: in Trigger, or in [Request.Run] if Config.Dispatch is
// set. It answers with r.Respond, or returns an error, which is the answer; a panic is answered,
// too. If it returns nil without an answer and without r.Detach, the answer is na.ErrNoResponse. An
// error after the answer is logged and counted (Stats.Late). A handler may block and may call any
// function; only the Trigger or Run that runs it waits.
type Handler func(r Request) error

// An RPC is the description of an RPC for RegisterRPC.
type RPC struct {
	Name string
	// Handler serves the RPC; nil if this process is only an origin of it.
	Handler Handler
	// OneWay means that there is no response: the call ends when the request has left. Origin and
	// target must agree.
	OneWay bool
	// Inline makes the handler run in Trigger although Config.Dispatch is set. It is for handlers
	// that never block; the first one of each RPC that takes over 10 ms is logged. With
	// Config.Authorize, which may block, requests are dispatched anyway, unless
	// Config.AuthorizeQuick is set.
	Inline bool
	// Codec encodes input and output. Nil means Config.Codec. Origin and target must agree: a
	// request in another codec is refused.
	Codec codec.Codec
	// MaxActive limits the requests of this RPC whose handlers have begun and that have not ended,
	// in all contexts of the class; zero means that only Config.MaxActive does. Queue limits the
	// requests that wait for this limit; zero means MaxActive, negative none. Further requests are
	// refused at once, with ErrExhausted and NotRun.
	MaxActive, Queue int
	// Timeout limits each request of this RPC at this target, from its arrival on, also if the
	// origin has set no timeout or a longer one; zero means that only the origin does. When it has
	// passed, a request that has not begun is refused, and the context of its handler ends, both as
	// at the origin's deadline. The handler may still answer; an error of it that matches
	// context.DeadlineExceeded, and has no code from 64 on, reaches the origin as ErrTimeout.
	Timeout time.Duration
	// Shape describes input and output, for [inspect.RPCsRPC], in a format that the program
	// chooses.
	Shape string

	methodLimit *methodLimit      // made from MaxActive and Queue; nil for no limit
	own         hghook.RPCOptions // options of RPCs of this module
}

// registry holds the RPCs of a class. Readers take no lock: a change replaces the map.
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

// HashName returns the id of the RPC with this name.
func HashName(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(binary.LittleEndian.Uint64(sum[:]))
}

// Register registers an RPC under its name and returns its id; handler is nil if this process is
// only an origin of it. The errors are those of RegisterRPC.
func (c *Class) Register(name string, handler Handler) (ID, error) {
	return c.RegisterRPC(RPC{Name: name, Handler: handler})
}

// RegisterRPC registers an RPC with all options. An RPC that is registered without a handler may be
// registered again with one, which replaces it atomically, without an effect on calls that are made
// at the time. The error matches na.ErrExists if the name is registered otherwise, or if another
// name has the same id (the text has both names), and ErrInvalid if an option is out of range.
func (c *Class) RegisterRPC(rpc RPC) (ID, error) {
	if rpc.Name == "" || len(rpc.Name) > 255 {
		return 0, fmt.Errorf("hg: register: name has %d bytes, want 1 to 255: %w", len(rpc.Name), ErrInvalid)
	}
	if rpc.own.Expedited && (rpc.Handler != nil && !rpc.Inline || rpc.MaxActive > 0) {
		return 0, fmt.Errorf("hg: register %q: Expedited requires Inline and no MaxActive: %w", rpc.Name, ErrInvalid)
	}
	if rpc.MaxActive < 0 {
		return 0, fmt.Errorf("hg: register %q: MaxActive is %d, want a number of requests, or 0 for no limit: %w", rpc.Name, rpc.MaxActive, ErrInvalid)
	}
	if rpc.Timeout < 0 {
		return 0, fmt.Errorf("hg: register %q: Timeout is %v, want a duration, or 0 for none: %w", rpc.Name, rpc.Timeout, ErrInvalid)
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
			return 0, fmt.Errorf("hg: register %q: id %#x collides with that of %q; rename one of them: %w", rpc.Name, uint64(id), other.Name, na.ErrExists)
		case other.Handler != nil || rpc.Handler == nil:
			return 0, fmt.Errorf("hg: register %q: already registered: %w", rpc.Name, na.ErrExists)
		}
	}
	all := make(map[ID]*RPC, len(old)+1)
	for k, v := range old {
		all[k] = v
	}
	rpc.methodLimit = rpc.newMethodLimit()
	all[id] = &rpc
	r.all.Store(&all)
	// every class has the RPCs of this package, and does not become a target by them
	if rpc.Handler != nil && !rpc.own.ServeDraining && !strings.HasPrefix(rpc.Name, "hg/") {
		c.na.Serve()
	}
	return id, nil
}

// Deregister removes an RPC. Calls of it that are in flight go on. The error matches ErrNoEntry if
// id is not registered.
func (c *Class) Deregister(id ID) error {
	r := &c.rpcs
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.all.Load()
	if old[id] == nil {
		return fmt.Errorf("hg: deregister: no RPC with id %#x: %w", uint64(id), ErrNoEntry)
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

// Registered returns the RPC that is registered under a name.
func (c *Class) Registered(name string) (RPC, bool) {
	if rpc := c.rpcs.findRPC(c.rpcs.hash(name)); rpc != nil && rpc.Name == name {
		return *rpc, true
	}
	return RPC{}, false
}

// noMethodError returns the error for a request of an RPC that is not served here; the origin adds
// the name, which does not travel. With help it lists RPCs that are served: see Config.Reflect.
func (r *registry) noMethodError(id ID, help bool) error {
	if !help {
		return na.WithText(ErrNoMethod, fmt.Sprintf("no method with id %#x", uint64(id)))
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
	have := "none registered"
	if len(names) > 8 {
		names = append(names[:8], "…")
	}
	if len(names) > 0 {
		have = "registered: " + strings.Join(names, ", ")
	}
	return na.WithText(ErrNoMethod, fmt.Sprintf("no method with id %#x, %s", uint64(id), have))
}
