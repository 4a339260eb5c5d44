package grpcqs

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// What goes in a call, for both sides. Numbers are uvarints; a block is its length and its bytes.
//
//	input:  flags, block: metadata, the message, to the end
//	output: flags, [block: end,] the message, to the end
//	item:   flags, the message or the end, to the end
//	end:    block: header, block: trailer, the status as protobuf, to the end
//	metadata: for each value the block of its key and its block
//
// The end of a call is the detail of its error where that has room; else it is in the output, or the last item. A call that ends well has
// one if there is a header or a trailer.
const (
	flagCompressed = 1 // the message, with what the request says in grpc-encoding
	flagMessage    = 2 // there is one
	flagEnd        = 4 // there is an end

	// maxMetadata bounds header, trailer and the metadata of a request each, in bytes, with two for each key and value.
	maxMetadata = 64 << 10
	// maxDetail is how long the end of a call may be in its error: more is left out there.
	maxDetail = 1024
)

var errWire = errors.New("grpcqs: bytes that cannot be: the other side is another version, or no grpcqs")

// wireCodec is the codec of all methods of this package.
type wireCodec struct{}

// Name implements codec.Codec.
func (wireCodec) Name() string { return "grpcqs" }

// ID implements codec.Codec.
func (wireCodec) ID() uint8 { return 231 }

// Append implements codec.Codec.
func (wireCodec) Append(dst []byte, v any) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	if f, ok := v.(**frame); ok { // an item
		v = *f
	}
	b, err := v.(interface{ append([]byte) ([]byte, error) }).append(dst)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// Decode implements codec.Codec. Inputs keep b: the message in them is decoded before it is used again. Items copy it.
func (wireCodec) Decode(b []byte, v any) error {
	if v == nil {
		return nil
	}
	return v.(interface{ decode([]byte) error }).decode(b)
}

// A request is the input of a call.
type request struct {
	md metadata.MD
	payload
}

func (r *request) append(dst []byte) ([]byte, error) {
	at := len(dst)
	dst = appendMetadata(append(dst, 0), r.md)
	dst, flags, err := r.payload.append(dst)
	if err == nil {
		dst[at] = flags
	}
	return dst, err
}

func (r *request) decode(b []byte) (err error) {
	if len(b) == 0 {
		return errWire
	}
	flags := b[0]
	if r.md, b, err = takeMetadata(b[1:]); err == nil {
		r.payload.take(flags, b)
	}
	return err
}

// A response is the output of a unary call.
type response struct {
	end *end
	payload
	call *serverCall // at the server: its stats handlers get to know how it ends, when the message is encoded
}

func (r *response) append(dst []byte) ([]byte, error) {
	b, err := r.encode(dst)
	if r.call != nil {
		r.call.endServer(status.Convert(err))
	}
	return b, err
}

func (r *response) encode(dst []byte) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0)
	if r.end != nil {
		dst = appendBlock(dst, r.end.bytes())
		if r.end.st != nil {
			dst[at] = flagEnd
			return dst, nil
		}
	}
	dst, flags, err := r.payload.append(dst)
	if err != nil {
		return dst, hg.Errorf(wireCode(status.Code(err)), "%s", status.Convert(err).Message())
	}
	if r.end != nil {
		flags |= flagEnd
	}
	dst[at] = flags
	return dst, nil
}

func (r *response) decode(b []byte) error {
	if len(b) == 0 {
		return errWire
	}
	flags := b[0]
	b = b[1:]
	if flags&flagEnd != 0 {
		block, rest, ok := takeBlock(b)
		r.end = &end{}
		if !ok || r.end.decode(block) != nil {
			return errWire
		}
		if r.end.st != nil {
			return &endError{r.end}
		}
		b = rest
	}
	r.payload.take(flags, b)
	if r.msg == nil { // an attempt beside another one: see Client.Invoke
		r.body = slices.Clone(r.body)
		return nil
	}
	return r.payload.into(r.msg)
}

// An item is the bytes of a frame that has come.
type item struct{ b []byte }

// decode copies b: package qs uses it for another stream when decode has returned, and the message is decoded after that.
func (i *item) decode(b []byte) error {
	i.b = slices.Clone(b)
	return nil
}

// A frame is what goes in a stream: a message, or the end.
type frame struct {
	end *end
	payload
}

func (f *frame) append(dst []byte) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0)
	if f.end != nil {
		dst[at] = flagEnd
		return append(dst, f.end.bytes()...), nil
	}
	dst, flags, err := f.payload.append(dst)
	if err == nil {
		dst[at] = flags
	}
	return dst, err
}

func (f *frame) decode(b []byte) error {
	if len(b) == 0 {
		return errWire
	}
	if b[0]&flagEnd != 0 {
		f.end = &end{}
		return f.end.decode(b[1:])
	}
	f.payload.take(b[0], b[1:])
	f.payload.own = true
	return nil
}

// An end is what a server says at the end of a call.
type end struct {
	st              *status.Status // nil: OK
	header, trailer metadata.MD    // the header of a unary call
	b               []byte         // encoded
}

func (e *end) bytes() []byte {
	if e.b == nil {
		b := appendMetadata(nil, e.header)
		b = appendMetadata(b, e.trailer)
		if e.st != nil {
			b, _ = proto.MarshalOptions{}.MarshalAppend(b, e.st.Proto()) // strings that are no UTF-8 are the only error: fromText has none
		}
		e.b = b
	}
	return e.b
}

func (e *end) append(dst []byte) ([]byte, error) { return append(dst, e.bytes()...), nil }

