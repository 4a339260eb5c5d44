package hg

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Headers of all messages of this package. Their layout is described in docs/internals/WIRE.md. All
// integers are little-endian.
const (
	requestSize  = 24
	responseSize = 16
	streamsSize  = 16 // bytes that follow the header of a request with streams

	budgetAt = 4  // offset of the remaining time (budget) in a request
	fieldsAt = 22 // offset of the number of appended fields; the size before it has 6 bytes
	countAt  = 23 // offset of the number of streams
	// offset of the ID of the first stream, if any, which is followed by four bits per stream
	streamAt = requestSize
	maxSize  = 1<<48 - 1

	// Later releases may append fields to a header. The header contains their number, which counts
	// words of 8 bytes. A release that does not know these fields skips them, unless the
	// mustUnderstand bit is set.
	fieldSize      = 8
	mustUnderstand = 128

	streamUp   = 1 // bits that describe a stream
	streamBulk = 2

	flagMore   = 1 // the payload is a key, with which the body must be read from the sender's memory
	flagOneWay = 2 // requests: no response is wanted
	// requests: two bits with the size class of the longest response that the origin accepts in one
	// message
	roomShift = 2
	// error responses: the code was set by the library, because it refused the request, the handler
	// exceeded RPC.Timeout, or the output exceeded Config.MaxOutput
	flagByLibrary = 8
	flagAhead     = 16 // with flagMore: the metadata precedes the body and is read with it
	metaShift     = 5  // requests: the three high bits of the metadata length

	// maxErrorText limits the text of an error response, and maxDetail its detail, in bytes.
	maxErrorText = 1024
	maxDetail    = 1024
)

// A request is the header of an unexpected message, which carries a call. The tag of the message
// identifies the call.
type request struct {
	version uint8 // version of a received header; writeHeader always writes wireVersion
	flags   uint8
	codec   uint8 // codec ID of the input
	room    int   // size class of na.RoomBytes for the response
	meta    int   // bytes of metadata after the header or before the body; a multiple of metaWord
	// budget is the time left until the deadline when the request is sent, in microseconds. It is
	// written by na. Zero means no deadline.
	budget uint32
	id     ID
	size   uint64 // size of the entire input in bytes
	named  streamNames
}

// streamNames is the part of a request header that describes the request's streams.
type streamNames struct {
	first uint64 // ID of the first stream, written by na when the request is sent
	count int
	kinds uint64 // four bits per stream; the lowest four describe the first stream
}

// nameStreams returns the description of specs for a request header. The ID of the first stream is
// left zero.
func nameStreams(specs []StreamSpec) (n streamNames) {
	n.count = len(specs)
	for i, spec := range specs {
		kind := uint64(0)
		if spec.Up {
			kind |= streamUp
		}
		if spec.Bulk {
			kind |= streamBulk
		}
		n.kinds |= kind << (4 * i)
	}
	return n
}

// streamSpec returns the specification of the stream with index i.
func (n *streamNames) streamSpec(i int) StreamSpec {
	kind := n.kinds >> (4 * i)
	return StreamSpec{Up: kind&streamUp != 0, Bulk: kind&streamBulk != 0}
}

func (r *request) writeHeader(b []byte) {
	words := r.meta / metaWord
	b[0], b[1], b[2], b[3] = wireVersion, r.flags|uint8(r.room)<<roomShift|uint8(words>>8)<<metaShift, r.codec, uint8(words)
	front := requestSize
	binary.LittleEndian.PutUint32(b[budgetAt:], r.budget)
	binary.LittleEndian.PutUint64(b[8:], uint64(r.id))
	binary.LittleEndian.PutUint64(b[16:], r.size)
	if b[countAt] = uint8(r.named.count); r.named.count > 0 {
		binary.LittleEndian.PutUint64(b[streamAt:], r.named.first)
		binary.LittleEndian.PutUint64(b[streamAt+8:], r.named.kinds)
		front += streamsSize
	}
	if b[fieldsAt] = ownFields; ownFields > 0 {
		putFields(b[front:])
	}
	requestToWire(b)
}

// frontSize returns the length of the header of a request with the given number of streams.
func frontSize(streams int) int {
	if streams > 0 {
		return requestSize + streamsSize + ownFields*fieldSize
	}
	return requestSize + ownFields*fieldSize
}

// fieldsSize returns the size in bytes of the fields appended to a header. The argument fields is
// the byte of the header that holds their number and the mustUnderstand bit, and the argument there
// is the number of bytes that follow the header. fieldsSize returns an error if fewer bytes follow
// than the fields need, or if the bit is set and a field is unknown.
func fieldsSize(fields uint8, there int) (n int, err error) {
	n = int(fields&^mustUnderstand) * fieldSize
	switch {
	case fields&mustUnderstand != 0 && n > ownFields*fieldSize:
		err = na.WithText(na.ErrVersion, "header with unknown required fields")
	case n > there:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("header with %d bytes of fields, %d bytes left", n, there))
	}
	return n, err
}

