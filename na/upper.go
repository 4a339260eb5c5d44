package na

// An upper is a Context as the layer above builds calls on it. The type has no name outside of this
// package, so that the page of Context shows what programs use; its methods are documented where
// they are declared.
type upper struct{ *Context }

// Upper returns the operations of c that a layer above needs and a program does not: calls with
// their answers, streams, the order of callbacks, batches of output, and what an orderly end waits
// for. Package hg is built on it. What it returns is as good as c, and copying it costs nothing;
// its methods may change in any release.
func (c *Context) Upper() upper { return upper{c} }