func (e *end) decode(b []byte) (err error) {
	if e.header, b, err = takeMetadata(b); err != nil {
		return err
	}
	if e.trailer, b, err = takeMetadata(b); err != nil || len(b) == 0 {
		return err
	}
	p := &spb.Status{}
	if err = proto.Unmarshal(b, p); err != nil || p.Code == int32(codes.OK) {
		return errWire
	}
	e.st = status.FromProto(p)
	return nil
}

// newEnd returns the end of a call: nil if it ends well and there is nothing to say. A status too long to be sent keeps its code.
func newEnd(st *status.Status, header, trailer metadata.MD) *end {
	if st.Code() == codes.OK {
		st = nil
	}
	if st == nil && len(header) == 0 && len(trailer) == 0 {
		return nil
	}
	if st != nil {
		p := st.Proto()
		if text := strings.ToValidUTF8(p.Message, "\uFFFD"); text != p.Message {
			p.Message = text
		}
		if size := proto.Size(p); size > maxStatus {
			p = &spb.Status{Code: int32(codes.ResourceExhausted), Message: "a status " + st.Code().String() + " that is too long to be sent: see the limits of grpcqs"}
		}
		st = status.FromProto(p)
	}
	return &end{st: st, header: header, trailer: trailer}
}

// maxStatus bounds a status with its details, in bytes.
const maxStatus = 64<<10 + 4<<10

// An endError is how decode says the status of a call whose end is in its output.
type endError struct{ *end }

// Error implements error.
func (e *endError) Error() string { return e.st.Err().Error() }

// Unwrap returns the code, for errors.Is.
func (e *endError) Unwrap() error { return wireCode(e.st.Code()) }

// appendBlock appends a block.
func appendBlock[B []byte | string](dst []byte, b B) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// takeBlock takes a block off b.
func takeBlock(b []byte) (block, rest []byte, ok bool) {
	n, head := binary.Uvarint(b)
	if head <= 0 || n > uint64(len(b)-head) {
		return nil, nil, false
	}
	end := head + int(n)
	return b[head:end:end], b[end:], true
}

// appendMetadata appends the block of md, in the order of its keys.
func appendMetadata(dst []byte, md metadata.MD) []byte {
	if len(md) == 0 {
		return append(dst, 0)
	}
	keys := make([]string, 0, len(md))
	for key := range md {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var b []byte
	for _, key := range keys {
		for _, value := range md[key] {
			b = appendBlock(appendBlock(b, key), value)
		}
	}
	return appendBlock(dst, b)
}

// takeMetadata takes the block of metadata off b. It is nil if that is empty.
func takeMetadata(b []byte) (md metadata.MD, rest []byte, err error) {
	block, rest, ok := takeBlock(b)
	if !ok || len(block) > 2*maxMetadata {
		return nil, nil, errWire
	}
	for len(block) > 0 {
		var key, value []byte
		if key, block, ok = takeBlock(block); ok {
			value, block, ok = takeBlock(block)
		}
		if !ok || !validKey(string(key)) {
			return nil, nil, errWire
		}
		if md == nil {
			md = metadata.MD{}
		}
		md[string(key)] = append(md[string(key)], string(value))
	}
	return md, rest, nil
}

// validKey reports whether a key of metadata is one.
func validKey(key string) bool {
	for _, c := range []byte(key) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return key != ""
}

// reservedKeys are those of gRPC, which programs do not send.
var reservedKeys = []string{"content-type", "user-agent", "grpc-message-type", "grpc-encoding", "grpc-accept-encoding", "grpc-message", "grpc-status", "grpc-timeout", "te"}

// maxBudget is how much time the budget of a request can say that its caller has left: 32 bits of microseconds. What is longer goes in grpc-timeout.
const maxBudget = 71 * time.Minute

// longTimeout returns the grpc-timeout of a request whose time is longer than its budget can say, in nanoseconds of 64 bits; "" for any other.
func longTimeout(ctx context.Context) string {
	by, ok := ctx.Deadline()
	if !ok {
		return ""
	}
	left := time.Until(by)
	if left <= maxBudget {
		return ""
	}
	return strconv.FormatInt(int64(left), 10) + "n"
}

// parseTimeout decodes what longTimeout has encoded.
func parseTimeout(text string) (time.Duration, error) {
	digits, ok := strings.CutSuffix(text, "n")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 {
		return 0, status.Errorf(codes.Internal, "grpcqs: grpc-timeout is %q, want nanoseconds", text)
	}
	return time.Duration(n), nil
}

// checkMetadata returns md without what is reserved. The error says what cannot be sent.
func checkMetadata(md metadata.MD) (metadata.MD, error) {
	size, changed := 0, false
	for key, values := range md {
		if lower := strings.ToLower(key); lower != key || slices.Contains(reservedKeys, key) || strings.HasPrefix(key, ":") || len(values) == 0 {
			changed = true
			continue
		}
		if !validKey(key) {
			return nil, refused(codes.Internal, "header key %q contains illegal characters not in [0-9a-z-_.]", key)
		}
		for _, value := range values {
			size += len(key) + len(value) + 2
			if !strings.HasSuffix(key, "-bin") && strings.ContainsFunc(value, func(c rune) bool { return c < 0x20 || c > 0x7E }) {
				return nil, refused(codes.Internal, "header key %q contains value with non-printable ASCII characters", key)
			}
		}
	}
	if size > maxMetadata {
		return nil, refused(codes.ResourceExhausted, "metadata of %d bytes, there may be %d", size, maxMetadata)
	}
	if !changed {
		return md, nil
	}
	kept := metadata.MD{}
	for key, values := range md {
		if key = strings.ToLower(key); !slices.Contains(reservedKeys, key) && !strings.HasPrefix(key, ":") && len(values) > 0 {
			kept[key] = append(kept[key], values...)
		}
	}
	return checkMetadata(kept)
}
