// Package simhook defines the parts of package na that a simulator replaces: the clock, the random
// source, the goroutines, how a context waits, and which operations fail when started. Package na
// checks whether a plugin, its names and its carriers implement these interfaces. Plugins for real
// networks implement none of them.
//
// A carrier.Plugin may implement Clock, its carrier.Names may implement Scheduler and Faults, and
// its carrier.Carriers may implement Driver and Faults.
package simhook
