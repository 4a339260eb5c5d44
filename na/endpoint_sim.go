package na

import "github.com/quicksilver-rpc/quicksilver/internal/simhook"

// What a simulator needs of an endpoint.

var _ simhook.Core = (*endpoint)(nil)

// Closed implements simhook.Core.
func (e *endpoint) Closed() bool { return e.nctx.Closed() }

// failOp asks the simulator, if there is one, whether a start that needs the network fails.
func (e *endpoint) failOp() error {
	if e.faults == nil {
		return nil
	}
	return e.faults.FailOp()
}

// failsAtOnce ends the operation of t, which then has not run, if the simulator has its start fail. local is memory that was acquired for it, or nil.
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
