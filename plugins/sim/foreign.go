package sim

import (
	"bytes"
	"fmt"
	"runtime"
)

// goroutineNumber returns the number of the calling goroutine, as printed by panics. It is slow,
// because it formats a stack trace.
func goroutineNumber() string {
	var buf [64]byte
	_, text, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ")) // "goroutine 17 [running]:"
	number, _, _ := bytes.Cut(text, []byte(" "))
	return string(number)
}

// checkGoroutine panics if c is running but the caller is on a different goroutine, one started
// with a go statement or running a function of context.AfterFunc. It does nothing unless
// Config.CheckGoroutines is set.
func (c *coroutine) checkGoroutine() {
	if !c.w.cfg.CheckGoroutines {
		return
	}
	if number := goroutineNumber(); number != c.goroutine {
		panic(fmt.Sprintf("sim: seed %d: goroutine %s called outside the world while coroutine %s ran: a goroutine "+
			"of go or context.AfterFunc cannot be replayed; start it with World.Spawn or na.Context.Spawn",
			c.w.cfg.Seed, number, c.name))
	}
}
