package gateway

import (
	"context"
	"fmt"
	"reflect"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Lent is memory that a call lends to the C process. It takes the place of an hg_bulk_t in the input.
type Lent struct {
	Buf    []byte // must not be empty
	Access mercury.Access
}

// Raw is a part of the input that is already encoded.
type Raw []byte

// AppendProc appends r unchanged.
func (r Raw) AppendProc(to []byte) ([]byte, error) { return append(to, r...), nil }

// Call calls the RPC id of the C process at addr through the gateway gw. It blocks until the call has completed and
// returns its output.
//
// input contains the members of the C struct in order. They are values that package proc encodes, or a Lent where C has
// an hg_bulk_t.
//
// Once Call has returned, lent memory is no longer accessed. If the error is nil, memory that C may write holds the
// data that C wrote. Otherwise its contents are undefined. Even write-only memory is sent to C, so that bytes that C
// does not write remain unchanged.
//
// The error matches ErrRemote if it comes from the gateway or the C process, and its text is then that of the C error.
// Its code is ErrNotFound, ErrDenied, ErrExhausted, ErrBadInput or ErrUnavailable if the RPC has not run, and
// ErrAborted if it may have run. Otherwise it is the code of the handler if that is 64 or more, or else ErrInternal.
// qs.FateOf returns the corresponding fate.
func Call(ctx context.Context, gw qs.Peer, addr string, id uint64, input ...any) ([]byte, error) {
	in := callIn{Addr: addr, ID: id}
	var memory, written [][]byte
	for i, v := range input {
		if m, ok := v.(Lent); ok {
			in.Lent = append(in.Lent, lentArg{len(in.In), int64(len(m.Buf)), m.Access})
			memory = append(memory, m.Buf)
			if m.Access&mercury.Write != 0 {
				written = append(written, m.Buf)
			}
			continue
		}
		b, err := proc.Append(in.In, v)
		if err != nil {
			return nil, qs.Errorf(qs.ErrInvalid, "gateway: input %d: %w", i+1, err)
		}
		in.In = b
	}
	in.Memory, in.Written = qs.Bytes(memory...), qs.Buffer(written...)
	return call.Call(ctx, gw, in)
}

// Get reads len(p) bytes at offset off of memory lent by a C client. It blocks until the transfer has completed. ctx
// must be the context of the handler that serves the client's request.
func Get(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return transfer(ctx, get, mem, off, transferIn{To: qs.Buffer(p)})
}

// Put writes p at offset off of memory lent by a C client. Like Get, it blocks, and ctx must be the context of the
// handler.
func Put(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return transfer(ctx, put, mem, off, transferIn{From: qs.Bytes(p)})
}

// transfer calls method m of the gateway through which the request of ctx was received.
func transfer(ctx context.Context, m *qs.Method[transferIn, struct{}], mem mercury.Bulk, off int64, in transferIn) error {
	c := qs.CallFrom(ctx)
	secret, ok := c.Metadata.Get(requestMeta)
	if !ok {
		return qs.Errorf(qs.ErrInvalid, "gateway: %s was not called through a gateway", c.Method)
	}
	handle, err := mem.AppendProc(nil)
	if err != nil {
		return err
	}
	in.Request, in.Mem, in.Off = secret, handle, off
	_, err = m.Call(ctx, c.Peer, in)
	return err
}

// Proc is a codec that uses package proc, for methods that C clients call through a gateway. It is identified on the
// wire as raw bytes.
var Proc codec.Codec = procCodec{}

type procCodec struct{}

func (procCodec) Name() string { return "proc" }
func (procCodec) ID() uint8    { return codec.RawID }

func (procCodec) Append(dst []byte, v any) ([]byte, error) {
	r := reflect.ValueOf(v)
	for r.Kind() == reflect.Pointer && !r.IsNil() {
		r = r.Elem()
	}
	if v == nil || r.Kind() == reflect.Pointer && proc.Check(r.Type()) != nil { // a nil *string is NULL
		return dst, nil
	}
	b, err := proc.Append(dst, r.Interface())
	if err != nil {
		return dst, fmt.Errorf("%w: %w", err, codec.ErrType)
	}
	return b, nil
}

func (procCodec) Decode(b []byte, v any) error {
	if v == nil {
		return nil
	}
	return proc.Unmarshal(b, v)
}
