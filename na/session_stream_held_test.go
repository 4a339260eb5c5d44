package na

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// TestHeldNotNamedOnceStreamsOpen checks that the error at its deadline of a call whose streams the
// target has opened, and which so is in its handler, does not name the limits that requests of the
// process wait for there.
func TestHeldNotNamedOnceStreamsOpen(t *testing.T) {
	for _, up := range []bool{true, false} {
		s := &Stream{own: true, up: up, sent: up}
		l := &session{state: stateUp, activeState: &activeState{}}
		l.heldBack.by = heldby.State{Reason: heldby.Authorizer}
		o := &Op{kind: kindCall, endpointState: endpointState{id: 1, session: l, x: &opExtra{streams: []*Stream{s}}}}
		require.NotEqual(t, ErrTimeout, o.deadlineError(), "no stream is open")
		s.out.limit, s.in.most = firstWindow, 1
		require.Equal(t, ErrTimeout, o.deadlineError())
	}
}
