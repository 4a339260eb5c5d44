package mercury

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// margoIn and margoOut are the lengths in bytes of Margo's prefixes. The prefix of an input is the ID of the calling
// RPC, which is used for statistics. The prefix of an output is an hg_return_t.
const margoIn, margoOut = 8, 4

// DefaultProvider is Margo's provider ID for RPCs without a provider.
const DefaultProvider = hgwire.DefaultProvider

// MargoID returns the ID of the RPC called name at a Margo provider.
func MargoID(name string, provider uint16) uint64 { return hgwire.MargoID(name, provider) }

// trimOutput returns the output b without its prefix. Margo reports errors in this prefix rather than in the response
// header. If the prefix contains an error, trimOutput returns it as a *RemoteError.
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

// respondError responds to r with err, which it sends in the prefix for a Margo method, and otherwise in the response
// header.
func (w margoPrefix) respondError(r *Request, err error) {
	if w.out == 0 {
		_ = r.RespondError(err)
		return
	}
	_ = r.Respond([]byte{uint8(codeInC(err)), 0, 0, 0})
}

// DefineMargo defines a Margo method, like MARGO_REGISTER, for DefaultProvider. Use At to obtain the method for other
// providers. DefineMargo panics if In or Out cannot be encoded.
func DefineMargo[In, Out any](name string) *Method[In, Out] {
	return define[In, Out](name, MargoID(name, DefaultProvider), margoPrefix{margoIn, margoOut})
}

// At returns m for the given provider, like MARGO_REGISTER_PROVIDER. It is cheap enough to be used for each call, as in
// m.At(provider).Call. At panics if m was not defined by DefineMargo.
func (m *Method[In, Out]) At(provider uint16) *Method[In, Out] {
	if m.prefix != (margoPrefix{margoIn, margoOut}) {
		panic("mercury: method " + m.name + " has no providers: define it with DefineMargo")
	}
	return &Method[In, Out]{m.name, MargoID(m.name, provider), m.prefix}
}

// A Provider is a Margo provider served by a Node: a set of methods with the same provider ID, and an identity, which
// is a name by which clients recognize the kind of service. It is safe for concurrent use.
type Provider struct {
	node     *Node
	id       uint16
	identity string

	mu     sync.Mutex
	closed bool
	ids    []uint64 // IDs of the RPCs that the provider serves
}

// Provide starts a provider, which serves requests until Provider.Close is called. Use HandleAt to add its methods. Its
// identity, for example "yokan", is returned by Identity and, in C, by margo_provider_get_identity. The error matches
// ErrExists if n already has a provider with this ID, and ErrInvalid if identity contains a zero byte.
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

// ID returns the provider ID of p.
func (p *Provider) ID() uint16 { return p.id }

// Identity returns the identity with which p was started.
func (p *Provider) Identity() string { return p.identity }

// addHandler adds fn as the handler of the RPC id. It returns false if that RPC already has a handler or if p is
// closed.
func (p *Provider) addHandler(id uint64, fn func(*Request)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.node.addHandler(id, handler{serve: fn, provider: p}) {
		return false
	}
	p.ids = append(p.ids, id)
	return true
}

// Close stops the provider. Later requests to it, including those for its identity, receive the response HG_NOENTRY,
// and its ID can be reused. Close does not wait for running handlers. It returns nil and may be called more than once.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.ids {
		p.node.removeHandler(id, p)
	}
	p.ids, p.closed = nil, true
	return nil
}

// HandleAt registers fn as the handler of m at p, like Handle, until p.Close is called. m's own provider is ignored.
// HandleAt panics if p already serves m or is closed, if fn is nil, or if m was not defined by DefineMargo.
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

// Identity requests the identity of the Margo provider at addr. It blocks and fails like Node.Call. The error matches
// ErrNoMethod if there is no such provider or if it has registered no identity.
func Identity(ctx context.Context, n *Node, addr string, provider uint16) (string, error) {
	return identityRPC.At(provider).Call(ctx, n, addr, struct{}{})
}

// EnableShutdown allows every peer to shut down this process with ShutdownRemote or, in C,
// margo_shutdown_remote_instance. On such a request, the node sends the response and then calls stop, once. Unless
// EnableShutdown has been called, the response is HG_NOENTRY. stop runs in its own goroutine. It should cancel the
// context for which main waits before closing n. If stop itself closes n, the response may be lost. EnableShutdown
// panics if it was called before.
func (n *Node) EnableShutdown(stop func()) {
	var once sync.Once
	n.Handle(shutdownRPC.id, func(r *Request) {
		answer := shutdownRPC.newHandler(func(context.Context, struct{}) (int32, error) { return 0, nil })
		answer(r)
		once.Do(stop)
	})
}

// ShutdownRemote requests the shutdown of the process at addr, which must use Margo or have called EnableShutdown. It
// blocks until the response has arrived, but does not wait for the process to exit. The error matches ErrPermission if
// the process does not allow it. Other errors are those documented for Node.Call.
func ShutdownRemote(ctx context.Context, n *Node, addr string) error {
	ret, err := shutdownRPC.Call(ctx, n, addr, struct{}{})
	if err == nil && ret != 0 {
		err = &Error{"call", addr, shutdownRPC.id, Ran, errorf(ErrPermission, "%v: margo_enable_remote_shutdown is not set", ErrPermission)}
	}
	return err
}
