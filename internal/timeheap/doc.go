// Package timeheap is a priority queue of values by time:
//
//	Set(v, &v.index, at) ─► binary heap by (at, order of Set) ─► First, All
//
// Each value stores its index in the heap, so that it can be moved and removed. The times are
// stored in the heap itself, so a comparison calls no function and follows no pointer.
package timeheap
