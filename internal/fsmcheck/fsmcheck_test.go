package fsmcheck

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	shut State = iota
	ajar
	open
)

// newTestMachine makes a machine that All does not return.
func newTestMachine(t *testing.T) *Machine {
	before, found := machines, firstViolation.Load()
	m := New("door", []string{"shut", "ajar", "open"}, [][]State{shut: {ajar, open}, ajar: {ajar, open}, open: {shut}})
	machines = before
	firstViolation.Store(nil)
	t.Cleanup(func() { firstViolation.Store(found) })
	return m
}

func TestLegalStepsAreCounted(t *testing.T) {
	m := newTestMachine(t)
	for _, step := range [][2]State{{shut, open}, {open, shut}, {shut, open}, {shut, ajar}, {ajar, ajar}} {
		m.Move(step[0], step[1])
	}
	require.Equal(t, []Step{
		{"door", "shut", "ajar", 1}, {"door", "shut", "open", 2}, {"door", "ajar", "ajar", 1}, {"door", "ajar", "open", 0}, {"door", "open", "shut", 1},
	}, m.Steps())
	require.Equal(t, "door: open to shut", m.Steps()[4].String())
	require.Equal(t, "ajar", m.State(ajar))
	require.Equal(t, []string{"shut", "ajar", "open"}, m.States())
	require.Empty(t, Broken())
}

// TestWrongStepsPanic checks that the panic names the machine and both states. Broken returns the
// first.
func TestWrongStepsPanic(t *testing.T) {
	m := newTestMachine(t)
	const first = "states: door: ajar does not follow open"
	require.PanicsWithValue(t, first, func() { m.Move(open, ajar) })
	require.PanicsWithValue(t, "states: door: shut does not follow ajar", func() { m.Move(ajar, shut) })
	require.PanicsWithValue(t, "states: door: shut does not follow shut", func() { m.Move(shut, shut) })
	require.Equal(t, first, Broken())
	for _, s := range m.Steps() {
		require.Zero(t, s.Reached, "%s", s)
	}
}

// TestUnchecked checks that programs do not check the tables.
func TestUnchecked(t *testing.T) {
	m := newTestMachine(t)
	isChecking.Store(false)
	defer isChecking.Store(true)
	m.Move(open, ajar)
	m.Move(open, shut)
	require.Empty(t, Broken())
	require.Zero(t, m.Steps()[4].Reached)
}
