// Package hghook lets packages qs, bulk and qs/debug call functions of package hg that are not part
// of its public API.
//
//	package hg ── init ──► sets the variables
//	qs, bulk, qs/debug ──► hghook.FreeOutput(h) ──► an unexported function of hg
//
// Each hook is a variable of function type. Package hg sets all of them during initialization, and
// they do not change afterward. This package is imported by hg and cannot name hg's types. A
// parameter of such a type is declared as any, and its comment names the actual type; passing a
// value of another type panics. These parameters are pointers, which convert to any without an
// allocation, except for the hg.RPC of RegisterRPC.
package hghook
