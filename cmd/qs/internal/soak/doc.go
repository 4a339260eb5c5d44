// Package soak implements the processes and the faults of "qs soak". The calls and the audit are in
// package ledger.
//
// Run starts several targets and origins, each in its own process, except the first origin, which
// runs in this process. The origins call the targets, through relays if the transport is tcp.
// Meanwhile Run applies faults. It kills, stops and restarts targets and origins, except the first
// of each, and it resets and stalls the connections of relays.
//
// Each target and origin records its calls in a log file, called a book, which survives if the
// process is killed. After all processes have exited, the audit checks the books.
package soak
