package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Config says what a Gateway allows. The zero value lets nobody call C.
type Config struct {
	// Targets are the addresses of the C processes that may be called. "*" stands for every address that the gateway can reach.
	Targets []string
	// Memory bounds, in bytes, what is lent to C processes, and moved for them, at a time. 0 means 256 MiB. Calls beyond get ErrExhausted.
	Memory int64
	// Timeout ends the requests of C clients, which have no deadline. 0 means 1 minute.
	Timeout time.Duration
}

// A Gateway passes calls on. It ends with its nodes.
type Gateway struct {
	c   *mercury.Node
	cfg Config

	mu       sync.Mutex
	lent     int64
	requests map[string]*mercury.Request // of C clients, under way, by what only their service knows
}

// A callIn is a call of a C process. The memory that it lends is in Memory, one after the other; what C may write comes back in Written.
type callIn struct {
	Addr    string
	ID      uint64
	In      []byte
	Lent    []place
	Memory  qs.Source
	Written qs.Sink
}

// A place is where the handle of lent memory is in an input.
type place struct {
	At     int
	Len    int64
	Access mercury.Access
}

// A moveIn moves between memory of the C client whose request is Request, and that of its service.
type moveIn struct {
	Request string
	Mem     []byte // a handle, as C encodes it
	Off     int64
	To      qs.Sink   // of get
	From    qs.Source // of put
}

var (
	call = qs.Define[callIn, []byte]("mercury.call", always)
	get  = qs.Define[moveIn, struct{}]("mercury.get", always)
	put  = qs.Define[moveIn, struct{}]("mercury.put", always)

	always = qs.WithCodec(codec.Msgpack) // whatever that of the node
)

// requestMeta is the metadata by which a service names the request of a C client.
const requestMeta = "mercury-request"

// New has node pass calls on to C processes, by c. Node.Serve and c do the work.
func New(node *qs.Node, c *mercury.Node, cfg Config) *Gateway {
	if cfg.Memory == 0 {
		cfg.Memory = 256 << 20
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	g := &Gateway{c: c, cfg: cfg, requests: map[string]*mercury.Request{}}
	call.Handle(node, g.call)
	move := func(put bool) func(context.Context, moveIn) (struct{}, error) {
		return func(ctx context.Context, in moveIn) (struct{}, error) { return struct{}{}, g.move(ctx, in, put) }
	}
	get.Handle(node, move(false))
	put.Handle(node, move(true))
	return g
}

// Forward passes requests of C clients for the RPC id on to the method name of to, a Peer of the gateway's node. C learns of an error
// as HG_HOSTUNREACH if the method certainly did not run, and by the number of its code, or HG_OTHER_ERROR, else. Forward panics if id is
// taken; mercury.ID(name) is what C registers under a name.
func (g *Gateway) Forward(name string, id uint64, to qs.Peer) {
	method := qs.Define[[]byte, []byte](name, qs.WithCodec(codec.Raw))
	g.c.Handle(id, func(r *mercury.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), g.cfg.Timeout)
		defer cancel()
		secret := rand.Text()
		g.mu.Lock()
		g.requests[secret] = r
		g.mu.Unlock()
		defer func() {
			g.mu.Lock()
			delete(g.requests, secret)
			g.mu.Unlock()
		}()
		out, err := method.Call(qs.WithMetadata(ctx, requestMeta, secret), to, r.Input())
		switch {
		case err == nil:
			err = r.Respond(out)
		case qs.FateOf(err) == qs.NotRun:
			err = mercury.ErrUnreachable
		default:
			if remote, ok := hg.RemoteOf(err); ok {
				err = remote.Code
			}
		}
		if err != nil {
			_ = r.RespondError(err) // refused if it is Respond that failed, because the client is gone
		}
	})
}

// charge takes n bytes of what may be lent, or returns the error for the caller.
func (g *Gateway) charge(n int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n < 0 || n > g.cfg.Memory-g.lent {
		return qs.Refuse(qs.Errorf(qs.ErrExhausted, "%d bytes of memory, and %d of %d are in use", n, g.lent, g.cfg.Memory))
	}
	g.lent += n
	return nil
}

func (g *Gateway) release(n int64) {
	g.mu.Lock()
	g.lent -= n
	g.mu.Unlock()
}

