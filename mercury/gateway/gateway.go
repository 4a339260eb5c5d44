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

// Config configures a Gateway. The zero value allows no calls to C processes.
type Config struct {
	// Targets lists the addresses of the C processes that may be called. "*" allows every address that the gateway can
	// reach.
	Targets []string
	// Memory is the maximum number of bytes that are lent to C processes, or transferred for them, at a time. 0 means
	// 256 MiB. Calls that would exceed it fail with ErrExhausted.
	Memory int64
	// Timeout is the timeout of requests from C clients, which have no deadline. 0 means 1 minute.
	Timeout time.Duration
}

// A Gateway forwards calls until its nodes are closed.
type Gateway struct {
	node *mercury.Node
	cfg  Config

	mu       sync.Mutex                  // guards the fields below
	lent     int64                       // number of bytes of Config.Memory in use
	requests map[string]*mercury.Request // requests of C clients in flight, by a secret known only to their service
}

// A callIn is the input of a call to a C process. Memory contains all lent memory, concatenated. Memory that C may
// write is returned in Written.
type callIn struct {
	Addr    string
	ID      uint64
	In      []byte // input without the handles
	Lent    []lentArg
	Memory  qs.Source
	Written qs.Sink
}

// A lentArg describes lent memory and the position of its handle in the input.
type lentArg struct {
	At     int // offset in callIn.In
	Len    int64
	Access mercury.Access
}

// A transferIn is the input of a transfer between a service and the memory of the C client that made the given request.
type transferIn struct {
	Request string
	Mem     []byte // encoded handle
	Off     int64
	To      qs.Sink   // used by get
	From    qs.Source // used by put
}

var (
	call = qs.Define[callIn, []byte]("mercury.call", withMsgpack)
	get  = qs.Define[transferIn, struct{}]("mercury.get", withMsgpack)
	put  = qs.Define[transferIn, struct{}]("mercury.put", withMsgpack)

	withMsgpack = qs.WithCodec(codec.Msgpack) // regardless of the codec of the node
)

// requestMeta is the metadata key for the secret of a C client's request.
const requestMeta = "mercury-request"

// New returns a Gateway that forwards calls received by node to C processes, which it calls through c. It does not
// serve requests by itself. The caller must drive node, for example with Node.Serve.
func New(node *qs.Node, c *mercury.Node, cfg Config) *Gateway {
	if cfg.Memory == 0 {
		cfg.Memory = 256 << 20
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	g := &Gateway{node: c, cfg: cfg, requests: map[string]*mercury.Request{}}
	call.Handle(node, g.handleCall)
	move := func(put bool) func(context.Context, transferIn) (struct{}, error) {
		return func(ctx context.Context, in transferIn) (struct{}, error) {
			return struct{}{}, g.handleTransfer(ctx, in, put)
		}
	}
	get.Handle(node, move(false))
	put.Handle(node, move(true))
	return g
}

// Forward forwards requests of C clients for the RPC id to the method called name at to, which must be a Peer of the
// gateway's node. If the method certainly has not run, the C client receives HG_HOSTUNREACH. For any other error it
// receives the number of the code or, if the code has none in C, HG_OTHER_ERROR. Forward panics if id already has a
// handler. Use mercury.ID(name) for the ID that C registers for a name.
func (g *Gateway) Forward(name string, id uint64, to qs.Peer) {
	method := qs.Define[[]byte, []byte](name, qs.WithCodec(codec.Raw))
	g.node.Handle(id, func(r *mercury.Request) {
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
			_ = r.RespondError(err) // also fails if Respond failed because the client is disconnected
		}
	})
}

// reserve reserves n bytes of Config.Memory. If they are not available, it returns the error for the caller.
func (g *Gateway) reserve(n int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n < 0 || n > g.cfg.Memory-g.lent {
		return qs.Refuse(qs.Errorf(qs.ErrExhausted, "cannot allocate %d bytes, %d of %d in use", n, g.lent, g.cfg.Memory))
	}
	g.lent += n
	return nil
}

