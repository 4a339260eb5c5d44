package raftqs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// wireID identifies the encoding to peers. A change of the encoding takes another number, so that two processes that differ refuse each other.
const wireID = 0xd1

// maxBytes bounds what fields but entries may have, in bytes: addresses, names, configurations.
const maxBytes = 1 << 20

var errFormat = errors.New("raftqs: the bytes are not of raft's types; run the same version of this module on both sides")

// wire encodes the requests and responses of raft.Transport: integers as varints, bytes with their length before them, fields in the order of
// the struct. A request with 64 entries of 100 bytes takes an eighth of the time that msgpack needs (BenchmarkEncoding).
type wire struct{}

var _ codec.Codec = wire{}

// Name implements codec.Codec.
func (wire) Name() string { return "raftqs" }

// ID implements codec.Codec.
func (wire) ID() uint8 { return wireID }

// Append implements codec.Codec.
func (wire) Append(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil, *struct{}:
	case *raft.AppendEntriesRequest:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term, v.PrevLogEntry, v.PrevLogTerm, v.LeaderCommitIndex)
		b = appendBytes(b, v.Leader)
		b = binary.AppendUvarint(b, uint64(len(v.Entries)))
		for _, e := range v.Entries {
			b = appendEntry(b, e)
		}
	case *raft.AppendEntriesResponse:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term, v.LastLog)
		b = append(b, bit(v.Success, 1)|bit(v.NoRetryBackoff, 2))
	case *raft.RequestVoteRequest:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term, v.LastLogIndex, v.LastLogTerm)
		b = appendBytes(b, v.Candidate)
		b = append(b, bit(v.LeadershipTransfer, 1))
	case *raft.RequestVoteResponse:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term)
		b = appendBytes(b, v.Peers)
		b = append(b, bit(v.Granted, 1))
	case *raft.RequestPreVoteRequest:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term, v.LastLogIndex, v.LastLogTerm)
	case *raft.RequestPreVoteResponse:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term)
		b = append(b, bit(v.Granted, 1))
	case *raft.TimeoutNowRequest:
		b = appendHeader(b, &v.RPCHeader)
	case *raft.TimeoutNowResponse:
		b = appendHeader(b, &v.RPCHeader)
	case *raft.InstallSnapshotRequest:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, uint64(v.SnapshotVersion), v.Term, v.LastLogIndex, v.LastLogTerm, v.ConfigurationIndex, uint64(v.Size))
		b = appendBytes(b, v.Leader)
		b = appendBytes(b, v.Peers)
		b = appendBytes(b, v.Configuration)
	case *raft.InstallSnapshotResponse:
		b = appendHeader(b, &v.RPCHeader)
		b = appendUints(b, v.Term)
		b = append(b, bit(v.Success, 1))
	default:
		return b, fmt.Errorf("raftqs: %T: %w", v, codec.ErrType)
	}
	return b, nil
}

// Decode implements codec.Codec.
func (wire) Decode(b []byte, v any) error {
	if _, large := v.(*raft.AppendEntriesRequest); large {
		return decodeOwned(append([]byte(nil), b...), v) // its fields point into one copy
	}
	return (&reader{b: b}).decode(v)
}

// decodeOwned is Decode from bytes that are not used again: fields of v point into them.
func decodeOwned(b []byte, v any) error { return (&reader{b: b, owned: true}).decode(v) }

// decode takes all that is left as v.
func (r *reader) decode(v any) error {
	switch v := v.(type) {
	case nil:
		return nil
	case *struct{}:
	case *raft.AppendEntriesRequest:
		r.header(&v.RPCHeader)
		r.uints(&v.Term, &v.PrevLogEntry, &v.PrevLogTerm, &v.LeaderCommitIndex)
		v.Leader = r.field()
		v.Entries = r.entries()
	case *raft.AppendEntriesResponse:
		r.header(&v.RPCHeader)
		r.uints(&v.Term, &v.LastLog)
		r.flags(&v.Success, &v.NoRetryBackoff)
	case *raft.RequestVoteRequest:
		r.header(&v.RPCHeader)
		r.uints(&v.Term, &v.LastLogIndex, &v.LastLogTerm)
		v.Candidate = r.field()
		r.flags(&v.LeadershipTransfer)
	case *raft.RequestVoteResponse:
		r.header(&v.RPCHeader)
		r.uints(&v.Term)
		v.Peers = r.field()
		r.flags(&v.Granted)
	case *raft.RequestPreVoteRequest:
		r.header(&v.RPCHeader)
		r.uints(&v.Term, &v.LastLogIndex, &v.LastLogTerm)
	case *raft.RequestPreVoteResponse:
		r.header(&v.RPCHeader)
		r.uints(&v.Term)
		r.flags(&v.Granted)
	case *raft.TimeoutNowRequest:
		r.header(&v.RPCHeader)
	case *raft.TimeoutNowResponse:
		r.header(&v.RPCHeader)
	case *raft.InstallSnapshotRequest:
		var version, size uint64
		r.header(&v.RPCHeader)
		r.uints(&version, &v.Term, &v.LastLogIndex, &v.LastLogTerm, &v.ConfigurationIndex, &size)
		v.SnapshotVersion, v.Size = raft.SnapshotVersion(version), int64(size)
		r.failed = r.failed || v.Size < 0
		v.Leader, v.Peers, v.Configuration = r.field(), r.field(), r.field()
	case *raft.InstallSnapshotResponse:
		r.header(&v.RPCHeader)
		r.uints(&v.Term)
		r.flags(&v.Success)
	default:
		return fmt.Errorf("raftqs: %T: %w", v, codec.ErrType)
	}
	if r.failed || len(r.b) > 0 {
		return errFormat
	}
	return nil
}

