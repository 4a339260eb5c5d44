package na

// An upper is a Context with additional methods for a higher layer. The type is unexported so that
// the documentation of Context shows only the methods that programs use.
type upper struct{ *Context }

// Upper returns the operations of c that a higher layer needs and a program does not: calls with
// their answers, streams, ordering of callbacks, batching of output, and graceful shutdown. It is
// used by package hg. The result is valid as long as c is and may be copied freely. Its methods may
// change in any release.
func (c *Context) Upper() upper { return upper{c} }
