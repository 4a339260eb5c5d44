package na

// An upper is a Context with additional methods for a layer above. The type is not exported, so
// that the documentation of Context shows only what programs use.
type upper struct{ *Context }

// Upper returns the operations of c that a layer above needs and a program does not: calls with
// their answers, streams, the order of callbacks, batches of output, and graceful shutdown. Package
// hg uses it. The result is valid as long as c, and copying it is free. Its methods may change in
// any release.
func (c *Context) Upper() upper { return upper{c} }
