package loop

// A UserCode is code of the program (a callback, handler or authorizer) that a context runs.
// na.Context.Shutdown detects calls from such code by looking for the context's frame on its
// caller's stack. UserCode is a plain value and Run is not a closure, so a call does not allocate.
type UserCode struct {
	Run  func(k UserCode) int // returns the number of callbacks run
	Data any
	N    int

	// Step and Stop are used for callbacks that a context has queued itself.
	Step int
	Stop interface{ Stops() bool }
}
