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

// The wire format of a call, on top of package qs. Numbers are uvarints. A block is a length
// followed by that many bytes.
//
//	input:    flags, block: metadata, the message up to the end of the input
//	output:   flags, [block: end,] the message up to the end of the output
//	item:     flags, the message or the end, up to the end of the item
//	end:      block: header, block: trailer, the status as protobuf up to the end
//	metadata: for each value a block with its key and a block with the value
//
// The end of a call travels as the detail of its error if it fits into maxDetail bytes. Otherwise
// it is in the output, or in the last item of a stream. A successful call has an end only if it has
// a header or a trailer.
const (
	flagCompressed = 1 // the message is compressed with the request's grpc-encoding
	flagMessage    = 2 // there is a message
	flagEnd        = 4 // there is an end

	// maxMetadata is the maximum size, in bytes, of each of the header, the trailer and the request
	// metadata. Each pair of key and value counts 2 additional bytes.
	maxMetadata = 64 << 10
	// maxDetail limits the size of a call's end in the detail of its error. Package hg drops longer
	// details.
	maxDetail = 1024
)

var errMalformed = errors.New(
	"grpcqs: malformed message: the peer uses another version of grpcqs, or does not use it")

// wireCodec is the codec of all methods of this package.
type wireCodec struct{}

// Name implements codec.Codec.
func (wireCodec) Name() string { return "grpcqs" }

// ID implements codec.Codec.
func (wireCodec) ID() uint8 { return 231 }

// Append implements codec.Codec. It encodes a request, a response, a frame or the end of a call.
func (wireCodec) Append(dst []byte, v any) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	if f, ok := v.(**frame); ok { // package qs passes the address of a stream item
		v = *f
	}
	b, err := v.(interface{ append([]byte) ([]byte, error) }).append(dst)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// Decode implements codec.Codec. Requests and responses alias b, and their messages are decoded
// before package qs reuses b. The message of an item is decoded at once.
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

// append encodes the input.
func (r *request) append(dst []byte) ([]byte, error) {
	at := len(dst)
	dst = appendMetadata(append(dst, 0), r.md)
	dst, flags, err := r.payload.append(dst)
	if err == nil {
		dst[at] = flags
	}
	return dst, err
}

// decode decodes the input. The body aliases b.
func (r *request) decode(b []byte) (err error) {
	if len(b) == 0 {
		return errMalformed
	}
	flags := b[0]
	if r.md, b, err = cutMetadata(b[1:]); err == nil {
		r.payload.setReceived(flags, b)
	}
	return err
}

// A response is the output of a unary call.
type response struct {
	end *callEnd // nil if the call succeeded without a header or trailer
	payload
	call *serverCall // set at the server, where append records the end of the call in its stats
}

// append encodes the output and records the end of the call in its stats, because only after
// encoding is it known whether the message can be encoded.
func (r *response) append(dst []byte) ([]byte, error) {
	b, err := r.encode(dst)
	if r.call != nil {
		r.call.recordEnd(status.Convert(err))
	}
	return b, err
}

// encode encodes the output.
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
		return dst, hg.Errorf(toWireCode(status.Code(err)), "%s", status.Convert(err).Message())
	}
	if r.end != nil {
		flags |= flagEnd
	}
	dst[at] = flags
	return dst, nil
}

// decode decodes the output and decodes its message into r.msg. If the output has a status, decode
// returns an *endError.
func (r *response) decode(b []byte) error {
	if len(b) == 0 {
		return errMalformed
	}
	flags := b[0]
	b = b[1:]
	if flags&flagEnd != 0 {
		block, rest, ok := cutBlock(b)
		r.end = &callEnd{}
		if !ok || r.end.decode(block) != nil {
			return errMalformed
		}
		if r.end.st != nil {
			return &endError{r.end}
		}
		b = rest
	}
	r.payload.setReceived(flags, b)
	// An attempt of a hedged call does not know its destination yet. Client.callUnary decodes its
	// body.
	if r.msg == nil {
		r.body = slices.Clone(r.body)
		return nil
	}
	return r.payload.decodeInto(r.msg)
}

