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

// Lent is memory that a call of a C process lends, in place of an hg_bulk_t.
type Lent struct {
	Buf    []byte // not empty
	Access mercury.Access
}

// Raw is a part of an input that is encoded already.
type Raw []byte

// AppendProc appends r.
func (r Raw) AppendProc(to []byte) ([]byte, error) { return append(to, r...), nil }

// Call calls the RPC id of the C process at addr, through the gateway at gw, and returns its output. The input is what C has as a
// struct: values that package proc encodes, one after the other, and Lent ones where C has an hg_bulk_t. When Call returns nobody touches
// what is lent; what C may write holds what C wrote if the error is nil, and anything else. Memory that C may only write travels in
// both directions too, so that what C leaves alone stays as it was.
//
// The error matches ErrRemote if the gateway or the C process said so, with C's error as text. Its code is ErrNotFound, ErrDenied, ErrExhausted,
// ErrBadInput or ErrUnavailable if the C process did nothing, which is also what qs.FateOf says then; ErrAborted if it may have run; else
// it ran, and the code is Internal, or that of the handler if it is from 64 on.
func Call(ctx context.Context, gw qs.Peer, addr string, id uint64, input ...any) ([]byte, error) {
	in := callIn{Addr: addr, ID: id}
	var memory, written [][]byte
	for i, v := range input {
		if m, ok := v.(Lent); ok {
			in.Lent = append(in.Lent, place{len(in.In), int64(len(m.Buf)), m.Access})
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

// Get reads len(p) bytes at off of memory that a C client has lent. ctx is that of the handler that serves its request.
func Get(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return move(ctx, get, mem, off, moveIn{To: qs.Buffer(p)})
}

// Put writes p at off of memory that a C client has lent, as Get reads it.
func Put(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return move(ctx, put, mem, off, moveIn{From: qs.Bytes(p)})
}

func move(ctx context.Context, m *qs.Method[moveIn, struct{}], mem mercury.Bulk, off int64, in moveIn) error {
	c := qs.CallFrom(ctx)
	secret, ok := c.Metadata.Get(requestMeta)
	if !ok {
		return qs.Errorf(qs.ErrInvalid, "gateway: %s was not called by a C client through a gateway", c.Method)
	}
	handle, err := mem.AppendProc(nil)
	if err != nil {
		return err
	}
	in.Request, in.Mem, in.Off = secret, handle, off
	_, err = m.Call(ctx, c.Peer, in)
	return err
}

// Proc is the codec of package proc, for methods that C clients call through a gateway: on the wire its bytes are raw ones.
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
