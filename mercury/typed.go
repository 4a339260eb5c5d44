package mercury

import (
	"context"
	"reflect"

	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
)

// A Method is an RPC with the types of its input and output, which are encoded by package proc. It is usually declared
// as a package variable.
type Method[In, Out any] struct {
	name   string
	id     uint64
	prefix margoPrefix
}

// A margoPrefix holds the lengths in bytes of the prefixes of input and output, which are zero for methods without
// Margo.
type margoPrefix struct{ in, out int }

// Define defines a method by name, like HG_Register_name or MERCURY_REGISTER in C. It panics if In or Out cannot be
// encoded by package proc.
func Define[In, Out any](name string) *Method[In, Out] { return DefineID[In, Out](name, ID(name)) }

// DefineID defines a method by ID, like HG_Register in C. name is used only in errors.
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

// ID returns the ID of the RPC.
func (m *Method[In, Out]) ID() uint64 { return m.id }

// Call calls m at addr and blocks until its output has arrived or ctx is done, like Node.Call. Once it has returned,
// memory referred to by in is no longer used.
//
// The error is an *Error as for Node.Call. It also matches ErrInvalid if in cannot be encoded, for example because a
// string contains a zero byte, in which case the request has not run. It also matches ErrProtocol if the output is of
// another type, in which case the request has run.
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

// Notify calls m at addr, where m must have no response (HG_Registered_disable_response), like Node.Notify.
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

// Handle registers fn as the handler of m at n. Each request is handled in its own goroutine.
//
// ctx is canceled when the connection is closed. RequestOf(ctx) returns the request, which provides access to memory
// lent by the caller. An error of fn is sent as by Request.RespondError. If the input cannot be decoded, fn is not
// called and the response is HG_PROTOCOL_ERROR. Handle panics if n already serves m or if fn is nil.
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

// RequestOf returns the request whose handler was called with ctx. It panics if ctx is not the context of a handler.
func RequestOf(ctx context.Context) *Request { return ctx.Value(requestKey{}).(*Request) }
