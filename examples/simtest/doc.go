// Package simtest is a service with its test in a simulated network: a counter that must count each request once, although requests
// and answers are lost and the network falls apart.
//
//	client ── Add{ID, N} ──► server: has it seen ID? then the answer of before ──► client
//	   └──── no answer in time: the same ID again ────┘
//
// The service knows nothing of the simulator. The test opens its nodes with the plugin of a world, and a seed decides what goes
// wrong and when; the same seed does the same again. Break it and see: delete the line that looks for the ID.
//
// Beside it is a queue whose handlers wait for jobs that a goroutine adds: what it waits with works in a world and outside.
package simtest