// parse parses the request b into r and returns its metadata and payload. If the payload was sent
// separately, it is body. On error, r holds the fields that could be read.
func (r *request) parse(b, body []byte) (meta, payload []byte, err error) {
	if len(b) < requestSize {
		return nil, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("request of %d bytes, want a header of %d", len(b), requestSize))
	}
	version := b[0]
	known := requestFromWire(b)
	*r = request{
		version: version, flags: b[1] & (flagMore | flagOneWay | flagAhead), room: int(b[1] >> roomShift & 3), codec: b[2], meta: (int(b[3]) | int(b[1]>>metaShift)<<8) * metaWord, budget: binary.LittleEndian.Uint32(b[budgetAt:]),
		id: ID(binary.LittleEndian.Uint64(b[8:])), size: binary.LittleEndian.Uint64(b[16:]) & maxSize,
	}
	if !known {
		return nil, nil, errHeaderVersion("request", version)
	}
	head := requestSize
	if b[countAt] != 0 {
		if err := r.parseStreams(b); err != nil {
			return nil, nil, err
		}
		head += streamsSize
	}
	if b[fieldsAt] != 0 {
		n, err := fieldsSize(b[fieldsAt], len(b)-head)
		if err != nil {
			return nil, nil, err
		}
		takeFields(b[head : head+n])
		head += n
	}
	return splitBehindHeader(b[head:], body, r.flags, r.codec, r.meta, r.size)
}

// parseStreams parses the description of the streams in the header b of a request and stores it in
// r.
func (r *request) parseStreams(b []byte) error {
	n := streamNames{count: int(b[countAt])}
	if len(b) >= requestSize+streamsSize && n.count <= na.MaxStreams && r.flags&flagOneWay == 0 {
		n.first, n.kinds = na.StreamID(b[streamAt:]), binary.LittleEndian.Uint64(b[streamAt+8:])
		known := uint64(streamUp|streamBulk) * 0x1111_1111_1111_1111 >> (64 - 4*n.count)
		if n.kinds&^known == 0 {
			r.named = n
			return nil
		}
	}
	return na.WithText(na.ErrProtocol, fmt.Sprintf("request of %d bytes with %d streams of invalid kinds %#x", len(b), n.count, n.kinds))
}

// errHeaderVersion returns the error for a message whose header has an unsupported version.
func errHeaderVersion(what string, version uint8) error {
	return na.WithText(na.ErrVersion, fmt.Sprintf("%s with RPC header version %d, want %d to %d", what, version, oldestWire, wireVersion))
}

// A response is the header of an expected message, which carries the response to a call.
type response struct {
	version uint8 // version of a received header, or the version to write; 0 means wireVersion
	flags   uint8
	code    na.Code
	fate    na.Fate
	codec   uint8  // codec ID of the output or of an error's detail
	meta    int    // bytes of metadata after the header or before the body; a multiple of metaWord
	size    uint64 // size in bytes of the entire output, or of an error's text and detail

	text string // text of an error for Config.Observe; not sent
}

func (r *response) writeHeader(b []byte) {
	b[0], b[1], b[2], b[3] = wireVersion, r.flags, uint8(r.code), uint8(r.fate)
	b[4], b[7] = r.codec, 0
	binary.LittleEndian.PutUint16(b[5:], uint16(r.meta/metaWord))
	binary.LittleEndian.PutUint64(b[8:], r.size)
	responseToWire(b, r.version)
}

// parse parses the response b into r and returns its metadata and payload. If the payload was sent
// separately, it is body.
func (r *response) parse(b, body []byte) (meta, payload []byte, err error) {
	if len(b) < responseSize {
		return nil, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("response of %d bytes, want a header of %d", len(b), responseSize))
	}
	version := b[0]
	known := responseFromWire(b)
	*r = response{
		version: version, flags: b[1], code: na.Code(b[2]), fate: na.Fate(b[3]), codec: b[4], meta: int(binary.LittleEndian.Uint16(b[5:])) * metaWord,
		size: binary.LittleEndian.Uint64(b[8:]),
	}
	if r.fate > na.Ran { // a fate defined by a later release, whose meaning is unknown
		r.fate = na.MaybeRan
	}
	switch {
	case !known:
		return nil, nil, errHeaderVersion("response", version)
	case r.flags&^(flagMore|flagByLibrary|flagAhead) != 0:
		return nil, nil, na.WithText(na.ErrVersion, fmt.Sprintf("response with unknown flags %#x", r.flags))
	case r.flags&flagMore != 0 && r.code != na.OK:
		return nil, nil, na.WithText(na.ErrProtocol, "error response with a body")
	case r.flags&flagByLibrary != 0 && (r.code == na.OK || r.fate != na.NotRun && r.code != ErrTimeout && r.code != ErrOverflow):
		return nil, nil, na.WithText(na.ErrProtocol, "response refuses a request that ran")
	}
	head := responseSize
	if b[7] != 0 {
		n, err := fieldsSize(b[7], len(b)-head)
		if err != nil {
			return nil, nil, err
		}
		head += n
	}
	if meta, payload, err = splitBehindHeader(b[head:], body, r.flags, r.codec, r.meta, r.size); err != nil || r.code == na.OK {
		return meta, payload, err
	}
	if len(payload) < 2 {
		return nil, nil, na.WithText(na.ErrProtocol, "error response without text")
	}
	text := int(binary.LittleEndian.Uint16(payload))
	if detail := len(payload) - 2 - text; text > maxErrorText || detail < 0 || detail > maxDetail {
		return nil, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("error response of %d bytes with text of %d", len(payload), text))
	}
	return meta, payload, nil
}

