// Package self starts this program again, as another process: targets and swarms of measurements.
//
//	Start ─► process ─ a line: word, address ─► Child      Stop: its standard input ends, and so does it
package self
