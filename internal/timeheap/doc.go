// Package timeheap implements a priority queue of values ordered by time:
//
//	Set(v, &v.index, at) ─► binary heap by (at, order of Set) ─► First, All
//
// Each value stores its own index in the heap, so that it can be moved and removed. The heap itself
// stores the times, so a comparison neither calls a function nor follows a pointer.
package timeheap
