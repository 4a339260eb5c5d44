package group

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
)

// An ignoringDelegate is a memberlist.AliveDelegate that takes no notice of a member.
type ignoringDelegate struct {
	*gossip
	name string
}

func (r ignoringDelegate) NotifyAlive(n *memberlist.Node) error {
	if strings.HasPrefix(n.Name, r.name+"#") {
		return errors.New("it does not know it")
	}
	return r.gossip.NotifyAlive(n)
}

// TestLeaveIsForwarded checks that a member that does not know the leaving member gets its departure
// from others as a leave, not as a failure.
func TestLeaveIsForwarded(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	seed := ""
	open := func(name string) (*gossip, chan Member) {
		s := newGossip(&Options{Name: name, Addr: "tcp://" + name, Gossip: "127.0.0.1:0", Probe: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, 1)
		var err error
		s.encoded, err = s.card.marshal()
		require.NoError(t, err)
		cfg, err := s.newConfig()
		require.NoError(t, err)
		if name == "leaver" {
			cfg.Alive = ignoringDelegate{s, "stranger"}
		}
		cfg.SuspicionMult = 100 // a process that gets no processor time for a while is not a failed one
		s.list, err = memberlist.Create(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		said := make(chan Member, 1000)
		require.NoError(t, s.Watch(func(m Member) { said <- m }))
		if seed != "" {
			s.options.Seeds = []string{seed}
			require.NoError(t, s.joinGroup(ctx, nil))
		}
		seed = s.list.LocalNode().Address()
		return s, said
	}
	waitForState := func(said chan Member, name string, want ...State) State {
		for {
			select {
			case m := <-said:
				for _, w := range want {
					if m.Name == name && m.State == w {
						return w
					}
				}
			case <-ctx.Done():
				t.Fatalf("%s is not %v", name, want)
			}
		}
	}
	leaver, known := open("leaver")
	_, between := open("between")
	_, unknown := open("stranger")
	waitForState(between, "leaver", Alive)
	waitForState(between, "stranger", Alive)
	waitForState(unknown, "leaver", Alive)
	waitForState(known, "between", Alive)
	require.Equal(t, 2, leaver.countMembers(), "its view has itself and one other")
	require.NoError(t, leaver.Leave(ctx))
	require.Equal(t, Left, waitForState(unknown, "leaver", Left, Failed))
}
