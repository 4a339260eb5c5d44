package natest

import "time"

// A stopwatch limits durations on the wall clock.
type stopwatch struct{ end time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now().Add(5 * time.Second)} }

func (w stopwatch) over() bool { return time.Now().After(w.end) }
