package rendezvous

// StartIn is Start with an environment of its own.
var StartIn = start
