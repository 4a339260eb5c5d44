// Package kernel holds tests against real processes and the real kernel: targets that are stopped, continued and
// killed. Each test starts its own child processes (the test binary again, as a target), ends them by id, and is bounded
// in time.
//
//	test (origin) ── tcp ──► child (target or owner of memory)
//	      └── SIGSTOP, SIGCONT, SIGKILL ──┘
package kernel
