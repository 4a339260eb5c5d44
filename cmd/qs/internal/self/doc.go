// Package self runs this program in another process, as a target or a swarm for measurements. The
// process prints a line when it is ready, and exits when its standard input is closed.
package self
