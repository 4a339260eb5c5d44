// Package proctest holds tests against real processes and the real kernel: targets and origins that
// are stopped, continued, killed and started again. Each test starts its own child processes (the
// test binary again, in a role), ends them by id, and is bounded in time.
//
//	test (origin) ── ──► child (target or owner of memory)        test (target) ◄── ── child (origin)
//	      └── SIGSTOP, SIGCONT, SIGKILL ──┘ └── ► another child, the bystander, which must not be affected
//
// The tests of faults run over each row of transports. Its folder netns has a network that
// misbehaves.
//
//	go test ./internal/proctest -run TestManyRestarts -proctest.restarts=1000
//	go test ./internal/proctest -run 'TestKilled(Owner|Puller)' -proctest.size=1073741824
package proctest
