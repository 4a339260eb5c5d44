package grpcqs

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is used if none is named
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// A format is how the messages of a call are encoded. It is not changed while a call uses it.
type format struct {
	codec      encoding.CodecV2    // nil: protobuf
	compressor encoding.Compressor // of what is sent; nil: none
	expand     encoding.Compressor // of what comes with flagCompressed
	maxSend    int
	maxReceive int
}

// A payload is a message: encoded from msg, or in body, as it has come.
type payload struct {
	f          *format
	msg        any
	body       []byte
	compressed bool
	own        bool       // body is not used again for anything else
	size       int        // of the message, without compression, once encoded or decoded
	wire       int        // of its bytes, likewise
	events     *statsCall // gets what is encoded; may be nil
}

// take takes in a message that has come: into decodes it.
func (p *payload) take(flags uint8, b []byte) {
	if flags&flagMessage != 0 {
		p.body, p.compressed = b, flags&flagCompressed != 0
		if p.body == nil {
			p.body = []byte{}
		}
	}
}

// messageOf returns v as a message of protobuf; nil if it is none.
func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case proto.Message:
		return v
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	}
	return nil
}

// append encodes msg at the end of dst. The errors are statuses.
func (p *payload) append(dst []byte) (_ []byte, flags uint8, err error) {
	dst, flags, err = p.encode(dst)
	if err == nil && p.events != nil && p.msg != nil {
		p.events.outPayload(p)
	}
	return dst, flags, err
}

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
	if p.f.codec == nil && p.f.compressor == nil {
		m := messageOf(p.msg)
		if m == nil {
			return dst, 0, marshalError(fmt.Errorf("proto: failed to marshal, message is %T, want proto.Message", p.msg))
		}
		o := proto.MarshalOptions{UseCachedSize: true}
		p.size = o.Size(m)
		if p.wire = p.size; p.wire > p.f.maxSend {
			return dst, 0, tooLarge("trying to send", p.wire, p.f.maxSend)
		}
		b, err := o.MarshalAppend(dst, m)
		if err != nil {
			return dst, 0, marshalError(err)
		}
		return b, flags, nil
	}
	b, err := p.f.marshal(p.msg)
	if err != nil {
		return dst, 0, marshalError(err)
	}
	p.size = len(b)
	if p.f.compressor != nil {
		if b, err = compress(p.f.compressor, b); err != nil {
			return dst, 0, refused(codes.Internal, "grpc: error while compressing: %v", err)
		}
		flags |= flagCompressed
	}
	if p.wire = len(b); p.wire > p.f.maxSend {
		return dst, 0, tooLarge("trying to send", p.wire, p.f.maxSend)
	}
	return append(dst, b...), flags, nil
}

// tooLarge is the status of a message that is too large, in the words of grpc-go.
func tooLarge(doing string, size, most int) error {
	return refused(codes.ResourceExhausted, "grpc: %s message larger than max (%d vs. %d)", doing, size, most)
}

// marshal encodes v.
func (f *format) marshal(v any) ([]byte, error) {
	if f.codec == nil {
		m := messageOf(v)
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

// into decodes the message into v. The errors are statuses.
func (p *payload) into(v any) error {
	b := p.body
	if p.wire = len(b); p.wire > p.f.maxReceive {
		return status.Convert(tooLarge("received", p.wire, p.f.maxReceive)).Err()
	}
	if p.compressed {
		if p.f.expand == nil {
			return status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
		}
		var err error
		if b, err = expand(p.f.expand, b, p.f.maxReceive); err != nil {
			return err
		}
	}
	p.size = len(b)
	if p.f.codec != nil {
		if !p.compressed && !p.own { // the codec may keep what it gets
			b = bytes.Clone(b)
		}
		if err := p.f.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, v); err != nil {
			return badMessage(err)
		}
		return nil
	}
	m := messageOf(v)
	if m == nil {
		return badMessage(fmt.Errorf("failed to unmarshal, message is %T, want proto.Message", v))
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return badMessage(err)
	}
	return nil
}

// compress returns b, compressed.
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

// expand returns what was compressed, of at most most bytes.
func expand(c encoding.Compressor, b []byte, most int) ([]byte, error) {
	r, err := c.Decompress(bytes.NewReader(b))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	}
	if r, ok := r.(io.Closer); ok {
		defer func() { _ = r.Close() }()
	}
	out, err := io.ReadAll(io.LimitReader(r, min(int64(most), math.MaxInt64-1)+1))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the received message: %v", err)
	}
	if len(out) > most {
		return nil, status.Errorf(codes.ResourceExhausted, "grpc: received message after decompression larger than max %d", most)
	}
	return out, nil
}
