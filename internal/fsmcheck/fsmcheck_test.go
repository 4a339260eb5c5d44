package fsmcheck

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	shut State = iota
	open
)

const (
	push Event = iota
	pull
	paint
	burn
)

// door makes a machine that All does not return.
func door(t *testing.T) *Machine {
	before, found := machines, broken.Load()
	m := New("door", []string{"shut", "open"}, []string{"push", "pull", "paint", "burn"}, []Row{
		{On: push, In: []State{shut}, To: []State{open, shut}},
		{On: push, In: []State{open}, Refused: "ErrBusy"},
		{On: pull, In: []State{open}, To: []State{shut}},
		{On: paint, In: []State{shut, open}, Race: true},
	})
	machines = before
	t.Cleanup(func() { broken.Store(found) })
	return m
}

func TestLegalCellsAreCounted(t *testing.T) {
	m := door(t)
	var a, b Track
	for _, step := range []struct {
		at   *Track
		e    Event
		from State
		to   State
	}{{&a, push, shut, open}, {&a, paint, open, open}, {&b, push, shut, shut}, {&a, push, open, open}, {&a, pull, open, shut}} {
		step.at.Found(m, step.e, step.from)
		step.at.Moved(m, step.e, step.to)
	}
	require.Equal(t, []Cell{
		{Machine: "door", State: "shut", Event: "push", To: []string{"shut", "open"}, Reached: 2},
		{Machine: "door", State: "open", Event: "push", To: []string{"open"}, Refused: "ErrBusy", Reached: 1},
		{Machine: "door", State: "open", Event: "pull", To: []string{"shut"}, Reached: 1},
		{Machine: "door", State: "shut", Event: "paint", To: []string{"shut"}, Race: true},
		{Machine: "door", State: "open", Event: "paint", To: []string{"open"}, Race: true, Reached: 1},
	}, m.Cells())
	require.Equal(t, "door: open, pull", m.Cells()[2].String())
	require.Empty(t, Broken())
}

// What is wrong is named: machine, state and event.
func TestWrongStepsPanic(t *testing.T) {
	m := door(t)
	for want, step := range map[string]func(*Track){
		"states: door: shut: pull is illegal":                                 func(a *Track) { a.Found(m, pull, shut) },
		"states: door: shut: burn is illegal":                                 func(a *Track) { a.Found(m, burn, shut) },
		"states: door: open, before pull: it was shut, and no event says why": func(a *Track) { a.Found(m, pull, open) },
		"states: door: shut: paint leads to open, want shut":                  func(a *Track) { a.Moved(m, paint, open) },
		"states: door: shut: burn leads to shut, want no such event":          func(a *Track) { a.Moved(m, burn, shut) },
		"states: door: open: push leads to shut, want open":                   func(a *Track) { a.Moved(m, push, open); a.Moved(m, push, shut) },
		"states: door: open, before push: it was shut, and no event says why": func(a *Track) { a.Found(m, push, open) },
		"states: door: shut, before pull: it was open, and no event says why": func(a *Track) { a.Moved(m, push, open); a.Found(m, pull, shut) },
	} {
		broken.Store(nil)
		require.PanicsWithValue(t, want, func() { step(&Track{}) })
		require.Equal(t, want, Broken())
	}
	broken.Store(nil)
	require.Panics(t, func() {
		New("twice", []string{"on"}, []string{"off"}, []Row{{In: []State{0}}, {In: []State{0}}})
	})
	require.Empty(t, Broken(), "a table that cannot be is found when its package begins")
}
