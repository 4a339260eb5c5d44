// Package simhook defines the parts of package na that a simulator replaces: the clock, the random
// source, the goroutines, how a context waits, and which operations fail when started. Package na
// checks whether a plugin, its names and its carriers implement these interfaces. Plugins for real
// networks implement none of them.
//
//	carrier.Plugin  ─► Clock
//	carrier.Names   ─► Scheduler, Faults
//	carrier.Carrier ─► Driver, Faults
package simhook
