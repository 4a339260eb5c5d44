// Package bench implements the measurements of "qs perf" and the target that they run against.
//
//	Perf: Open ─► All, Ladder, Mixed, Floor ═ calls, transfers ═► Register: echo, take, move
//	Idle: many peers that have called once and are silent
package bench
