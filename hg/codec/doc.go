// Package codec converts RPC arguments to bytes and back, and treats every byte received from a
// peer as hostile.
//
//	Append(dst, v) ──► encoder ──► bytes ══ wire ══► Decode(b, v)
//	                                                    │
//	                                  guard   one pass over the type bytes: framing, depth, no trailing bytes
//	                                  budget  only for types that can inflate: elements × size against len(b)
//	                                  fit     only for messages that could cost much: finds values that the decoder will reject
//	                                  source  passes the bytes to the decoder, but no extension body as a value
//	                                    ▼
//	                                  decoder ──► v, or an error; a panic in the decoder becomes an error
//
// Some types are encoded and decoded without the msgpack package, to the same bytes and values, if
// the peer has the same type: bytes and strings, and structs composed of numbers, strings, []byte,
// []string, and other such structs, without options in their tags (see plan). Everything else takes
// the path shown above.
//
// Append rejects a value that contains itself, or that is nested more deeply than Decode accepts
// (MaxDepth), with ErrDepth.
//
// Decode copies what it retains, so the caller may reuse b at once. The destination should be a
// zero value: a slice or map that v already holds is filled in place, as in msgpack. After an error
// v may be partially filled.
//
// # Cost of decoding
//
// Rejected input of any kind costs at most 4 × len(b) + 4 KiB of memory: the guard, the budget, and
// the fit examine all of it before the decoder allocates memory for the first value. If an element
// of v's type is larger than 3 KiB, two such elements must be added. Accepted input costs the
// memory that its values occupy, as follows.
//
// The guard limits the total number of elements in all containers to len(b). The cost of an element
// depends on its Go type. Per byte received, []byte and string cost 1 byte, []int 8, []string and
// []any 16, and [][]T 24, and up to three times as much during decoding. A map of strings costs up
// to 40, and many maps with a single tiny entry cost 120, because the smallest Go map has room for
// eight entries. Honest senders of such values cause the same cost, so only a limit on the message
// length helps.
//
// Elements larger than 24 bytes could cost far more, since one byte, nil, can create a struct of 4
// KiB. Therefore a slice element, a map key, a map value, or the target of a pointer may cost 24
// bytes of memory for each of its bytes on the wire. Any excess is added up, and if it exceeds 4 ×
// len(b) + 4 KiB, Decode returns ErrInflated before anything is allocated. A type that is
// legitimately tiny on the wire and large in memory declares so by implementing Sparse.
//
// The following are not counted: memory that a type allocates in its own DecodeMsgpack,
// UnmarshalMsgpack, UnmarshalBinary, or UnmarshalText method; values decoded before one that such a
// method rejects; and the target of an interface that held a pointer before decoding.
//
// # Msgpack encoding
//
// Structs are encoded as maps keyed by field name, so fields can be added. Decode skips unknown
// fields and leaves missing ones unchanged; a FieldChecker detects both. A value of the wrong type
// results in an error that names the field. So does an integer that does not fit the receiver's
// integer type or cannot be represented exactly by its float type. Unexported fields are not sent.
// A time.Time is decoded as the same instant in local time, because its zone is not sent. CheckType
// reports which types are not sent. The keys of map[string]string, map[string]bool, and
// map[string]any are sorted, so equal values have equal encodings. Other maps are encoded in random
// order. The msgpack tag option "intern" and extensions without a body cannot be decoded. Embed
// structs by value: a struct embedded by pointer causes the msgpack package to start a goroutine
// that never exits.
//
// This package does not provide schemas, compression, or limits on the message length.
package codec
