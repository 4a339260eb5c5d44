package fsmcheck

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// A State is one of a machine. Zero is where everything begins.
type State uint8

// An Event is what can happen to a thing.
type Event uint8

// A Row says what an event does in some states.
type Row struct {
	On      Event
	In      []State
	To      []State // what may come of it; none: the state stays
	Refused string  // the code of the error with which it is refused; the state stays
	Race    bool    // it takes two goroutines in Trigger at a time to come there
}

// A Machine is a table of states and events. A cell that no row names is illegal.
type Machine struct {
	name   string
	states []string
	events []string
	cells  []cell // states for each event
}

type cell struct {
	to      uint32 // the states that may follow, a bit for each; 0: illegal
	refused string
	race    bool
	reached atomic.Int64
}

var (
	checking atomic.Bool
	broken   atomic.Pointer[string] // what was found first
	machines []*Machine             // in the order in which packages made them
)

// Check turns checking on, for good. It must come before anything that is checked is made.
func Check() { checking.Store(true) }

// Checking reports whether it is on.
func Checking() bool { return checking.Load() }

// Broken returns what was found first, or "". User code may have caught the panic that said so.
func Broken() string {
	if s := broken.Load(); s != nil {
		return *s
	}
	return ""
}

// All returns every machine. The caller must not change it.
func All() []*Machine { return machines }

// New makes a machine that All returns; only the initialization of packages calls it. A table that names a cell twice
// panics.
func New(name string, states, events []string, table []Row) *Machine {
	m := &Machine{name: name, states: states, events: events, cells: make([]cell, len(states)*len(events))}
	for _, row := range table {
		for _, in := range row.In {
			c := m.cell(in, row.On)
			if c.to != 0 {
				panic(fmt.Sprintf("states: the table of %s has %s, %s twice", name, states[in], events[row.On]))
			}
			c.refused, c.race = row.Refused, row.Race
			for _, to := range row.To {
				c.to |= 1 << to
			}
			if len(row.To) == 0 {
				c.to = 1 << in
			}
		}
	}
	machines = append(machines, m)
	return m
}

func (m *Machine) cell(s State, e Event) *cell { return &m.cells[int(e)*len(m.states)+int(s)] }

// Name returns the name of m.
func (m *Machine) Name() string { return m.name }

// A Track follows one thing through its machine. What guards the thing guards it.
type Track struct{ at State }

// Found panics unless the thing is where the last event left it, and e is legal there.
func (t *Track) Found(m *Machine, e Event, now State) {
	if now != t.at {
		m.fail("%s, before %s: it was %s, and no event says why", m.states[now], m.events[e], m.states[t.at])
	}
	if m.cell(now, e).to == 0 {
		m.fail("%s: %s is illegal", m.states[now], m.events[e])
	}
}

// Moved counts the cell, and panics unless it allows the state that came of e.
func (t *Track) Moved(m *Machine, e Event, now State) {
	c := m.cell(t.at, e)
	if c.to&(1<<now) == 0 {
		m.fail("%s: %s leads to %s, want %s", m.states[t.at], m.events[e], m.states[now], m.names(c.to))
	}
	c.reached.Add(1)
	t.at = now
}

func (m *Machine) fail(format string, args ...any) {
	s := "states: " + m.name + ": " + fmt.Sprintf(format, args...)
	broken.CompareAndSwap(nil, &s)
	panic(s)
}

// names returns those of a set.
func (m *Machine) names(set uint32) string {
	var list []string
	for s, name := range m.states {
		if set&(1<<s) != 0 {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		return "no such event"
	}
	return strings.Join(list, ", ")
}

// A Cell is one that is not illegal.
type Cell struct {
	Machine, State, Event string
	To                    []string // what may follow
	Refused               string   // see Row
	Race                  bool     // see Row
	Reached               int64    // how often it was reached
}

// String returns for example "call: idle, forward".
func (c Cell) String() string { return c.Machine + ": " + c.State + ", " + c.Event }

// Cells returns those of m, by event and state.
func (m *Machine) Cells() []Cell {
	var list []Cell
	for i := range m.cells {
		c := &m.cells[i]
		if c.to == 0 {
			continue
		}
		list = append(list, Cell{Machine: m.name, State: m.states[i%len(m.states)], Event: m.events[i/len(m.states)],
			To: strings.Split(m.names(c.to), ", "), Refused: c.refused, Race: c.race, Reached: c.reached.Load()})
	}
	return list
}

// States returns the names of the states of m.
func (m *Machine) States() []string { return slices.Clone(m.states) }

// Phases makes a machine of a thing whose state is written, by one function: the rows of its table are the states that may follow each.
func Phases(name string, states []string, next [][]State) *Machine {
	var table []Row
	for from, all := range next {
		for _, to := range all {
			table = append(table, Row{On: Event(to), In: []State{State(from)}, To: []State{to}})
		}
	}
	return New(name, states, states, table)
}

// Move counts a step of a thing of Phases, and panics unless that is legal. It does nothing unless Checking.
func (m *Machine) Move(from, to State) {
	if !checking.Load() {
		return
	}
	c := m.cell(from, Event(to))
	if c.to == 0 {
		m.fail("%s: %s does not follow", m.states[from], m.states[to])
	}
	c.reached.Add(1)
}
