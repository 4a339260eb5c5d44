// Package simtest is a service together with its test in a simulated network. The service is a counter that must count
// each request exactly once, although requests and answers are lost and the network is partitioned.
//
//	client ── Add{ID, N} ──► server: has it seen ID? then the answer of before ──► client
//	   └──── no answer in time: the same ID again ────┘
//
// The service does not depend on the simulator. The test opens its nodes with the plugin of a simulated world. A seed
// determines which faults occur and when; the same seed reproduces the same run. To see a failure, delete the line that
// looks up the ID.
//
// The package also contains a queue whose handlers wait for jobs that a goroutine adds. Its means of waiting works both
// inside and outside a simulated world.
package simtest
