// Package hghook gives packages qs, bulk and qs/debug what package hg does for them beside its public methods.
//
//	package hg ── init ──► sets the variables
//	qs, bulk, qs/debug ──► hghook.FreeOutput(h) ──► the method of hg that no program sees
//
// Each hook is a variable of function type. Whoever imports package hg finds them set; nothing changes them afterwards. This package is
// below hg and cannot name its types: where a parameter is of one of them it is an any, its comment says of which, and any other panics. All of
// these are pointers, which an any holds without an allocation, but for the RPC of RegisterRPC.
package hghook
