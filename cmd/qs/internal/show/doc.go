// Package show prints text received from peers, which may contain anything, in such a way that a terminal displays it
// but does not interpret it.
//
//	names, errors, output of a peer ─► Text, Error, JSON ─► the terminal
//	advice of this program ─► Advise ─┘
package show
