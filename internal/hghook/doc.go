// Package hghook lets packages qs, bulk and qs/debug call functions of package hg that are not part
// of its public API.
//
//	package hg ── init ──► sets the variables
//	qs, bulk, qs/debug ──► hghook.FreeOutput(h) ──► an unexported function of hg
//
// Each hook is a variable of function type. Package hg sets all of them when it is initialized, and
// they do not change afterwards. This package is below hg and cannot name its types: a parameter of
// such a type is declared as any, its comment names the type, and a value of another type panics.
// These parameters are pointers, which an any holds without an allocation, except for the hg.RPC of
// RegisterRPC.
package hghook
