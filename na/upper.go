package na

// An upper is a Context with the methods for a layer above it. The type is not exported, so that
// the documentation of Context shows what programs use; its methods are documented where they are
// declared.
type upper struct{ *Context }

// Upper returns the operations of c that a layer above needs and a program does not: calls with
// their answers, streams, the order of callbacks, batches of output, and what an orderly end waits
// for. Package hg uses it. The result is valid as long as c, and copying it is free. Its methods
// may change in any release.
func (c *Context) Upper() upper { return upper{c} }
