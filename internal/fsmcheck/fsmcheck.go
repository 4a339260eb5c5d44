package fsmcheck

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// A State is a state of a machine. Zero is the first one of every object.
type State uint8

// A Machine is a table of states and of the legal steps between them.
type Machine struct {
	name   string
	states []string
	steps  []step // by the state before and the one after
}

type step struct {
	legal   bool
	reached atomic.Int64
}

var (
	isChecking     atomic.Bool
	firstViolation atomic.Pointer[string] // the text of the first illegal step
	machines       []*Machine             // in the order in which packages made them
)

// Check turns checking on, for good. It must be called before any object that is checked is made.
func Check() { isChecking.Store(true) }

// Broken returns the text of the first illegal step, or "". It is kept because user code may have
// recovered from the panic.
func Broken() string {
	if s := firstViolation.Load(); s != nil {
		return *s
	}
	return ""
}

// All returns every machine. The caller must not change it.
func All() []*Machine { return machines }

// New makes a machine that All returns; only the initialization of packages calls it. next holds
// for each state those that may follow.
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

// Name returns the name of m.
func (m *Machine) Name() string { return m.name }

// State returns the name of s.
func (m *Machine) State(s State) string { return m.states[s] }

// States returns the names of the states of m.
func (m *Machine) States() []string { return slices.Clone(m.states) }

// Move counts a step, and panics unless it is legal. It does nothing unless checking is on.
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

// A Step is a legal step of a machine.
type Step struct {
	Machine, From, To string
	Reached           int64 // how often it was taken
}

// String returns for example "call: idle to waiting".
func (s Step) String() string { return s.Machine + ": " + s.From + " to " + s.To }

// Steps returns the legal steps of m, ordered by the state before and the one after.
func (m *Machine) Steps() []Step {
	var list []Step
	for i := range m.steps {
		if s := &m.steps[i]; s.legal {
			list = append(list, Step{m.name, m.states[i/len(m.states)], m.states[i%len(m.states)], s.reached.Load()})
		}
	}
	return list
}
