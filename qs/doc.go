// Package qs implements typed RPC and bulk data transfer. A [Method] of another process is called
// like a local function, and the deadline of its context is sent with the call. Large data is
// passed as a [Source] or a [Sink] in the input. The peer reads or writes it during the call,
// without copying it into a message. Packages hg and bulk provide the same operations with
// callbacks. See [Node.HG].
package qs
