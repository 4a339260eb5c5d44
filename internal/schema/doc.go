// Package schema describes Go types in terms of their wire representation. It is the only package
// that walks a reflect.Type. The codec, the handling of lent fields, the qs command, and the
// comparison of two versions of a program all use its result.
//
// Of returns the Type of a reflect.Type. Type.String formats it as text such as "{Name string, Size
// int64}", and Parse parses that text. The codec uses a Type to limit and check values, package qs
// to find Sources and Sinks, the qs command to convert values from and to JSON, and Compare to find
// changes that break old peers.
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
