// Command calls makes calls between two ends in this process, one after the other, and prints as
// JSON what a call costs both of them together. Built with -cover it writes, instead, the counters
// of each round: how often each block of code ran.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/coverage"
	"runtime/debug"
	"strconv"
	"syscall"
)

// A report is the output of the program: the minimum of each figure over all rounds.
type report struct {
	CPU         float64            // nanoseconds of processor time of one call, of all threads
	Allocations map[string]float64 // of one call, by the function of this module that made them
	Frames      []string           // the functions below the handler, the innermost first
}

var (
	transport = flag.String("transport", "tcp", "tcp, udp or sm")
	kind      = flag.String("kind", "callback", "callback, blocking or typed")
	calls     = flag.Int("calls", 250, "calls in a round")
	rounds    = flag.Int("rounds", 4, "rounds")
	counters  = flag.String("counters", "", "only write the counters of round N to the folder N in this one; needs -cover")
)

// warmUp is how many calls make the connection and fill the pools.
const warmUp = 200

func main() {
	flag.Parse()
	runtime.GOMAXPROCS(2)      // on every machine
	runtime.MemProfileRate = 0 // until allocations are counted
	debug.SetGCPercent(-1)     // a collection empties the pools
	var r report
	for round := range *rounds {
		if err := r.measure(round); err != nil {
			log.Fatal(err)
		}
	}
	if *counters != "" {
		return
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

// measure runs one round, with new ends: the state that a node adapts on a busy machine, such as
// slow handlers, ends with the node.
func (r *report) measure(round int) error {
	e, err := openEnds(*kind, *transport)
	if err != nil {
		return err
	}
	if err := e.call(warmUp); err != nil {
		return err
	}
	if *counters != "" {
		err = e.count(filepath.Join(*counters, strconv.Itoa(round)))
	} else {
		err = r.measureRest(e)
	}
	if err != nil {
		return err
	}
	return e.close(context.Background())
}

// count makes calls and writes their counters to a folder.
func (e *callEnds) count(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := e.call(*calls); err != nil {
		return err
	}
	if err := coverage.WriteCountersDir(folder); err != nil {
		return err
	}
	return coverage.WriteMetaDir(folder)
}

// measureRest measures all but the counters.
func (r *report) measureRest(e *callEnds) error {
	before := processorTime()
	if err := e.call(*calls); err != nil {
		return err
	}
	used := (processorTime() - before) / float64(*calls)
	first := r.Frames == nil
	if first {
		r.CPU = math.Inf(1)
	}
	r.CPU = min(r.CPU, used)

	allocations, err := e.countAllocations(*calls)
	if err != nil {
		return err
	}
	if first {
		r.Allocations = allocations
	}
	for name, n := range r.Allocations {
		r.Allocations[name] = min(n, allocations[name])
	}

	frames, err := e.recordFrames()
	if err != nil {
		return err
	}
	if first || len(frames) < len(r.Frames) {
		r.Frames = frames
	}
	return nil
}

// processorTime returns the nanoseconds that all threads of this process have used.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}
