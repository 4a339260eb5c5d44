// Package typed makes values of methods whose Go types are not known here out of JSON, and JSON out of them. What a program says of its
// methods, inspect.RPC.Shape, is read into a reflect.Type, which the codec then encodes and decodes as the program does.
//
//	"{Name string, Size int64}" ── Parse ──► Type ── FromJSON ──► value ── codec ──► request
//	                                            └─── value ◄── codec ── answer;  value ── ToJSON ──► text
//
// What ToJSON writes FromJSON reads, and means the same. JSON lacks some values: bytes are base64; times, big integers and what
// encodes itself as text are the text of the type, durations are "1.5s" or nanoseconds, and a float may be "NaN". Where no type is known
// a value is a Free, which says its type in JSON where it has to.
package typed
