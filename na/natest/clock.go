package natest

import "time"

// A stopwatch bounds what happens on the wall's clock.
type stopwatch struct{ end time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now().Add(5 * time.Second)} }

func (w stopwatch) over() bool { return time.Now().After(w.end) }