// An item is a received frame whose message has been decoded into a value provided by the receiver.
// Items are reused, so decode sets all fields below into.
type item struct {
	format *format // set by the receiver
	into   any     // destination of the message; nil to discard it

	end        *callEnd // nil for a message
	hasMessage bool
	err        error // status, if the message could not be decoded
	msgSize    int   // size of the uncompressed message
	wireSize   int   // size on the wire
}

// decode decodes the frame and its message at once, because package qs reuses b afterward.
func (i *item) decode(b []byte) error {
	i.hasMessage, i.msgSize, i.wireSize = false, 0, 0
	if i.end != nil || i.err != nil {
		i.end, i.err = nil, nil
	}
	switch {
	case len(b) == 0:
		return errMalformed
	case b[0]&flagEnd != 0:
		i.end = &callEnd{}
		return i.end.decode(b[1:])
	case b[0]&flagMessage == 0:
		return nil
	}
	i.hasMessage = true
	if i.into == nil {
		return nil
	}
	p := payload{format: i.format, body: b[1:], compressed: b[0]&flagCompressed != 0}
	if err := p.decodeInto(i.into); err != nil {
		i.err = err
	}
	i.msgSize, i.wireSize = p.msgSize, p.wireSize
	return nil
}

// A frame is one item of a stream: a message, or the end of the call.
type frame struct {
	end *callEnd // nil for a message
	payload
}

// append encodes the frame.
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

// A callEnd is the result of a call without its message: the status, the header and the trailer.
type callEnd struct {
	st      *status.Status // nil for OK
	header  metadata.MD    // header of a unary call; a stream sends its header at its start
	trailer metadata.MD
	b       []byte // encoded end, cached by method bytes
}

// bytes returns the encoded end.
func (e *callEnd) bytes() []byte {
	if e.b == nil {
		b := appendMetadata(nil, e.header)
		b = appendMetadata(b, e.trailer)
		if e.st != nil {
			// Marshal fails only for invalid UTF-8, which newEnd has replaced.
			b, _ = proto.MarshalOptions{}.MarshalAppend(b, e.st.Proto())
		}
		e.b = b
	}
	return e.b
}

// append appends the encoded end, which is sent as an error's detail. See answerError.
func (e *callEnd) append(dst []byte) ([]byte, error) { return append(dst, e.bytes()...), nil }

// decode decodes the end.
func (e *callEnd) decode(b []byte) (err error) {
	if e.header, b, err = cutMetadata(b); err != nil {
		return err
	}
	if e.trailer, b, err = cutMetadata(b); err != nil || len(b) == 0 {
		return err
	}
	p := &spb.Status{}
	if err = proto.Unmarshal(b, p); err != nil || p.Code == int32(codes.OK) {
		return errMalformed
	}
	e.st = status.FromProto(p)
	return nil
}

// newEnd returns the end of a call, or nil if the call succeeded without a header or trailer. A
// status larger than maxStatus is replaced by ResourceExhausted, whose text names the original
// code.
func newEnd(st *status.Status, header, trailer metadata.MD) *callEnd {
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
			p = &spb.Status{
				Code: int32(codes.ResourceExhausted),
				Message: "grpcqs: status " + st.Code().String() + " has " +
					strconv.Itoa(size) + " bytes, the limit is " + strconv.Itoa(maxStatus),
			}
		}
		st = status.FromProto(p)
	}
	return &callEnd{st: st, header: header, trailer: trailer}
}

// maxStatus limits the size of a status including its details, in bytes.
const maxStatus = 64<<10 + 4<<10

// An endError is the error of response.decode for a call whose end, including its status, is in the
// output.
type endError struct{ *callEnd }

// Error implements error.
func (e *endError) Error() string { return e.st.Err().Error() }

// Unwrap returns the wire code, for errors.Is.
func (e *endError) Unwrap() error { return toWireCode(e.st.Code()) }

