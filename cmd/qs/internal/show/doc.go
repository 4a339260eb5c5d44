// Package show prints text received from peers. Such text may contain anything, including control sequences. It is
// escaped, so that a terminal displays it but does not interpret it. Lines added by this program with Advise remain
// separate lines.
package show
