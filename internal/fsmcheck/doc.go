// Package fsmcheck checks that objects change their state only as the tables of their state
// machines allow, and counts the steps taken.
//
//	lock ─► … an event … ─► Move: may this state follow that one? count the step, write the state ─► unlock
//
// The state of an object is one field, which one function writes. So the steps that are drawn and
// counted are those of the code.
//
// Checking is off in programs and costs a branch for each step then. Tests turn it on, by package
// internal/leak.
package fsmcheck