// appendBlock appends a block that contains b.
func appendBlock[B []byte | string](dst []byte, b B) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// cutBlock returns the first block of b and the bytes after it. Both alias b. ok is false if b does
// not begin with a complete block.
func cutBlock(b []byte) (block, rest []byte, ok bool) {
	n, head := binary.Uvarint(b)
	if head <= 0 || n > uint64(len(b)-head) {
		return nil, nil, false
	}
	end := head + int(n)
	return b[head:end:end], b[end:], true
}

// appendMetadata appends md as one block, sorted by key so that equal metadata has equal bytes.
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

// cutMetadata decodes the metadata block at the beginning of b, and returns the metadata and the
// bytes after the block. md is nil if the block is empty.
func cutMetadata(b []byte) (md metadata.MD, rest []byte, err error) {
	block, rest, ok := cutBlock(b)
	if !ok || len(block) > 2*maxMetadata {
		return nil, nil, errMalformed
	}
	for len(block) > 0 {
		var key, value []byte
		if key, block, ok = cutBlock(block); ok {
			value, block, ok = cutBlock(block)
		}
		if !ok || !isValidKey(string(key)) {
			return nil, nil, errMalformed
		}
		if md == nil {
			md = metadata.MD{}
		}
		md[string(key)] = append(md[string(key)], string(value))
	}
	return md, rest, nil
}

// isValidKey reports whether key is a valid key of gRPC metadata.
func isValidKey(key string) bool {
	for _, c := range []byte(key) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return key != ""
}

// reservedKeys are the keys that gRPC itself uses. They are removed from the metadata of programs.
var reservedKeys = []string{
	"content-type", "user-agent", "grpc-message-type", "grpc-encoding", "grpc-accept-encoding",
	"grpc-message", "grpc-status", "grpc-timeout", "te",
}

// maxBudget is the longest timeout that an hg request's budget can express, which is 32 bits of
// microseconds. Longer timeouts travel as grpc-timeout.
const maxBudget = 71 * time.Minute

// encodeLongTimeout returns the time left until the deadline of ctx as a value of grpc-timeout, in
// nanoseconds. It returns "" if the request's budget can express that time.
func encodeLongTimeout(ctx context.Context) string {
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

// parseTimeout decodes a value produced by encodeLongTimeout.
func parseTimeout(text string) (time.Duration, error) {
	digits, ok := strings.CutSuffix(text, "n")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 {
		return 0, status.Errorf(codes.Internal, "grpcqs: grpc-timeout is %q, want nanoseconds", text)
	}
	return time.Duration(n), nil
}

// checkMetadata returns md without reserved keys and with lower-case keys. It returns an error if a
// key or a value is invalid, or if the size exceeds maxMetadata.
func checkMetadata(md metadata.MD) (metadata.MD, error) {
	size, changed := 0, false
	for key, values := range md {
		if lower := strings.ToLower(key); lower != key || slices.Contains(reservedKeys, key) ||
			strings.HasPrefix(key, ":") || len(values) == 0 {
			changed = true
			continue
		}
		if !isValidKey(key) {
			return nil, newUnsentError(codes.Internal,
				"header key %q contains illegal characters not in [0-9a-z-_.]", key)
		}
		for _, value := range values {
			size += len(key) + len(value) + 2
			isBinary := strings.HasSuffix(key, "-bin")
			if !isBinary && strings.ContainsFunc(value,
				func(c rune) bool { return c < 0x20 || c > 0x7E }) {
				return nil, newUnsentError(codes.Internal,
					"header key %q contains value with non-printable ASCII characters", key)
			}
		}
	}
	if size > maxMetadata {
		return nil, newUnsentError(codes.ResourceExhausted,
			"grpcqs: the metadata has %d bytes, the limit is %d", size, maxMetadata)
	}
	if !changed {
		return md, nil
	}
	kept := metadata.MD{}
	for key, values := range md {
		key = strings.ToLower(key)
		isReserved := slices.Contains(reservedKeys, key) || strings.HasPrefix(key, ":")
		if !isReserved && len(values) > 0 {
			kept[key] = append(kept[key], values...)
		}
	}
	return checkMetadata(kept)
}
