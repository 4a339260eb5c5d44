package mercury

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// What Margo puts in front of arguments: the number of the RPC that has led to the call, which is for its statistics, and an hg_return_t.
const margoIn, margoOut = 8, 4

// DefaultProvider is Margo's provider for RPCs that belong to none.
const DefaultProvider = hgwire.DefaultProvider

// MargoID returns the identity of an RPC of a Margo provider.
func MargoID(name string, provider uint16) uint64 { return hgwire.MargoID(name, provider) }

// output takes the front off an output. Margo's own failure is there, and not in the header of the response.
func (w framing) output(b []byte) ([]byte, error) {
	if len(b) < w.out {
		return nil, errorf(ErrProtocol, "an output of %d bytes, want %d at least: the target does not use Margo", len(b), w.out)
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

// fail answers with an error, where the origin looks for it.
func (w framing) fail(r *Request, err error) {
	if w.out == 0 {
		_ = r.RespondError(err)
		return
	}
	_ = r.Respond([]byte{uint8(codeInC(err)), 0, 0, 0})
}

// DefineMargo names a method of Margo, as MARGO_REGISTER does. It is that of DefaultProvider; At names the same of other providers. It
// panics if In or Out cannot be encoded.
func DefineMargo[In, Out any](name string) *Method[In, Out] {
	return define[In, Out](name, MargoID(name, DefaultProvider), framing{margoIn, margoOut})
}

// At returns m as a method of a provider, as MARGO_REGISTER_PROVIDER names it. It costs little: a handle of a database, for example, that holds
// the address and the provider of a service calls m.At(provider).Call. At panics if m was not defined by DefineMargo.
func (m *Method[In, Out]) At(provider uint16) *Method[In, Out] {
	if m.wrap != (framing{margoIn, margoOut}) {
		panic("mercury: method " + m.name + " has no providers: define it with DefineMargo")
	}
	return &Method[In, Out]{m.name, MargoID(m.name, provider), m.wrap}
}

// A Provider is one of the providers of Margo that a Node serves: methods with the same number, and with a name, its identity, that tells
// clients what kind they are of. It is safe for concurrent use.
type Provider struct {
	node     *Node
	id       uint16
	identity string

	mu     sync.Mutex
	closed bool
	ids    []uint64 // of the RPCs that it serves
}

// Provide begins a provider, whose number may come from a configuration, until Provider.Close. It answers Identity, and
// margo_provider_get_identity in C, with identity, "yokan" for example. HandleAt adds its methods. The error matches ErrExists if n has such a
// provider, and ErrInvalid if identity has a zero byte.
func (n *Node) Provide(id uint16, identity string) (*Provider, error) {
	p := &Provider{node: n, id: id, identity: identity}
	if strings.IndexByte(identity, 0) >= 0 {
		return nil, errorf(ErrInvalid, "mercury: provider %d: an identity with a zero byte, where C would end it", id)
	}
	answer := func(context.Context, struct{}) (string, error) { return identity, nil }
	if !p.handle(identityRPC.At(id).id, identityRPC.handler(answer)) {
		return nil, errorf(ErrExists, "mercury: provider %d is served already: close it, or choose another number", id)
	}
	return p, nil
}

// ID returns the number of p.
func (p *Provider) ID() uint16 { return p.id }

// Identity returns what p was begun with.
func (p *Provider) Identity() string { return p.identity }

// handle reports whether the RPC id had no handler, and p is not closed.
func (p *Provider) handle(id uint64, fn func(*Request)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.node.addHandler(id, handler{fun: fn, provider: p}) {
		return false
	}
	p.ids = append(p.ids, id)
	return true
}

// Close ends the provider: its requests, and those for its identity, are answered with HG_NOENTRY, and its number is free. Close does not wait
// for handlers that run. It is nil, and may be called twice.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.ids {
		p.node.removeHandler(id, p)
	}
	p.ids, p.closed = nil, true
	return nil
}

// HandleAt has p serve m with fn, as Handle does, until p.Close. It panics if p serves m already or is closed, if fn is nil, and if m was not
// defined by DefineMargo. Whichever provider m is of itself does not matter.
func (m *Method[In, Out]) HandleAt(p *Provider, fn func(ctx context.Context, in In) (Out, error)) {
	at := m.At(p.id)
	if !p.handle(at.id, at.handler(fn)) {
		panic(fmt.Sprintf("mercury: provider %d serves %s already, or is closed", p.id, m.name))
	}
}

var (
	identityRPC = DefineMargo[struct{}, string]("__identity__")
	shutdownRPC = DefineMargo[struct{}, int32]("__shutdown__")
)

// Identity asks for the kind of the Margo provider at addr, which every provider that has registered one answers. It waits as Node.Call
// does, and returns what that does; the error matches ErrNoMethod if there is no such provider.
func Identity(ctx context.Context, n *Node, addr string, provider uint16) (string, error) {
	return identityRPC.At(provider).Call(ctx, n, addr, struct{}{})
}

// EnableShutdown lets any peer end this process, by ShutdownRemote or, in C, margo_shutdown_remote_instance: the peer is answered, and then stop is
// called, once, on a goroutine of its own. Without it C gets HG_NOENTRY. stop is usually what cancels the context on which main waits
// before it closes n; if it closes n itself the answer may be lost. EnableShutdown panics if it was called before.
func (n *Node) EnableShutdown(stop func()) {
	var once sync.Once
	n.Handle(shutdownRPC.id, func(r *Request) {
		answer := shutdownRPC.handler(func(context.Context, struct{}) (int32, error) { return 0, nil })
		answer(r)
		once.Do(stop)
	})
}

// ShutdownRemote asks the Margo process at addr, or one that has called EnableShutdown, to end, and waits for its answer, not for its end. The
// error matches ErrPermission if that process does not allow it, and is that of Node.Call else.
func ShutdownRemote(ctx context.Context, n *Node, addr string) error {
	ret, err := shutdownRPC.Call(ctx, n, addr, struct{}{})
	if err == nil && ret != 0 {
		err = &Error{"call", addr, shutdownRPC.id, Ran, errorf(ErrPermission, "%v: the process does not allow it: margo_enable_remote_shutdown", ErrPermission)}
	}
	return err
}
