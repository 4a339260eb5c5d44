// Package bench implements the measurements of "qs perf" and the target that they use.
//
// A Perf opens an origin and measures calls and transfers. Register makes a class a target for
// these measurements. Idle measures the cost of many peers that call once and then remain idle.
package bench
