package mercury

import (
	"context"
	"reflect"

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

// Define names a method, as C does with HG_Register_name or MERCURY_REGISTER. It panics if In or Out cannot be encoded; package proc says
// what can.
func Define[In, Out any](name string) *Method[In, Out] { return DefineID[In, Out](name, ID(name)) }

// DefineID is Define for what C registers by number, with HG_Register; name is for errors.
func DefineID[In, Out any](name string, id uint64) *Method[In, Out] {
	return define[In, Out](name, id, framing{})
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

// Call calls m at addr and waits, as Node.Call does; what in refers to may change when it returns. The error is an *Error. Beyond those of
// Node.Call it matches ErrInvalid if in cannot be encoded, for example for a string with a zero byte, and then the request did not run; and ErrProtocol if the
// output is of another type, and then it ran.
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
// cannot be decoded is answered with HG_PROTOCOL_ERROR, and fn does not run. Handle panics if n serves m already, or if fn is nil.
func (m *Method[In, Out]) Handle(n *Node, fn func(ctx context.Context, in In) (Out, error)) {
	n.Handle(m.id, m.handler(fn))
}

func (m *Method[In, Out]) handler(fn func(ctx context.Context, in In) (Out, error)) func(*Request) {
	if fn == nil {
		panic("mercury: method " + m.name + ": a handler without a function")
	}
	return func(r *Request) {
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
	}
}

type requestKey struct{}

// RequestOf returns the request that the handler with ctx serves. It panics in other places.
func RequestOf(ctx context.Context) *Request { return ctx.Value(requestKey{}).(*Request) }
