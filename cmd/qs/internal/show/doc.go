// Package show prints texts of peers, which may hold anything, so that a terminal shows them and obeys none of them.
//
//	names, errors, output of a peer ─► Text, Error, JSON ─► the terminal
//	advice of this program ─► Advise ─┘
package show
