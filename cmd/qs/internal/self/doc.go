// Package self runs this program in another process, as a target or a swarm for measurements.
//
//	Start ─► process ─ a line: word, address ─► Child      Stop: closes its standard input, and the process exits
package self
