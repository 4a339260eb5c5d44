package sim

import (
	"bytes"
	"fmt"
	"runtime"
)

// goroutineNumber returns the number of the calling goroutine, as panics print it. It is slow: as
// slow as several steps of a world.
func goroutineNumber() string {
	var buf [64]byte
	_, text, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ")) // goroutine 17 [running]:
	number, _, _ := bytes.Cut(text, []byte(" "))
	return string(number)
}

// checkGoroutine panics if the goroutine that calls it is not that of c, which runs: the program has started it by a go statement, or it runs a
// function of context.AfterFunc. It does so only with Config.CheckGoroutines.
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
