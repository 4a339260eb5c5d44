// Package schema describes Go types as their values are on the wire. It is the one place that walks
// over a reflect.Type: the codec, the fields that a call lends, the tool and the comparison of two
// versions of a program read its result.
//
//	reflect.Type ── Of ──► Type ── String ──► "{Name string, Size int64}" ── Parse ──► Type
//	                        │                                                           │
//	                        ├─► hg/codec: budget, fit, depth, types that are not sent   ├─► cmd/qs: types for JSON
//	                        ├─► qs: Sources and Sinks                                   │
//	                        └──────────────► Compare: breaks that old peers see ◄────────┘
//
// A struct has the names that msgpack gives its fields, in the order in which they are encoded. A
// type that encodes itself is a leaf.
//
// What always holds: a Type is complete, and not changed, when Of returns it; any number of
// goroutines may read it. A type that contains itself is a Type that leads back to itself. A
// description that is parsed comes from a peer: it is bounded in depth and in length.
//
// The package handles types only: it reads no values and no bytes.
package schema
