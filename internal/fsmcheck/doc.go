// Package fsmcheck checks that things move only as the tables of their machines say, and counts which cells were reached.
//
//	event ─► lock ─► Found: is it in the state in which the last event left it?
//	                 … what the event does …
//	                 Moved: does the table allow this state after that one? count the cell ─► unlock
//
// The state of a thing is never stored for this: a function derives it from the fields that decide what the thing does.
// So what is drawn and counted is what the code does, and a change that no event accounts for is found by the next event.
//
// Checking is off in programs and costs two branches for each event then. Tests turn it on, by package internal/leak.
package fsmcheck
