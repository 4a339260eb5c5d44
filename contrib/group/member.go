package group

import (
	"slices"
	"strings"
)

// A State is a member's state as seen by one process.
type State uint8

const (
	// Alive means that the member answers probes.
	Alive State = iota
	// Suspected means that the member did not answer a probe by this process, neither directly nor through others. It
	// remains in views.
	Suspected
	// Failed means that the member was suspected for too long, by this process or another.
	Failed
	// Left means that the member announced that it was leaving.
	Left
)

// String returns the name of s.
func (s State) String() string { return [...]string{"alive", "suspected", "failed", "left"}[s&3] }

// A Member is one process of a group.
type Member struct {
	// Name is the member's name. It stays the same when the process restarts.
	Name string
	// Addr is the address of the member's Node.
	Addr string
	// Serves lists the services that the member provides.
	Serves []string
	// Meta is the member's Options.Meta. It is shared and must not be modified.
	Meta []byte
	// Incarnation distinguishes processes with the same name. A later process has a larger number.
	Incarnation uint64
	State       State
}

func (m *Member) isLive() bool { return m.State <= Suspected }

func (m *Member) isSame(o *Member) bool {
	return m.Incarnation == o.Incarnation && m.Addr == o.Addr && slices.Equal(m.Serves, o.Serves) && string(m.Meta) == string(o.Meta)
}

// A View is one process's immutable list of the current members, including suspected ones.
type View struct {
	// Epoch numbers the views of this process, starting at 1. The epochs of different processes are unrelated.
	Epoch uint64
	// Members is sorted by name. It must not be modified.
	Members []Member
}

// Find returns the member with the given name and reports whether there is one.
func (v *View) Find(name string) (Member, bool) {
	i, ok := v.findIndex(name)
	if !ok {
		return Member{}, false
	}
	return v.Members[i], true
}

// findIndex returns the index of the member with the given name, or the index at which it would be inserted.
func (v *View) findIndex(name string) (i int, found bool) {
	return slices.BinarySearchFunc(v.Members, name, func(m Member, name string) int { return strings.Compare(m.Name, name) })
}

// A Kind is the kind of an Event.
type Kind uint8

const (
	// Joined means that a previously unknown member has joined.
	Joined Kind = iota
	// Suspects means that the member may have failed.
	Suspects
	// Fails means that the member has failed. Calls to it have been ended.
	Fails
	// Leaves means that the member has left.
	Leaves
	// Back means that the member is alive again, as the same process or as another one with its name.
	Back
	// Changed means that the member's address, services or metadata have changed.
	Changed
)

// String returns the name of k.
func (k Kind) String() string {
	return [...]string{"joined", "suspected", "failed", "left", "back", "changed"}[k%6]
}

// An Event describes a change of one member.
type Event struct {
	Kind   Kind
	Member Member // the member after the change
	Epoch  uint64 // the epoch of the first view with the change
}
