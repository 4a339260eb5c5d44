package pathcost

import (
	"maps"
	"math"
	"strings"
)

// The figures of a call.
const (
	functions   = "functions"    // of this module that are entered, function literals among them
	locks       = "locks"        // Lock, RLock, TryLock and TryRLock of package sync
	clockReads  = "clock reads"  // time.Now, Since and Until
	systemCalls = "system calls" // of this module's own, without those of the runtime
	allocations = "allocations"  // of the whole process
	frames      = "frames"       // of the stack below the handler
)

var figures = []string{functions, locks, clockReads, systemCalls, allocations, frames}

// Two lists are not figures, but explain one.
const (
	// clockReaders are the callers of functions called now: where the clock is read. A call is
	// counted with the statement that it is in, although the condition before it may have spared
	// it.
	clockReaders = "clock readers"
	// varying are functions that are entered in some rounds and not in others, as the threads run.
	// They do not count.
	varying = "varying functions"
)

// lists are the records by function.
var lists = []string{functions, varying, locks, clockReads, clockReaders, systemCalls, allocations, frames}

// costs are the costs of a call: for each figure the amount by function.
type costs map[string]map[string]float64

func (c costs) add(figure, name string, n float64) {
	if n == 0 {
		return
	}
	if c[figure] == nil {
		c[figure] = map[string]float64{}
	}
	c[figure][name] += n
}

// minCosts returns the minimum of two measurements of the same call: costs of only some rounds are
// not those of the call. Of frames it returns the higher stack: a handler may run on a worker now
// and then, and has few frames below it there.
func minCosts(a, b costs) costs {
	c := costs{}
	for _, list := range lists {
		switch {
		case list == frames && sum(a[frames]) >= sum(b[frames]):
			c[frames] = a[frames]
		case list == frames:
			c[frames] = b[frames]
		case list == varying:
			c[varying] = maxFrames(a[varying], b[varying])
		default:
			for name, n := range a[list] {
				c.add(list, name, min(n, b[list][name]))
			}
		}
	}
	return c
}

func maxFrames(a, b map[string]float64) map[string]float64 {
	all := map[string]float64{}
	maps.Copy(all, a)
	for name, n := range b {
		all[name] = max(n, all[name])
	}
	return all
}

// withoutVarying returns c as it is recorded, without costs that not every call has. A function
// counts once, however often it is entered; the rest is rounded to tenths.
func (c costs) withoutVarying() costs {
	s := costs{}
	for list, of := range c {
		for name, n := range of {
			switch {
			case list == functions:
				s.add(list, name, boolNumber(n >= usualShare))
			case list == varying:
				s.add(list, name, boolNumber(n >= unusualShare && c[functions][name] < usualShare))
			default:
				s.add(list, name, math.Round(10*n)/10)
			}
		}
	}
	return s
}

// A function belongs to a call if it is entered usualShare times a call, and not at all if it is
// never entered unusualShare times a call.
const usualShare, unusualShare = 0.5, 0.2

func boolNumber(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func sum(of map[string]float64) (all float64) {
	for n := range maps.Values(of) {
		all += n
	}
	return all
}

// shortName returns the name of a function of the module at runtime as code.go names it:
// "hg.Context.run".
func shortName(module, name string) string {
	name = strings.TrimPrefix(name, module+"/")
	return strings.NewReplacer("(*", "", ")", "", "[...]", "").Replace(name)
}