// appendFailure appends the payload of an error response to b.
func appendFailure(b []byte, text string, detail []byte) []byte {
	text = frame.CutText(text, maxErrorText)
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
	return append(b, detail...)
}

// remoteError returns the error carried by r, an error response with the given payload. parse must
// already have validated the payload.
func (r *response) remoteError(payload []byte, c codec.Codec) *RemoteError {
	end := 2 + int(binary.LittleEndian.Uint16(payload))
	e := &RemoteError{Code: r.code, Text: string(payload[2:end]), Refused: r.fate == na.NotRun, byLibrary: r.flags&flagByLibrary != 0}
	if len(payload) > end {
		e.detail, e.codec, e.codecID = bytes.Clone(payload[end:]), c, r.codec
	}
	return e
}

// splitBehindHeader splits the bytes after a header into metadata and payload, and checks that
// their length agrees with size, the length claimed in the header. The payload is body if that was
// sent separately. Metadata that precedes a lent body is not returned.
func splitBehindHeader(b, body []byte, flags, id uint8, metaSize int, size uint64) (meta, payload []byte, err error) {
	if flags&flagAhead != 0 {
		if flags&flagMore == 0 || metaSize == 0 || metaSize > maxMeta+maxOwnMeta {
			return nil, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("message with invalid metadata of %d bytes before its body", metaSize))
		}
		metaSize = 0
	}
	if len(b) < metaSize {
		return nil, nil, na.WithText(na.ErrProtocol, fmt.Sprintf("message with %d bytes after the header, want metadata of %d", len(b), metaSize))
	}
	meta, payload = b[:metaSize], b[metaSize:]
	want := size
	if flags&flagMore != 0 {
		want = na.KeySize
	}
	if body != nil && len(payload) == 0 && flags&flagMore == 0 {
		payload, body = body, nil
	}
	switch {
	case body != nil:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("message with %d bytes of payload and a body", len(payload)))
	case uint64(len(payload)) != want:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("message with %d bytes of payload, want %d", len(payload), want))
	case size == 0 && id != codec.NoBytesID || size != 0 && id == codec.NoBytesID:
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("message with %d bytes in codec %d", size, id))
	case metaSize > 0:
		err = checkMeta(meta)
	}
	return meta, payload, err
}

// checkCodec returns an error if c cannot decode bytes that were encoded by the codec with the
// given ID.
func checkCodec(c codec.Codec, id uint8) error {
	if id == codec.NoBytesID || id == codec.EncodedID || id == c.ID() {
		return nil
	}
	return na.WithText(na.ErrProtocol, fmt.Sprintf("encoded with codec %s, decoded with %s", codec.NameOf(id), c.Name()))
}

// metaAhead returns the number of metadata bytes that precede the lent body, which is either meta
// or 0.
func metaAhead(flags uint8, meta int) int64 {
	if flags&flagAhead == 0 {
		return 0
	}
	return int64(meta)
}

// bodyKey decodes the key of a lent body of the given size that is preceded by ahead bytes of
// metadata.
func bodyKey(payload []byte, ahead int64, size uint64) (na.Key, error) {
	key, err := na.DecodeKey(payload)
	if err == nil && (key.Len < ahead || uint64(key.Len-ahead) != size) {
		err = na.WithText(na.ErrProtocol, fmt.Sprintf("metadata of %d bytes and body of %d bytes in memory of %d bytes", ahead, size, key.Len))
	}
	return key, err
}

// splitBody splits b, which was read from the memory of a sender, into ahead bytes of metadata and
// the body. It validates the metadata.
func splitBody(b []byte, ahead int64) (meta, body []byte, err error) {
	if err := checkMeta(b[:ahead]); err != nil {
		return nil, nil, err
	}
	return b[:ahead:ahead], b[ahead:], nil
}
