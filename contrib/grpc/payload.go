package grpcqs

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the default codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// A format describes how the messages of a call are encoded. It is immutable while a call uses it.
type format struct {
	codec        encoding.CodecV2    // nil for protobuf
	compressor   encoding.Compressor // compresses sent messages; nil for no compression
	decompressor encoding.Compressor // expands received messages marked with flagCompressed
	maxSend      int                 // in bytes
	maxReceive   int                 // in bytes
}

// A payload is one message. A message to be sent is either a value to encode (msg) or encoded bytes
// (body).
type payload struct {
	format     *format
	msg        any        // message to send, or destination of a received message; may be nil
	body       []byte     // the encoded message
	compressed bool       // body is compressed
	msgSize    int        // size of the uncompressed message; set by encode and decodeInto
	wireSize   int        // size on the wire; set by encode and decodeInto
	events     *statsCall // notified when the message is encoded; may be nil
}

// setReceived sets body to the message in b if flags indicate that there is one. The body aliases
// b.
func (p *payload) setReceived(flags uint8, b []byte) {
	if flags&flagMessage != 0 {
		p.body, p.compressed = b, flags&flagCompressed != 0
		if p.body == nil {
			p.body = []byte{}
		}
	}
}

// asProtoMessage returns v as a protobuf message, or nil if it is not one.
func asProtoMessage(v any) proto.Message {
	switch v := v.(type) {
	case proto.Message:
		return v
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	}
	return nil
}

// append appends the encoded message to dst and records a stats event for it. Errors are statuses.
func (p *payload) append(dst []byte) (_ []byte, flags uint8, err error) {
	dst, flags, err = p.encode(dst)
	if err == nil && p.events != nil && p.msg != nil {
		p.events.recordOutPayload(p)
	}
	return dst, flags, err
}

// encode appends the encoded message to dst.
func (p *payload) encode(dst []byte) (_ []byte, flags uint8, err error) {
	if p.msg == nil {
		if p.body == nil {
			return dst, 0, nil
		}
		flags = flagMessage
		if p.compressed {
			flags |= flagCompressed
		}
		return append(dst, p.body...), flags, nil
	}
	flags = flagMessage
	if p.format.codec == nil && p.format.compressor == nil {
		m := asProtoMessage(p.msg)
		if m == nil {
			return dst, 0, errMarshal(
				fmt.Errorf("proto: failed to marshal, message is %T, want proto.Message", p.msg))
		}
		o := proto.MarshalOptions{UseCachedSize: true}
		p.msgSize = o.Size(m)
		if p.wireSize = p.msgSize; p.wireSize > p.format.maxSend {
			return dst, 0, errTooLarge("trying to send", p.wireSize, p.format.maxSend)
		}
		b, err := o.MarshalAppend(dst, m)
		if err != nil {
			return dst, 0, errMarshal(err)
		}
		return b, flags, nil
	}
	b, err := p.format.marshal(p.msg)
	if err != nil {
		return dst, 0, errMarshal(err)
	}
	p.msgSize = len(b)
	if p.format.compressor != nil {
		if b, err = compress(p.format.compressor, b); err != nil {
			return dst, 0, newUnsentError(codes.Internal, "grpc: error while compressing: %v", err)
		}
		flags |= flagCompressed
	}
	if p.wireSize = len(b); p.wireSize > p.format.maxSend {
		return dst, 0, errTooLarge("trying to send", p.wireSize, p.format.maxSend)
	}
	return append(dst, b...), flags, nil
}

// errTooLarge returns the status for a message that exceeds its limit, in grpc-go's wording.
func errTooLarge(doing string, size, limit int) error {
	return newUnsentError(codes.ResourceExhausted, "grpc: %s message larger than max (%d vs. %d)", doing,
		size, limit)
}

// marshal encodes v with f's codec.
func (f *format) marshal(v any) ([]byte, error) {
	if f.codec == nil {
		m := asProtoMessage(v)
		if m == nil {
			return nil, fmt.Errorf("proto: failed to marshal, message is %T, want proto.Message", v)
		}
		return proto.Marshal(m)
	}
	data, err := f.codec.Marshal(v)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	return data.Materialize(), nil
}

// decodeInto decodes the message into v. Errors are statuses.
func (p *payload) decodeInto(v any) error {
	b := p.body
	if p.wireSize = len(b); p.wireSize > p.format.maxReceive {
		return status.Convert(errTooLarge("received", p.wireSize, p.format.maxReceive)).Err()
	}
	if p.compressed {
		if p.format.decompressor == nil {
			return status.Error(codes.Internal,
				"grpc: compressed flag set with identity or empty encoding")
		}
		var err error
		if b, err = decompress(p.format.decompressor, b, p.format.maxReceive); err != nil {
			return err
		}
	}
	p.msgSize = len(b)
	if p.format.codec != nil {
		if !p.compressed { // CodecV2 may retain its input, which package qs reuses
			b = bytes.Clone(b)
		}
		if err := p.format.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, v); err != nil {
			return errUnmarshal(err)
		}
		return nil
	}
	m := asProtoMessage(v)
	if m == nil {
		return errUnmarshal(fmt.Errorf("failed to unmarshal, message is %T, want proto.Message", v))
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return errUnmarshal(err)
	}
	return nil
}

// compress returns b compressed with c.
func compress(c encoding.Compressor, b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := c.Compress(&out)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(b); err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// decompress returns b decompressed with c. It reads at most limit+1 bytes and fails if the result
// exceeds limit, so that a small message cannot expand without bound.
func decompress(c encoding.Compressor, b []byte, limit int) ([]byte, error) {
	r, err := c.Decompress(bytes.NewReader(b))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v",
			err)
	}
	if r, ok := r.(io.Closer); ok {
		defer func() { _ = r.Close() }()
	}
	out, err := io.ReadAll(io.LimitReader(r, min(int64(limit), math.MaxInt64-1)+1))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v",
			err)
	}
	if len(out) > limit {
		return nil, status.Errorf(codes.ResourceExhausted,
			"grpc: received message after decompression larger than max %d", limit)
	}
	return out, nil
}
