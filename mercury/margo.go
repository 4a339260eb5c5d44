package mercury

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// margoIn and margoOut are the lengths of the prefixes of Margo: in input the id of the calling RPC, for statistics,
// in output an hg_return_t.
const margoIn, margoOut = 8, 4

// DefaultProvider is the provider id of Margo for RPCs without a provider.
const DefaultProvider = hgwire.DefaultProvider

// MargoID returns the id of an RPC of a Margo provider.
func MargoID(name string, provider uint16) uint64 { return hgwire.MargoID(name, provider) }

// trimOutput removes the prefix of an output. Margo sends its errors in this prefix, not in the header of the response.
func (w margoPrefix) trimOutput(b []byte) ([]byte, error) {
	if len(b) < w.out {
		return nil, errorf(ErrProtocol, "output of %d bytes, want at least %d (not a Margo target)", len(b), w.out)
	}
	if w.out > 0 && b[0]|b[1]|b[2]|b[3] != 0 {
		code := Code(b[0])
		if b[1]|b[2]|b[3] != 0 {
			code = otherError
		}
		return nil, &RemoteError{code}
	}
	return b[w.out:], nil
}

// respondError responds with err, in the prefix for Margo, else in the header.
func (w margoPrefix) respondError(r *Request, err error) {
	if w.out == 0 {
		_ = r.RespondError(err)
		return
	}
	_ = r.Respond([]byte{uint8(codeInC(err)), 0, 0, 0})
}

// DefineMargo defines a method of Margo, as MARGO_REGISTER does, for DefaultProvider; At returns it for other
// providers. It panics if In or Out cannot be encoded.
func DefineMargo[In, Out any](name string) *Method[In, Out] {
	return define[In, Out](name, MargoID(name, DefaultProvider), margoPrefix{margoIn, margoOut})
}

// At returns m for a provider, as MARGO_REGISTER_PROVIDER does. It is cheap enough to be called for each call, for
// example m.At(provider).Call. At panics if m was not defined by DefineMargo.
func (m *Method[In, Out]) At(provider uint16) *Method[In, Out] {
	if m.prefix != (margoPrefix{margoIn, margoOut}) {
		panic("mercury: method " + m.name + " has no providers: define it with DefineMargo")
	}
	return &Method[In, Out]{m.name, MargoID(m.name, provider), m.prefix}
}

// A Provider is a Margo provider that a Node serves: a set of methods with the same provider id, and an identity, a
// name by which clients recognize the kind of service. It is safe for concurrent use.
type Provider struct {
	node     *Node
	id       uint16
	identity string

	mu     sync.Mutex
	closed bool
	ids    []uint64 // of the RPCs that it serves
}

// Provide starts a provider, which serves until Provider.Close; HandleAt adds its methods. Identity, and in C
// margo_provider_get_identity, return its identity, for example "yokan". The error matches ErrExists if n has a
// provider with this id, and ErrInvalid if identity contains a zero byte.
func (n *Node) Provide(id uint16, identity string) (*Provider, error) {
	p := &Provider{node: n, id: id, identity: identity}
	if strings.IndexByte(identity, 0) >= 0 {
		return nil, errorf(ErrInvalid, "mercury: provider %d: identity contains a zero byte", id)
	}
	answer := func(context.Context, struct{}) (string, error) { return identity, nil }
	if !p.addHandler(identityRPC.At(id).id, identityRPC.newHandler(answer)) {
		return nil, errorf(ErrExists, "mercury: provider %d already exists", id)
	}
	return p, nil
}

// ID returns the provider id of p.
func (p *Provider) ID() uint16 { return p.id }

// Identity returns the identity that p was started with.
func (p *Provider) Identity() string { return p.identity }

// addHandler adds a handler, and returns false if the RPC id has one already or p is closed.
func (p *Provider) addHandler(id uint64, fn func(*Request)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.node.addHandler(id, handler{serve: fn, provider: p}) {
		return false
	}
	p.ids = append(p.ids, id)
	return true
}

// Close ends the provider: the response to its requests, and to those for its identity, is HG_NOENTRY, and its id can
// be used again. Close does not wait for running handlers. It returns nil, and may be called twice.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.ids {
		p.node.removeHandler(id, p)
	}
	p.ids, p.closed = nil, true
	return nil
}

// HandleAt serves m at p with fn, as Handle does, until p.Close. The provider of m itself is ignored. It panics if p
// serves m already or is closed, if fn is nil, and if m was not defined by DefineMargo.
func (m *Method[In, Out]) HandleAt(p *Provider, fn func(ctx context.Context, in In) (Out, error)) {
	at := m.At(p.id)
	if !p.addHandler(at.id, at.newHandler(fn)) {
		panic(fmt.Sprintf("mercury: provider %d serves %s already, or is closed", p.id, m.name))
	}
}

var (
	identityRPC = DefineMargo[struct{}, string]("__identity__")
	shutdownRPC = DefineMargo[struct{}, int32]("__shutdown__")
)

// Identity requests the identity of the Margo provider at addr, if it has registered one. It blocks and fails as
// Node.Call does; the error matches ErrNoMethod if there is no such provider.
func Identity(ctx context.Context, n *Node, addr string, provider uint16) (string, error) {
	return identityRPC.At(provider).Call(ctx, n, addr, struct{}{})
}

// EnableShutdown allows every peer to shut this process down, with ShutdownRemote or, in C,
// margo_shutdown_remote_instance: the response is sent, and then stop is called, once, on a goroutine of its own.
// Without it the response is HG_NOENTRY. stop should cancel the context for which main waits before it closes n; if
// stop closes n itself the response may be lost. EnableShutdown panics if it was called before.
func (n *Node) EnableShutdown(stop func()) {
	var once sync.Once
	n.Handle(shutdownRPC.id, func(r *Request) {
		answer := shutdownRPC.newHandler(func(context.Context, struct{}) (int32, error) { return 0, nil })
		answer(r)
		once.Do(stop)
	})
}

// ShutdownRemote requests a shutdown of the Margo process at addr, or of one that has called EnableShutdown. It
// blocks until the response has arrived, not until the process has ended. The error matches ErrPermission if the
// process does not allow it, and is that of Node.Call otherwise.
func ShutdownRemote(ctx context.Context, n *Node, addr string) error {
	ret, err := shutdownRPC.Call(ctx, n, addr, struct{}{})
	if err == nil && ret != 0 {
		err = &Error{"call", addr, shutdownRPC.id, Ran, errorf(ErrPermission, "%v: margo_enable_remote_shutdown is not set", ErrPermission)}
	}
	return err
}
