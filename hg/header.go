package hg

import (
	"encoding/binary"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// The headers at the front of every message of this package; docs/WIRE.md has the picture. Little-endian.
const (
	wireVersion = 1

	requestSize  = 24
	responseSize = 16

	budgetAt = 4 // where a request has its budget

	flagMore   = 1 // the payload is a key: the body is to be read from the sender's memory
	flagOneWay = 2 // requests: no response is wanted

	// maxErrorText bounds the words of an error response in bytes.
	maxErrorText = 1024
)

// request is the front of an unexpected message. The message's tag is the identity of the call.
type request struct {
	flags  uint8
	budget uint32 // microseconds left to the deadline when it leaves; 0 when there is none. na writes it
	id     ID
	size   uint64 // of the whole input
}

func (r *request) put(b []byte) {
	b[0], b[1] = wireVersion, r.flags
	binary.LittleEndian.PutUint16(b[2:], 0)
	binary.LittleEndian.PutUint32(b[budgetAt:], r.budget)
	binary.LittleEndian.PutUint64(b[8:], uint64(r.id))
	binary.LittleEndian.PutUint64(b[16:], r.size)
}

// parseRequest returns the request and its payload. r holds what could be read even when there is an error.
func parseRequest(b []byte) (r request, payload []byte, err error) {
	if len(b) < requestSize {
		return r, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("request of %d bytes, the header alone has %d", len(b), requestSize))
	}
	r = request{
		flags: b[1], budget: binary.LittleEndian.Uint32(b[budgetAt:]),
		id: ID(binary.LittleEndian.Uint64(b[8:])), size: binary.LittleEndian.Uint64(b[16:]),
	}
	payload = b[requestSize:]
	switch {
	case b[0] != wireVersion:
		return r, nil, na.WithText(na.ErrVersion, fmt.Sprintf("request of RPC protocol version %d, this is version %d", b[0], wireVersion))
	case r.flags&^(flagMore|flagOneWay) != 0 || b[2] != 0 || b[3] != 0:
		return r, nil, na.WithText(na.ErrProtocol, "request with unknown flags")
	}
	return r, payload, checkSize(r.flags, r.size, payload)
}

// response is the front of an expected message.
type response struct {
	flags uint8
	code  na.Code
	fate  na.Fate
	size  uint64 // of the whole output, or of the error's text
}

func (r *response) put(b []byte) {
	b[0], b[1], b[2], b[3] = wireVersion, r.flags, uint8(r.code), uint8(r.fate)
	binary.LittleEndian.PutUint32(b[4:], 0)
	binary.LittleEndian.PutUint64(b[8:], r.size)
}

func parseResponse(b []byte) (r response, payload []byte, err error) {
	if len(b) < responseSize {
		return r, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("response of %d bytes, the header alone has %d", len(b), responseSize))
	}
	r = response{flags: b[1], code: na.Code(b[2]), fate: na.Fate(b[3]), size: binary.LittleEndian.Uint64(b[8:])}
	payload = b[responseSize:]
	switch {
	case b[0] != wireVersion:
		return r, nil, na.WithText(na.ErrVersion, fmt.Sprintf("response of RPC protocol version %d, this is version %d", b[0], wireVersion))
	case r.flags&^flagMore != 0 || r.fate > na.Ran || binary.LittleEndian.Uint32(b[4:]) != 0:
		return r, nil, na.WithText(na.ErrProtocol, "response with unknown flags")
	case r.flags&flagMore != 0 && r.code != na.OK:
		return r, nil, na.WithText(na.ErrProtocol, "error response with a body to be read")
	}
	return r, payload, checkSize(r.flags, r.size, payload)
}

// checkSize checks the claimed size against what is there.
func checkSize(flags uint8, size uint64, payload []byte) error {
	want := size
	if flags&flagMore != 0 {
		want = na.KeySize
	}
	if uint64(len(payload)) != want {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("message with %d bytes of payload, want %d", len(payload), want))
	}
	return nil
}

// bodyKey reads the key of a body of the given size.
func bodyKey(payload []byte, size uint64) (na.Key, error) {
	key, err := na.DecodeKey(payload)
	if err == nil && uint64(key.Len) != size {
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("body of %d bytes in memory of %d", size, key.Len))
	}
	return key, err
}
