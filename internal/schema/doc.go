// Package schema describes Go types in terms of their wire representation. It is the only package
// that walks a reflect.Type. The codec, the handling of lent fields, the qs command, and the
// comparison of two versions of a program all use its result.
//
//	reflect.Type ── Of ──► Type ── String ──► "{Name string, Size int64}" ── Parse ──► Type
//	                        │                                                           │
//	                        ├─► hg/codec: budget, fit, depth, types that are not sent   ├─► cmd/qs: types for JSON
//	                        ├─► qs: Sources and Sinks                                   │
//	                        └──────────────► Compare: breaks that old peers see ◄────────┘
//
// The fields of a struct have the names that msgpack gives them, and are in the order in which they
// are encoded. A type that encodes itself is a leaf.
//
// A Type is complete when Of returns it and is never modified afterward, so any number of
// goroutines may read it. A type that contains itself is represented by a cyclic Type. A parsed
// description is received from a peer, and is therefore limited in depth and length.
//
// The package handles only types. It does not read values or bytes.
package schema
