// Package ledger holds the random tests of the whole stack over the simulator: programs of several nodes under random
// faults, and a ledger that says afterwards whether every promise was kept.
//
//	seed ─► faults, nodes, programs ─► world runs ─► calm ─► everything must end ─► audit of the ledger
//
// There are two kinds of program: scenarios do everything that the stack can, races do one thing, withdrawing requests while
// their handlers begin.
//
// The ledger knows every accepted operation by a token: how often its callback ran, how often its handler ran, what
// became of it, and which memory nobody may write any more.
package ledger
