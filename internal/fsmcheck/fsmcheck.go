package fsmcheck

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// A State is a state of a machine. Every object starts in state 0.
type State uint8

// A Machine is a table of states and the legal transitions between them.
type Machine struct {
	name   string
	states []string
	steps  []step // indexed by the old state and the new state
}

type step struct {
	legal   bool
	reached atomic.Int64
}

var (
	isChecking     atomic.Bool
	firstViolation atomic.Pointer[string] // text of the first illegal transition
	machines       []*Machine             // in order of creation
)

// Check permanently enables checking. It must be called before any checked object is created.
func Check() { isChecking.Store(true) }

// Broken returns the text of the first illegal transition, or "". The text is kept because user
// code may have recovered from the panic.
func Broken() string {
	if s := firstViolation.Load(); s != nil {
		return *s
	}
	return ""
}

// All returns all machines. The caller must not modify the slice.
func All() []*Machine { return machines }

// New creates a machine and adds it to those returned by All. New must be called only during
// package initialization. next lists, for each state, the states that may follow it.
func New(name string, states []string, next [][]State) *Machine {
	m := &Machine{name: name, states: states, steps: make([]step, len(states)*len(states))}
	for from, all := range next {
		for _, to := range all {
			m.stepAt(State(from), to).legal = true
		}
	}
	machines = append(machines, m)
	return m
}

func (m *Machine) stepAt(from, to State) *step { return &m.steps[int(from)*len(m.states)+int(to)] }

// Name returns the machine's name.
func (m *Machine) Name() string { return m.name }

// State returns the name of state s.
func (m *Machine) State(s State) string { return m.states[s] }

// States returns the names of m's states.
func (m *Machine) States() []string { return slices.Clone(m.states) }

// Move counts a transition, and panics if it is illegal. It does nothing unless checking is
// enabled.
func (m *Machine) Move(from, to State) {
	if isChecking.Load() {
		m.checkStep(from, to)
	}
}

func (m *Machine) checkStep(from, to State) {
	s := m.stepAt(from, to)
	if !s.legal {
		text := fmt.Sprintf("states: %s: %s does not follow %s", m.name, m.states[to], m.states[from])
		firstViolation.CompareAndSwap(nil, &text)
		panic(text)
	}
	s.reached.Add(1)
}

// A Step is a legal transition of a machine.
type Step struct {
	Machine, From, To string
	Reached           int64 // number of times that it was made
}

// String returns a description such as "call: idle to waiting".
func (s Step) String() string { return s.Machine + ": " + s.From + " to " + s.To }

// Steps returns the legal transitions of m, ordered by the old state and then the new state.
func (m *Machine) Steps() []Step {
	var list []Step
	for i := range m.steps {
		if s := &m.steps[i]; s.legal {
			list = append(list, Step{m.name, m.states[i/len(m.states)], m.states[i%len(m.states)], s.reached.Load()})
		}
	}
	return list
}
