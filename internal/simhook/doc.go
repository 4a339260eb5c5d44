// Package simhook is what a simulator replaces in package na: the clock, the randomness, the goroutines, how a context waits, and
// which operations fail as they start. Package na asks a plugin, its names and its carriers for these interfaces; plugins of real networks have none.
//
//	carrier.Plugin ─► Clock      carrier.Names ─► Scheduler, Faults      carrier.Carrier ─► Driver, Faults
package simhook
