// Package codec turns RPC arguments into bytes and back, and treats every byte from a peer as
// hostile.
//
//	Append(dst, v) ──► encoder ──► bytes ══ wire ══► Decode(b, v)
//	                                                    │
//	                                  guard   one walk over the type bytes: framing, depth, no trailing bytes
//	                                  budget  only for types that can inflate: elements × size against len(b)
//	                                  fit     only for messages that could cost much: a value that the decoder will refuse
//	                                  source  hands the bytes to the decoder, and no extension body as a value
//	                                    ▼
//	                                  decoder ──► v, or an error; a panic inside becomes an error too
//
// Bytes and strings, and structs of numbers, strings, []byte, []string and of such structs, without
// options in their tags, are encoded and decoded without the msgpack package, to the same bytes and
// values, if the peer has the same type: see plan. All else takes the way above.
//
// Append refuses a value that contains itself, or is nested more deeply than Decode takes
// (MaxDepth), with ErrDepth.
//
// Decode copies what it keeps, so the caller may reuse b at once. Decode into a zero value: a slice
// or a map that v already holds is filled in place, as msgpack does. After an error v may be half
// filled.
//
// # What a decode may cost
//
// What is refused costs at most 4 × len(b) + 4 KiB of memory, whatever it is: the guard, the budget
// and the fit look at all of it before the decoder allocates for the first value. If an element of
// v's type is larger than 3 KiB, add two of them. What is accepted costs what its values take in
// memory, as follows.
//
// The guard makes the number of elements in all containers together at most len(b). What an element
// costs is up to its Go type, per byte received: []byte and string 1, []int 8, []string and []any
// 16, [][]T 24, and while decoding up to three times that. A map of strings costs up to 40, and
// many maps of one tiny entry 120, because Go gives the smallest map room for eight entries. Honest
// senders of such values cause the same, so only a limit on the length of the message helps there.
//
// Elements larger than 24 bytes could be far worse: one byte, nil, makes a struct of 4 KiB. So a
// slice element, a map key, a map value or the target of a pointer may cost 24 bytes of memory for
// each of its bytes on the wire. What goes beyond that is added up, and more than 4 × len(b) + 4
// KiB of it is ErrInflated, before anything is allocated. A type that is honestly tiny on the wire
// and large in memory says so by implementing Sparse.
//
// Not counted: what a type allocates in its own DecodeMsgpack, UnmarshalMsgpack, UnmarshalBinary or
// UnmarshalText, and what came in front of a value that such a method refuses; and the target of an
// interface that held a pointer before the decode.
//
// # Which msgpack
//
// Structs are maps by field name, so fields can be added: Decode skips unknown ones, and missing
// ones stay as they were; a FieldChecker finds both. A value of another type is an error that names
// the field, and so is an integer that does not fit the receiver's, or that its float does not hold
// exactly. Unexported fields are not sent. A time.Time arrives as the same instant in local time:
// its zone is not sent. CheckType tells which types are not sent. Keys of map[string]string,
// map[string]bool and map[string]any are sorted, so equal values give equal bytes; other maps come
// in random order. The msgpack tag option "intern" and extensions without a body do not decode. A
// struct embedded by pointer makes the msgpack package start a goroutine that never ends: embed by
// value.
//
// Not here: schemas, compression, limits on the message length.
package codec
