// Package fsmcheck verifies that objects change their state only as their state machine's table
// allows, and counts the transitions.
//
//	lock ─► … an event … ─► Move: may this state follow that one? count the step, write the state ─► unlock
//
// The state of an object is a single field, written by a single function. The transitions checked
// and counted are therefore the ones that the code makes.
//
// Checking is disabled by default and then costs one branch for each transition. Tests enable it
// through package internal/leak.
package fsmcheck
