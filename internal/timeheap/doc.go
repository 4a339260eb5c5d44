// Package timeheap keeps values in the order in which they are due:
//
//	Set(v, &v.place, at) ─► binary heap by (at, order of setting) ─► First, All
//
// A value says where it is in the heap, so that it can be moved and taken out. The times stand in the heap itself: nothing is
// called, nor looked up, to compare two.
package timeheap
