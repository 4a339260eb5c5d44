package main

import (
	"runtime"
	"slices"
	"strings"
)

// module is the beginning of the names of the functions that are measured.
const module = "github.com/quicksilver-rpc/quicksilver/"

// countAllocations returns how much each function allocates in a call.
func (e *callEnds) countAllocations(calls int) (map[string]float64, error) {
	runtime.MemProfileRate = 1 // every one
	defer func() { runtime.MemProfileRate = 0 }()
	before := readAllocations()
	if err := e.call(calls); err != nil {
		return nil, err
	}
	allocations := readAllocations()
	for name := range allocations {
		allocations[name] = (allocations[name] - before[name]) / float64(calls)
		if allocations[name] == 0 {
			delete(allocations, name)
		}
	}
	return allocations, nil
}

// readAllocations returns the allocations so far, by the innermost function of the module on the
// stack; those of this program are left out.
func readAllocations() map[string]float64 {
	for range 2 { // the profile is that of the collection before the last
		runtime.GC()
	}
	n, _ := runtime.MemProfile(nil, true)
	records := make([]runtime.MemProfileRecord, n+100)
	n, _ = runtime.MemProfile(records, true)
	found := map[string]float64{}
	for _, r := range records[:n] {
		names := functionNames(r.Stack())
		if i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, module) }); i >= 0 {
			found[names[i]] += float64(r.AllocObjects)
		}
	}
	return found
}

// handlerFrames is where a handler writes the functions below it, if it is not nil.
var handlerFrames *[]string

// recordFrames makes a call and returns the functions below its handler.
func (e *callEnds) recordFrames() (frames []string, err error) {
	handlerFrames = &frames
	err = e.call(1)
	handlerFrames = nil
	return frames, err
}

// enterHandler is called by every handler.
func enterHandler() {
	if handlerFrames == nil {
		return
	}
	pcs := make([]uintptr, 512)
	*handlerFrames = functionNames(pcs[:runtime.Callers(2, pcs)])
}

// functionNames returns the functions of a stack without those of this program, the innermost first.
func functionNames(pcs []uintptr) (names []string) {
	frames := runtime.CallersFrames(pcs)
	for more := len(pcs) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if !strings.HasPrefix(f.Function, "main.") {
			names = append(names, f.Function)
		}
	}
	return names
}