// call serves a call of a C process.
func (g *Gateway) call(ctx context.Context, in callIn) ([]byte, error) {
	if !slices.Contains(g.cfg.Targets, in.Addr) && !slices.Contains(g.cfg.Targets, "*") {
		return nil, qs.Refuse(qs.Errorf(qs.ErrDenied, "%s is not a target of this gateway", in.Addr))
	}
	var total, back int64
	at := 0
	for _, p := range in.Lent {
		if p.At < at || p.At > len(in.In) || p.Len <= 0 || p.Len > g.cfg.Memory || p.Access == 0 || p.Access&^(mercury.Read|mercury.Write) != 0 {
			return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "lent memory of %d bytes, access %d, at byte %d", p.Len, p.Access, p.At))
		}
		at = p.At
		if total += p.Len; total > g.cfg.Memory {
			break
		}
		if p.Access&mercury.Write != 0 {
			back += p.Len
		}
	}
	if err := g.charge(total); err != nil {
		return nil, err
	}
	defer g.release(total)
	if total > 0 && in.Memory.Len() != total || back > 0 && in.Written.Len() != back {
		return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "handles of %d bytes, and %d are lent", total, in.Memory.Len()))
	}
	mem := make([]byte, total)
	if total > 0 {
		if _, err := in.Memory.ReadAt(mem, 0); err != nil {
			return nil, qs.Refuse(err)
		}
	}
	var input []byte
	var regions []*mercury.Region
	defer func() { // a region is C's for the time of the call
		for _, r := range regions {
			_ = r.Close()
		}
	}()
	at, rest := 0, mem
	for _, p := range in.Lent {
		r, err := g.c.Lend(rest[:p.Len:p.Len], p.Access, in.Addr)
		if err != nil {
			return nil, qs.Refuse(failed(err))
		}
		regions, rest = append(regions, r), rest[p.Len:]
		input = append(input, in.In[at:p.At]...)
		if input, err = r.EagerBulk().AppendProc(input); err != nil {
			return nil, qs.Refuse(err)
		}
		at = p.At
	}
	out, err := g.c.Call(ctx, in.Addr, in.ID, append(input, in.In[at:]...))
	if err != nil {
		return nil, failed(err)
	}
	var from, to int64
	for i, p := range in.Lent {
		_ = regions[i].Close()
		if p.Access&mercury.Write != 0 {
			if _, err := in.Written.WriteAt(mem[from:from+p.Len], to); err != nil {
				return nil, err
			}
			to += p.Len
		}
		from += p.Len
	}
	return out, nil
}

// failed is the error of a C process for a caller.
func failed(err error) error {
	code, fate := mercury.CodeOf(err), mercury.FateOf(err)
	switch {
	case errors.Is(err, mercury.ErrNoMethod):
		code = qs.ErrNotFound
	case fate == mercury.NotRun:
		code = qs.ErrUnavailable
	case fate == mercury.MaybeRan:
		code = qs.ErrAborted
	case code < qs.ErrNotFound:
		code = qs.ErrInternal
	}
	if err = qs.Errorf(code, "%w", err); fate == mercury.NotRun {
		return qs.Refuse(err)
	}
	return err
}

// pieceSize is how much is moved at a time between a C client and its service.
const pieceSize = 256 << 10

// move moves between a C client and the service that handles its request.
func (g *Gateway) move(ctx context.Context, in moveIn, put bool) error {
	g.mu.Lock()
	r := g.requests[in.Request]
	g.mu.Unlock()
	if r == nil {
		return qs.Refuse(qs.Errorf(qs.ErrNotFound, "no such request is under way"))
	}
	b, rest, err := mercury.ParseBulk(in.Mem)
	n := in.To.Len()
	if put {
		n = in.From.Len()
	}
	if err != nil || len(rest) > 0 || n < 0 || in.Off < 0 || in.Off > b.Len() || n > b.Len()-in.Off {
		return qs.Refuse(qs.Errorf(qs.ErrBadInput, "%d bytes at %d of the client's %d", n, in.Off, b.Len()))
	}
	buf := make([]byte, min(n, pieceSize))
	if err := g.charge(int64(len(buf))); err != nil {
		return err
	}
	defer g.release(int64(len(buf)))
	remote := r.Remote(b)
	for at := int64(0); at < n; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), n-at)]
		if put {
			if _, err = in.From.ReadAt(buf, at); err == nil {
				_, err = remote.Put(ctx, buf, in.Off+at)
			}
		} else if _, err = remote.Get(ctx, buf, in.Off+at); err == nil {
			_, err = in.To.WriteAt(buf, at)
		}
		if err != nil {
			return failed(err)
		}
	}
	return nil
}