// release releases n bytes reserved earlier.
func (g *Gateway) release(n int64) {
	g.mu.Lock()
	g.lent -= n
	g.mu.Unlock()
}

// handleCall calls a C process on behalf of the sender of in, and returns the encoded result.
func (g *Gateway) handleCall(ctx context.Context, in callIn) ([]byte, error) {
	if !slices.Contains(g.cfg.Targets, in.Addr) && !slices.Contains(g.cfg.Targets, "*") {
		return nil, qs.Refuse(qs.Errorf(qs.ErrDenied, "%s is not a target of this gateway", in.Addr))
	}
	var total, back int64
	at := 0
	for _, p := range in.Lent {
		validAccess := p.Access != 0 && p.Access&^(mercury.Read|mercury.Write) == 0
		if p.At < at || p.At > len(in.In) || p.Len <= 0 || p.Len > g.cfg.Memory || !validAccess {
			return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "invalid memory: %d bytes, access %d, offset %d", p.Len, p.Access, p.At))
		}
		at = p.At
		total += p.Len
		if total > g.cfg.Memory {
			break
		}
		if p.Access&mercury.Write != 0 {
			back += p.Len
		}
	}
	if err := g.reserve(total); err != nil {
		return nil, err
	}
	defer g.release(total)
	if total > 0 && in.Memory.Len() != total || back > 0 && in.Written.Len() != back {
		return nil, qs.Refuse(qs.Errorf(qs.ErrBadInput, "handles of %d bytes for memory of %d bytes", total, in.Memory.Len()))
	}
	mem := make([]byte, total)
	if total > 0 {
		if _, err := in.Memory.ReadAt(mem, 0); err != nil {
			return nil, qs.Refuse(err)
		}
	}
	var input []byte
	var regions []*mercury.Region
	defer func() { // C may access the regions only during the call
		for _, r := range regions {
			_ = r.Close()
		}
	}()
	at, rest := 0, mem
	for _, p := range in.Lent {
		r, err := g.node.Lend(rest[:p.Len:p.Len], p.Access, in.Addr)
		if err != nil {
			return nil, qs.Refuse(callerError(err))
		}
		regions, rest = append(regions, r), rest[p.Len:]
		input = append(input, in.In[at:p.At]...)
		if input, err = r.EagerBulk().AppendProc(input); err != nil {
			return nil, qs.Refuse(err)
		}
		at = p.At
	}
	out, err := g.node.Call(ctx, in.Addr, in.ID, append(input, in.In[at:]...))
	if err != nil {
		return nil, callerError(err)
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

// callerError converts the error of a call to a C process into the error for the caller.
func callerError(err error) error {
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
	err = qs.Errorf(code, "%w", err)
	if fate == mercury.NotRun {
		return qs.Refuse(err)
	}
	return err
}

// chunkSize is the size in bytes of the chunks of a transfer between a C client and a service.
const chunkSize = 256 << 10

// handleTransfer transfers data between a C client and the service that is handling its request.
func (g *Gateway) handleTransfer(ctx context.Context, in transferIn, put bool) error {
	g.mu.Lock()
	r := g.requests[in.Request]
	g.mu.Unlock()
	if r == nil {
		return qs.Refuse(qs.Errorf(qs.ErrNotFound, "request not in flight"))
	}
	b, rest, err := mercury.ParseBulk(in.Mem)
	n := in.To.Len()
	if put {
		n = in.From.Len()
	}
	if err != nil || len(rest) > 0 || n < 0 || in.Off < 0 || in.Off > b.Len() || n > b.Len()-in.Off {
		return qs.Refuse(qs.Errorf(qs.ErrBadInput, "%d bytes at offset %d lie outside the client's memory of %d bytes", n, in.Off, b.Len()))
	}
	buf := make([]byte, min(n, chunkSize))
	if err := g.reserve(int64(len(buf))); err != nil {
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
			return callerError(err)
		}
	}
	return nil
}
