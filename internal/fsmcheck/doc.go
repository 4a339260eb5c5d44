// Package fsmcheck checks that things move only as the tables of their machines say, and counts which steps were taken.
//
//	lock ─► … what happens … ─► Move: may this state follow that one? count the step, write the state ─► unlock
//
// The state of a thing is one field, which the code goes by, with one function that writes it. So what is drawn and counted is what the
// code does.
//
// Checking is off in programs and costs a branch for each step then. Tests turn it on, by package internal/leak.
package fsmcheck
