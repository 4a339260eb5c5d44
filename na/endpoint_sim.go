package na

import "github.com/quicksilver-rpc/quicksilver/internal/simhook"

// The endpoint implements simhook.Core for the simulator.
var _ simhook.Core = (*endpoint)(nil)

// Closed implements simhook.Core.
func (e *endpoint) Closed() bool { return e.nctx.Closed() }

// failOp returns the error with which the simulator makes the start of an operation fail, or nil.
func (e *endpoint) failOp() error {
	if e.faults == nil {
		return nil
	}
	return e.faults.FailOp()
}

// failsAtOnce reports whether the simulator makes the start of an operation fail. If so, it
// completes the operation of t with Fate NotRun and releases local, the memory that was acquired
// for the operation. local may be nil.
func (e *endpoint) failsAtOnce(t ticket, local *Mem) bool {
	err := e.failOp()
	if err == nil {
		return false
	}
	if local != nil {
		local.Release()
	}
	t.finish(Result{Err: err, Fate: NotRun})
	return true
}
