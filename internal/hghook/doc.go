// Package hghook gives packages qs, bulk and qs/debug what package hg does for them beside its public methods.
//
//	package hg ── init ──► sets the variables
//	qs, bulk, qs/debug ──► hghook.FreeOutput(h) ──► the method of hg that no program sees
//
// Each hook is a variable of function type. Package hg sets all of them when it is initialized, and nothing changes them afterwards. This
// package is below hg and cannot name its types. A parameter of such a type is declared as any, and its comment names the type; a value of
// another type panics. These parameters are pointers, which an any holds without an allocation, except for the hg.RPC of RegisterRPC.
package hghook
