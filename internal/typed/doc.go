// Package typed converts between JSON and the values of methods whose Go types this process does
// not have. The shape that a program reports for its methods, inspect.RPC.Shape, is parsed into a
// reflect.Type, which the codec then encodes and decodes as the program does.
//
//	"{Name string, Size int64}" ── Parse ──► Type ── FromJSON ──► value ── codec ──► request
//	                                            └─── value ◄── codec ── answer;  value ── ToJSON ──► text
//
// FromJSON reads all that ToJSON writes, and gets the same value. JSON lacks some values: bytes are
// base64; times, big integers and types that encode themselves as text are the text of the type,
// durations are "1.5s" or nanoseconds, and a float may be "NaN". Where no type is known a value is
// a Free, whose JSON carries its type where plain JSON is ambiguous.
package typed
