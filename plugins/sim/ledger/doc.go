// Package ledger holds the random tests of the whole stack over the simulator: programs of several nodes under random
// faults, and a ledger that says afterwards whether every promise was kept.
//
//	seed ─► options: faults, nodes, acts ─► safety: world and programs run ─► calm ─► liveness: everything ends within 30 s,
//	                                                                   each node reaches each ─► audit of the ledger
//
// There are three kinds of program: scenarios do everything that the stack can, races do one thing, withdrawing requests while
// their handlers begin, and streamWorlds cross the streams of package na's calls with everything else there.
//
// Beside the random programs there are three families: TestEveryOrder searches the orders of events of one call and one deed,
// the tests of posts fail every post of a call in turn, and a seed that has failed becomes a case of its own, shrunk.
//
// A scenario begins calls, responses, transfers, lookups and withdraws, and cancels, abandons, closes and answers what there is: between
// two events that hooks of the world name, at the very time of a deadline, inside callbacks and handlers. It takes memory back
// while it is being moved, crashes nodes and closes classes, which begin again under their names.
//
// The ledger knows every accepted operation by a token: how often its callback ran, how often its handler ran, what
// became of it, and which memory nobody may write any more.
package ledger
