package main

import "testing"

// TestSharedMemory: the commands, with targets that are reached through shared memory.
func TestSharedMemory(t *testing.T) { commandsOver(t, "sm", "sm://*", "sm://NAME") }

// TestSoakSharedMemory is TestSoak with the faults that processes have.
func TestSoakSharedMemory(t *testing.T) {
	t.Parallel()
	runSoakOver(t, "sm", "kill", "stop")
}
