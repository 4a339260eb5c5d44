// Package ledger contains the random tests of the entire stack on the simulator: programs on
// several nodes that run under random faults, and a ledger that determines afterward whether every
// promise was kept.
//
//	seed ─► options: faults, nodes, acts ─► safety: world and programs run ─► calm ─► liveness: everything ends within 30 s,
//	                                                                   each node reaches the others ─► audit of the ledger
//
// There are three kinds of programs. Scenarios use everything that the stack offers. Races do a
// single thing: they withdraw requests while the handlers of those requests begin. StreamWorlds
// combine the streams of package na's calls with everything else.
//
// In addition to the random programs there are three families of tests: TestEveryOrder searches all
// orders of events of one call and one other action, the tests of posts make every post of a call
// fail in turn, and a seed that has failed becomes a test case of its own after shrinking.
//
// A scenario begins calls, responses, transfers, lookups and withdraws, and it cancels, abandons,
// closes and responds to existing operations. It does so between two events chosen by hooks of the
// world, exactly when a deadline expires, and inside callbacks and handlers. It revokes memory
// while that memory is being transferred, crashes nodes, and closes classes, which then start again
// under their old names.
//
// The ledger identifies every accepted operation by a token. It records how often the operation's
// callback and handler ran, the operation's outcome, and which memory must no longer be written.
package ledger
