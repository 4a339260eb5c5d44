// Package self runs this program in another process, as a target or a swarm for measurements.
//
//	Start ─► process ─ a line: word, address ─► Child      Stop: its standard input ends, and so does it
package self
