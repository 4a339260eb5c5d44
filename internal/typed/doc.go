// Package typed converts between JSON and values of methods whose Go types this process does not
// have. It parses the shape that a program reports for a method, inspect.RPC.Shape, into a
// reflect.Type, which the codec then encodes and decodes as the program does.
//
//	"{Name string, Size int64}" ── Parse ──► Type ── FromJSON ──► value ── codec ──► request
//	                                            └─── value ◄── codec ── answer;  value ── ToJSON ──► text
//
// FromJSON accepts everything that ToJSON writes and yields the same value. Some values have no
// direct JSON form. Bytes are base64. Times, big integers and types that encode themselves as text
// use the text of the type. Durations are "1.5s" or nanoseconds, and a float may be "NaN". A value
// of unknown type is a Free, whose JSON includes its type where plain JSON is ambiguous.
package typed
