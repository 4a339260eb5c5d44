// Package bench implements the measurements of "qs perf" and the target that they run against.
//
//	Perf: Open ─► All, Ladder, Mixed, Floor ═ calls, transfers ═► Register: echo, take, move
//	Idle: many peers that call once and then stay silent
package bench
