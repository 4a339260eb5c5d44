package mercury

import (
	"context"
	"reflect"

	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
)

// A Method is an RPC with the types of its input and output, which package proc encodes. It usually is a package
// variable.
type Method[In, Out any] struct {
	name   string
	id     uint64
	prefix margoPrefix
}

// A margoPrefix is the lengths of the prefixes of input and output; zero for methods without Margo.
type margoPrefix struct{ in, out int }

// Define defines a method by name, as C does with HG_Register_name or MERCURY_REGISTER. It panics if In or Out cannot
// be encoded by package proc.
func Define[In, Out any](name string) *Method[In, Out] { return DefineID[In, Out](name, ID(name)) }

// DefineID defines a method by id, as C does with HG_Register; name is for errors.
func DefineID[In, Out any](name string, id uint64) *Method[In, Out] {
	return define[In, Out](name, id, margoPrefix{})
}

func define[In, Out any](name string, id uint64, wrap margoPrefix) *Method[In, Out] {
	for _, t := range []reflect.Type{reflect.TypeFor[In](), reflect.TypeFor[Out]()} {
		if err := proc.Check(t); err != nil {
			panic("mercury: method " + name + ": " + err.Error())
		}
	}
	return &Method[In, Out]{name, id, wrap}
}

// Name returns the name of m.
func (m *Method[In, Out]) Name() string { return m.name }

// ID returns the id of the RPC.
func (m *Method[In, Out]) ID() uint64 { return m.id }

// Call calls m at addr and blocks until its output has arrived, as Node.Call does. When it returns, memory that in
// refers to is not used any more.
//
// The error is an *Error as for Node.Call. It also matches ErrInvalid if in cannot be encoded, for example a string
// with a zero byte; the request has not run then. It also matches ErrProtocol if the output is of another type; the
// request has run then.
func (m *Method[In, Out]) Call(ctx context.Context, n *Node, addr string, in In) (out Out, err error) {
	b, err := m.encode("call", addr, in)
	if err != nil {
		return out, err
	}
	if b, err = n.Call(ctx, addr, m.id, b); err == nil {
		if b, err = m.prefix.trimOutput(b); err == nil {
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

// Notify calls m at addr, where it must have no response (HG_Registered_disable_response), as Node.Notify does.
func (m *Method[In, Out]) Notify(ctx context.Context, n *Node, addr string, in In) error {
	b, err := m.encode("notify", addr, in)
	if err != nil {
		return err
	}
	return n.Notify(ctx, addr, m.id, b)
}

func (m *Method[In, Out]) encode(op, addr string, in In) ([]byte, error) {
	b, err := proc.Append(make([]byte, m.prefix.in, 64), in)
	if err != nil {
		return nil, &Error{op, addr, m.id, NotRun, errorf(ErrInvalid, "%s: %v", m.name, err)}
	}
	return b, nil
}

// Handle serves m at n with fn, on a goroutine of its own for each request.
//
// ctx is canceled when the connection ends; RequestOf(ctx) is the request, for access to the memory that it has lent.
// An error of fn is sent as by Request.RespondError. The response to input that cannot be decoded is
// HG_PROTOCOL_ERROR, and fn is not called. Handle panics if n serves m already, or if fn is nil.
func (m *Method[In, Out]) Handle(n *Node, fn func(ctx context.Context, in In) (Out, error)) {
	n.Handle(m.id, m.newHandler(fn))
}

func (m *Method[In, Out]) newHandler(fn func(ctx context.Context, in In) (Out, error)) func(*Request) {
	if fn == nil {
		panic("mercury: method " + m.name + ": the handler is nil")
	}
	return func(r *Request) {
		var in In
		if len(r.in) < m.prefix.in || proc.Unmarshal(r.in[m.prefix.in:], &in) != nil {
			_ = r.respond(int8(ErrProtocol), nil)
			return
		}
		out, err := fn(context.WithValue(r.Context(), requestKey{}, r), in)
		var b []byte
		if err == nil {
			if b, err = proc.Append(make([]byte, m.prefix.out, 64), out); err == nil {
				err = r.Respond(b)
			}
		}
		if err != nil {
			m.prefix.respondError(r, err)
		}
	}
}

type requestKey struct{}

// RequestOf returns the request whose handler was called with ctx. It panics for other contexts.
func RequestOf(ctx context.Context) *Request { return ctx.Value(requestKey{}).(*Request) }
