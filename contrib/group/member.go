package group

import (
	"slices"
	"strings"
)

// A State is the state of a member in the view of a process.
type State uint8

const (
	// Alive is a member that answers.
	Alive State = iota
	// Suspected is a member that did not answer a probe of this process, neither directly nor through others. It is still in views.
	Suspected
	// Failed is a member that was suspected for too long, by this process or another.
	Failed
	// Left is a member that announced that it leaves.
	Left
)

// String returns the name of s.
func (s State) String() string { return [...]string{"alive", "suspected", "failed", "left"}[s&3] }

// A Member is one process of a group.
type Member struct {
	// Name is the same after a restart.
	Name string
	// Addr is the address of its Node.
	Addr string
	// Serves are the services that it has.
	Serves []string
	// Meta is Options.Meta of the member. It is shared: do not change it.
	Meta []byte
	// Incarnation distinguishes the processes of one name: a later one has a larger number.
	Incarnation uint64
	State       State
}

func (m *Member) isLive() bool { return m.State <= Suspected }

func (m *Member) isSame(o *Member) bool {
	return m.Incarnation == o.Incarnation && m.Addr == o.Addr && slices.Equal(m.Serves, o.Serves) && string(m.Meta) == string(o.Meta)
}

// A View is the current members, suspected ones included, in the view of one process. It does not change.
type View struct {
	// Epoch counts the views of this process, from 1. The epochs of two processes are unrelated.
	Epoch uint64
	// Members are sorted by name. Do not change them.
	Members []Member
}

// Find returns the member of a name.
func (v *View) Find(name string) (Member, bool) {
	i, ok := v.findIndex(name)
	if !ok {
		return Member{}, false
	}
	return v.Members[i], true
}

// findIndex returns the index of the member of a name, or the index at which it would be inserted.
func (v *View) findIndex(name string) (i int, found bool) {
	return slices.BinarySearchFunc(v.Members, name, func(m Member, name string) int { return strings.Compare(m.Name, name) })
}

// A Kind is the kind of an Event.
type Kind uint8

const (
	// Joined: a member that was not known.
	Joined Kind = iota
	// Suspects: it may have failed.
	Suspects
	// Fails: it has failed. Calls to it have been ended.
	Fails
	// Leaves: it has left.
	Leaves
	// Back: it is alive again, as the same process or as another of its name.
	Back
	// Changed: its address, services or meta have changed.
	Changed
)

// String returns the name of k.
func (k Kind) String() string {
	return [...]string{"joined", "suspected", "failed", "left", "back", "changed"}[k%6]
}

// An Event is a change of one member.
type Event struct {
	Kind   Kind
	Member Member // the member after the change
	Epoch  uint64 // the epoch of the first view with the change
}
