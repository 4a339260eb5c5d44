// Package turns lets goroutines that wait for callbacks take turns at running them.
//
//	Wait ─ nobody leads ─► leads: gather ─► Progress ─► Trigger, one by one ─► wakes those whose end has come ─┐
//	  │                       ▲ ▲─────────────────────────────────────────────────────────────────────────────┘
//	  │ somebody leads        │ its own end: the lead goes to one that sleeps
//	  └─► sleeps ─────────────┘ or returns, at its own end
//
// At most one goroutine leads at a time, and if any sleeps, one leads. A goroutine that does not lead neither drives nor
// sends: it sleeps at once. The conditions of those that sleep are looked at by the one that leads.
//
// What those that are woken send is gathered where the Driver is a Batcher: the leader holds frames back until they have come
// home to wait again, and sends them by one write.
//
// It runs no goroutine, but the functions of a timer and of contexts that end.
package turns
