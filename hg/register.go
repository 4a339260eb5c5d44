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

// An ID identifies an RPC on the wire. It consists of the first 8 bytes of the SHA-256 hash of the
// RPC's name, in little-endian order.
type ID uint64

// A Handler serves a request at the target. It runs in Trigger or, if Config.Dispatch is set, in
// [Request.Run]. It responds with r.Respond, or returns an error, which is then the response. A
// panic also results in an error response. If the handler returns nil without having called
// r.Respond or r.Detach, the response is na.ErrNoResponse. An error returned after a response is
// logged and counted in Stats.Late. A handler may block and may call any function. While it blocks,
// the Trigger or Run that called it does not return.
type Handler func(r Request) error

// An RPC holds the name, the handler, and the options of an RPC for RegisterRPC.
type RPC struct {
	Name string
	// Handler serves the RPC. It is nil if this process only calls the RPC.
	Handler Handler
	// OneWay declares that the RPC has no response. A call then completes when its request has been
	// sent. Origin and target must set the same value.
	OneWay bool
	// Inline makes the handler run in Trigger even if Config.Dispatch is set. The handler must not
	// block. For each RPC, the first invocation that takes more than 10 ms is logged. If
	// Config.Authorize, which may block, is set, requests are dispatched anyway, unless
	// Config.AuthorizeQuick is set as well.
	Inline bool
	// Codec encodes input and output. If nil, Config.Codec is used. Origin and target must agree; a
	// request encoded with another codec is refused.
	Codec codec.Codec
	// MaxActive limits the number of active requests of this RPC across all contexts of the class.
	// A request is active from the time its handler begins until the request completes. Zero means
	// that only Config.MaxActive applies. Queue limits the number of requests that wait for this
	// limit. Zero means MaxActive, and a negative value means that requests do not wait. Further
	// requests are refused immediately with ErrExhausted and NotRun.
	MaxActive, Queue int
	// Timeout limits the duration of each request of this RPC at this target, measured from its
	// arrival, even if the origin set no timeout or a longer one. Zero means no additional limit.
	// When the timeout expires, a request that has not begun is refused, and the context of a
	// running handler is canceled, as at the origin's deadline. The handler may still respond. If
	// it returns an error that matches context.DeadlineExceeded and has no code of 64 or above, the
	// origin receives ErrTimeout.
	Timeout time.Duration
	// Shape describes input and output for [inspect.RPCsRPC], in a format chosen by the program.
	Shape string

	methodLimit *methodLimit      // derived from MaxActive and Queue; nil means no limit
	own         hghook.RPCOptions // options for RPCs of this module
}

// A registry holds the RPCs of a class. Readers acquire no lock, because every change replaces the
// map.
type registry struct {
	hash func(name string) ID // replaced in tests of collisions

	mu  sync.Mutex // serializes writers
	all atomic.Pointer[map[ID]*RPC]
}

func (r *registry) init() {
	r.hash = HashName
	r.all.Store(&map[ID]*RPC{})
}

func (r *registry) findRPC(id ID) *RPC { return (*r.all.Load())[id] }

// HashName returns the ID of the RPC with the given name.
func HashName(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(binary.LittleEndian.Uint64(sum[:]))
}

// Register registers an RPC under its name and returns its ID. handler is nil if this process only
// calls the RPC. Errors are those documented for RegisterRPC.
func (c *Class) Register(name string, handler Handler) (ID, error) {
	return c.RegisterRPC(RPC{Name: name, Handler: handler})
}

// RegisterRPC registers an RPC with all options. If the name is registered without a handler,
// RegisterRPC may register it again with one. This replaces the entry atomically and does not
// affect concurrent calls. The error matches na.ErrExists if the name is already registered in any
// other case, or if another name has the same ID (the text contains both names). It matches
// ErrInvalid if an option is out of range.
func (c *Class) RegisterRPC(rpc RPC) (ID, error) {
	if rpc.Name == "" || len(rpc.Name) > 255 {
		return 0, fmt.Errorf("hg: register: name has %d bytes, want 1 to 255: %w", len(rpc.Name), ErrInvalid)
	}
	if rpc.own.Expedited && (rpc.Handler != nil && !rpc.Inline || rpc.MaxActive > 0) {
		return 0, fmt.Errorf("hg: register %q: Expedited requires Inline and no MaxActive: %w", rpc.Name, ErrInvalid)
	}
	if rpc.MaxActive < 0 {
		return 0, fmt.Errorf("hg: register %q: MaxActive is %d, want a positive number, or 0 for no limit: %w", rpc.Name, rpc.MaxActive, ErrInvalid)
	}
	if rpc.Timeout < 0 {
		return 0, fmt.Errorf("hg: register %q: Timeout is %v, want a positive duration, or 0 for no timeout: %w", rpc.Name, rpc.Timeout, ErrInvalid)
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
	// Every class registers the RPCs of this package. They do not make it a target.
	if rpc.Handler != nil && !rpc.own.ServeDraining && !strings.HasPrefix(rpc.Name, "hg/") {
		c.na.Serve()
	}
	return id, nil
}

// Deregister removes an RPC. Calls of it that are in flight continue. The error matches ErrNoEntry
// if id is not registered.
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

// Registered returns the RPC registered under the given name.
func (c *Class) Registered(name string) (RPC, bool) {
	if rpc := c.rpcs.findRPC(c.rpcs.hash(name)); rpc != nil && rpc.Name == name {
		return *rpc, true
	}
	return RPC{}, false
}

// noMethodText begins the text of an ErrNoMethod refusal and is followed by the ID.
const noMethodText = "no method with id "

// noMethodError returns the error for a request whose RPC is not served here. The origin adds the
// RPC's name, which is not sent. If help is true, the error lists RPCs that are served; see
// Config.Reflect.
func (r *registry) noMethodError(id ID, help bool) error {
	if !help {
		return na.WithText(ErrNoMethod, fmt.Sprintf(noMethodText+"%#x", uint64(id)))
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
	return na.WithText(ErrNoMethod, fmt.Sprintf(noMethodText+"%#x, %s", uint64(id), have))
}
