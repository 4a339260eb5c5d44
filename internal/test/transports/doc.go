// Package transports runs the same test over every transport.
//
//	transports.Each(t, func(t *testing.T, n *transports.Net) {
//		target, origin := n.Target(hg.Config{}), n.Origin(hg.Config{})
//		...
//		n.Until(func() bool { return done }) // drives every context that was made, in one goroutine
//	})
//
// Everything that a Net opened is shut down when the test ends.
package transports