// bit returns value if set, and else 0.
func bit(set bool, value byte) byte {
	if set {
		return value
	}
	return 0
}

func appendBytes(b, field []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(field))), field...)
}

func appendUints(b []byte, fields ...uint64) []byte {
	for _, f := range fields {
		b = binary.AppendUvarint(b, f)
	}
	return b
}

func appendHeader(b []byte, h *raft.RPCHeader) []byte {
	b = binary.AppendUvarint(b, uint64(h.ProtocolVersion))
	return appendBytes(appendBytes(b, h.ID), h.Addr)
}

// appendEntry encodes an entry: at least minEntry bytes.
func appendEntry(b []byte, e *raft.Log) []byte {
	b = appendUints(b, e.Index, e.Term)
	b = append(b, byte(e.Type))
	if e.AppendedAt.IsZero() {
		b = append(b, 0)
	} else {
		b = binary.AppendVarint(append(b, 1), e.AppendedAt.UnixNano())
	}
	return appendBytes(appendBytes(b, e.Data), e.Extensions)
}

// minEntry is the least that an entry takes, in bytes.
const minEntry = 6

// entrySize bounds what appendEntry adds, in bytes.
func entrySize(e *raft.Log) int { return len(e.Data) + len(e.Extensions) + 6*binary.MaxVarintLen64 }

// A reader takes fields from bytes that a peer has sent. failed is set at the first that does not fit, and everything is zero from then on.
type reader struct {
	b      []byte
	owned  bool // b is not used again: fields may point into it
	failed bool
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uints(fields ...*uint64) {
	for _, f := range fields {
		*f = r.uint()
	}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.failed = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// flags takes bits from the lowest on; others must be 0.
func (r *reader) flags(fields ...*bool) {
	v := r.byte()
	for i, f := range fields {
		*f = v>>i&1 != 0
	}
	r.failed = r.failed || v>>len(fields) != 0
}

// bytes takes a field of up to most bytes, without a copy; nil if it has none.
func (r *reader) bytes(most int) []byte {
	n := r.uint()
	if n > uint64(min(most, len(r.b))) {
		r.failed, r.b = true, nil
		return nil
	}
	if n == 0 {
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// field takes bytes that stay valid.
func (r *reader) field() []byte {
	v := r.bytes(maxBytes)
	if r.owned {
		return v
	}
	return append([]byte(nil), v...)
}

func (r *reader) header(h *raft.RPCHeader) {
	h.ProtocolVersion = raft.ProtocolVersion(r.uint())
	h.ID, h.Addr = r.field(), r.field()
}

// entries takes the entries of a request. Their number is checked against the bytes that are left before memory is allocated for them.
func (r *reader) entries() []*raft.Log {
	n := r.uint()
	if n > uint64(len(r.b)/minEntry) {
		r.failed = true
		return nil
	}
	logs, all := make([]raft.Log, n), make([]*raft.Log, n)
	for i := range logs {
		e := &logs[i]
		r.uints(&e.Index, &e.Term)
		e.Type = raft.LogType(r.byte())
		switch r.byte() {
		case 0:
		case 1:
			nanos, n := binary.Varint(r.b)
			if n <= 0 {
				r.failed = true
				return nil
			}
			r.b = r.b[n:]
			e.AppendedAt = time.Unix(0, nanos)
		default:
			r.failed = true
		}
		e.Data, e.Extensions = r.bytes(len(r.b)), r.bytes(len(r.b))
		if r.failed {
			return nil
		}
		all[i] = e
	}
	return all
}
