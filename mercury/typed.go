package mercury

import (
	"context"
	"reflect"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
)

// A Method is an RPC with the types of its input and output, which package proc encodes. It is a package variable, usually.
type Method[In, Out any] struct {
	name string
	id   uint64
	wrap framing
}

// A framing is what stands in front of input and output.
type framing struct{ in, out int }

// Define names a method, as C does with HG_Register_name or MERCURY_REGISTER. It panics if In or Out cannot be encoded.
func Define[In, Out any](name string) *Method[In, Out] { return DefineID[In, Out](name, ID(name)) }

// DefineID is Define for what C registers by number, with HG_Register; name is for errors.
func DefineID[In, Out any](name string, id uint64) *Method[In, Out] {
	return define[In, Out](name, id, framing{})
}

// DefineMargo names a method of a Margo provider, as MARGO_REGISTER_PROVIDER does; provider is DefaultProvider for MARGO_REGISTER.
func DefineMargo[In, Out any](name string, provider uint16) *Method[In, Out] {
	return define[In, Out](name, MargoID(name, provider), framing{margoIn, margoOut})
}

func define[In, Out any](name string, id uint64, wrap framing) *Method[In, Out] {
	for _, t := range []reflect.Type{reflect.TypeFor[In](), reflect.TypeFor[Out]()} {
		if err := proc.Check(t); err != nil {
			panic("mercury: method " + name + ": " + err.Error())
		}
	}
	return &Method[In, Out]{name, id, wrap}
}

// Name returns the name of m.
func (m *Method[In, Out]) Name() string { return m.name }

// ID returns what stands for the name on the wire.
func (m *Method[In, Out]) ID() uint64 { return m.id }

// Call calls m at addr and waits, as Node.Call does.
func (m *Method[In, Out]) Call(ctx context.Context, n *Node, addr string, in In) (out Out, err error) {
	b, err := m.encode("call", addr, in)
	if err != nil {
		return out, err
	}
	if b, err = n.Call(ctx, addr, m.id, b); err == nil {
		if b, err = m.wrap.output(b); err == nil {
			if err = proc.Unmarshal(b, &out); err != nil {
				err = errorf(ErrProtocol, "%v", err)
			}
		}
		if err != nil {
			err = &Error{"call", addr, m.id, Ran, err}
		}
	}
	return out, err
}

// Notify calls m at addr, where it gives no response (HG_Registered_disable_response), as Node.Notify does.
func (m *Method[In, Out]) Notify(ctx context.Context, n *Node, addr string, in In) error {
	b, err := m.encode("notify", addr, in)
	if err != nil {
		return err
	}
	return n.Notify(ctx, addr, m.id, b)
}

func (m *Method[In, Out]) encode(op, addr string, in In) ([]byte, error) {
	b, err := proc.Append(make([]byte, m.wrap.in, 64), in)
	if err != nil {
		return nil, &Error{op, addr, m.id, NotRun, errorf(ErrInvalid, "%s: %v", m.name, err)}
	}
	return b, nil
}

// Handle has n serve m with fn, on a goroutine of its own for each request. ctx ends with the connection; RequestOf(ctx) is the
// request, for the memory that it has lent. The origin gets the number of fn's error, as by Request.RespondError. Input that
// cannot be decoded is answered with HG_PROTOCOL_ERROR, and fn does not run.
func (m *Method[In, Out]) Handle(n *Node, fn func(ctx context.Context, in In) (Out, error)) {
	n.Handle(m.id, func(r *Request) {
		var in In
		if len(r.in) < m.wrap.in || proc.Unmarshal(r.in[m.wrap.in:], &in) != nil {
			_ = r.respond(int8(ErrProtocol), nil)
			return
		}
		out, err := fn(context.WithValue(r.Context(), requestKey{}, r), in)
		var b []byte
		if err == nil {
			if b, err = proc.Append(make([]byte, m.wrap.out, 64), out); err == nil {
				err = r.Respond(b)
			}
		}
		if err != nil {
			m.wrap.fail(r, err)
		}
	})
}

type requestKey struct{}

// RequestOf returns the request that the handler with ctx serves. It panics in other places.
func RequestOf(ctx context.Context) *Request { return ctx.Value(requestKey{}).(*Request) }

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

// Identity asks for the kind of the Margo provider at addr, which every provider that has registered one answers.
func Identity(ctx context.Context, n *Node, addr string, provider uint16) (string, error) {
	return DefineMargo[struct{}, string]("__identity__", provider).Call(ctx, n, addr, struct{}{})
}
