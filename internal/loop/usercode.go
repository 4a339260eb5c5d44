package loop

// A UserCode is code of the program (callbacks, handlers, authorizers) that a context runs below its
// frame, which na.Context.Shutdown looks for on the stack of its caller. It is a value, and Run is no
// closure: a call makes one without memory.
type UserCode struct {
	Run  func(k UserCode) int // it returns how many callbacks have run
	Data any
	N    int

	// Step and Stop are those of the callbacks that a context has queued itself.
	Step int
	Stop interface{ Stops() bool }
}
