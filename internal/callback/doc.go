// Package callback tells whose callbacks the calling goroutine is inside.
//
//	Trigger ─► Mark.Run ─► callback ─► Shutdown ─► Mark.Inside() == true
//
// A goroutine has no name, but it has a stack: Run leaves the number of its mark there, as frames of functions that stand for
// digits. Run costs a few calls. Inside walks the stack.
package callback
