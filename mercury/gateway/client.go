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

// Lent is memory that a call lends to the C process, in place of an hg_bulk_t.
type Lent struct {
	Buf    []byte // must not be empty
	Access mercury.Access
}

// Raw is a part of the input that is already encoded.
type Raw []byte

// AppendProc appends r.
func (r Raw) AppendProc(to []byte) ([]byte, error) { return append(to, r...), nil }

// Call calls the RPC id of the C process at addr, through the gateway gw, blocks, and returns its output.
//
// input are the members of the struct in C, in order: values that package proc encodes, and Lent where C has an
// hg_bulk_t.
//
// When Call returns, lent memory is not accessed any more. Memory that C may write holds the data that C wrote if the
// error is nil; otherwise its contents are undefined. Write-only memory is sent to C, too, so that bytes that C does
// not write are unchanged.
//
// The error matches ErrRemote if it is from the gateway or the C process, with the error of C as text. Its code is
// ErrNotFound, ErrDenied, ErrExhausted, ErrBadInput or ErrUnavailable if the RPC has not run, ErrAborted if it may
// have run, and otherwise ErrInternal, or that of the handler if it is 64 or more. qs.FateOf agrees with that.
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

// Get reads len(p) bytes at offset off of memory that a C client has lent, and blocks. ctx must be that of the
// handler that serves its request.
func Get(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return transfer(ctx, get, mem, off, transferIn{To: qs.Buffer(p)})
}

// Put writes p at offset off of memory that a C client has lent, in the same way as Get.
func Put(ctx context.Context, mem mercury.Bulk, p []byte, off int64) error {
	return transfer(ctx, put, mem, off, transferIn{From: qs.Bytes(p)})
}

// transfer calls the method m of the gateway that the request of ctx has passed.
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

// Proc is the codec of package proc, for methods that C clients call through a gateway. On the wire its bytes are raw.
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
