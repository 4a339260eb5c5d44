package sm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// countMappings counts the shared memory that this process holds, and its descriptors.
func countMappings(t *testing.T) (maps, fds int) {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return strings.Count(string(b), "memfd:quicksilver"), len(all)
}

// An exitTest ends children and checks the others.
type exitTest struct {
	*parent
	by     *load // calls to a bystander, which must not be affected
	maps   int
	fds    int
	notice []time.Duration
}

func newExitTest(t *testing.T) *exitTest {
	f := &exitTest{parent: newParent(t, 0)}
	p := f.start("target")
	f.by = newLoad(f.hctx, p.addr, 3)
	f.until("the bystander answers", func() bool { return f.by.right > 30 })
	f.maps, f.fds = countMappings(t)
	t.Cleanup(func() {
		f.by.stop = true
		f.until("the bystander is left alone", func() bool { return f.by.flying == 0 })
		require.NoError(t, f.by.failed)
		f.by.close()
		p.kill()
		p.waitExited()
	})
	return f
}

// requireReleased waits until everything of an exited child is released, and nothing else.
func (f *exitTest) requireReleased(p *process, l *load) {
	f.t.Helper()
	if l != nil {
		f.until("every call to the dead ends", func() bool { return l.flying == 0 })
		if !errors.Is(l.failed, hg.ErrUnreachable) { // it exited before its hello, or had answered all, and the next call was too late
			require.ErrorIs(f.t, l.failed, hg.ErrPeerLost)
		}
	}
	f.until("its session ends", func() bool { return f.hctx.Stats().NA.Peers == 1 })
	ended := time.Now()
	f.notice = append(f.notice, max(0, ended.Sub(p.waitExited())))
	if l != nil {
		l.close()
	}
	good := f.by.right
	f.until("the bystander answers", func() bool { return f.by.right > good+3 })
	require.NoError(f.t, f.by.failed)
	f.until("its memory and descriptors are given back", func() bool {
		maps, fds := countMappings(f.t)
		return maps <= f.maps && fds <= f.fds
	})
}

// child starts a child in a role and waits until it is at work.
func (f *exitTest) child(role string, env ...string) (*process, *load) {
	f.t.Helper()
	if role == "origin" {
		was := f.serve
		p := f.start(role, env...)
		if len(env) == 0 {
			f.until("the child calls", func() bool { return f.serve > was+20 })
		}
		return p, nil
	}
	p := f.start(role, env...)
	l := newLoad(f.hctx, p.addr, 8)
	require.NoError(f.t, l.failed)
	if len(env) == 0 {
		f.until("the child answers", func() bool { return l.right > 20 })
	}
	return p, l
}

// TestExitAtEachPoint ends a process at each point of the use of the rings, as a target and as an
// origin. Its peers get a fault; answers are those of their requests; nothing is left, and no other
// process is affected.
func TestExitAtEachPoint(t *testing.T) {
	f := newExitTest(t)
	for point := range ring.Points {
		if point == ring.Wait { // no process is so far behind
			continue
		}
		for _, role := range []string{"target", "origin"} {
			for _, times := range []int{1, 40} {
				if point == ring.Arm {
					times = min(times, 3) // it hardly blocks
				}
				p, l := f.child(role, fmt.Sprintf("%s=%d %d", dieEnv, point, times))
				f.until(fmt.Sprintf("an %s dies at point %d", role, point), p.hasExited)
				f.requireReleased(p, l)
			}
		}
	}
	t.Logf("detected within %v", slices.Max(f.notice))
}

// TestKillAtRandom kills processes at any moment.
func TestKillAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	f := newExitTest(t)
	kills := long.Or(50, 2000)
	if raceflag.Enabled && !long.On { // a process of the race detector takes as long to start as ten others
		kills = 16
	}
	for i := range kills {
		p, l := f.child([]string{"target", "origin"}[i%2])
		for n := rng.IntN(200); n > 0; n-- {
			f.hctx.Trigger(0)
			_ = f.hctx.Progress(0)
		}
		p.kill()
		f.requireReleased(p, l)
	}
	slices.Sort(f.notice)
	t.Logf("%d exits, detected within %v, the longest after %v", kills, f.notice[len(f.notice)*99/100], f.notice[len(f.notice)-1])
	if long.On {
		require.Less(t, f.notice[len(f.notice)*99/100], 100*time.Millisecond)
		require.Less(t, f.notice[len(f.notice)-1], time.Second)
	}
	left, err := os.ReadDir(f.dir)
	require.NoError(t, err)
	require.LessOrEqual(t, len(left), 2*(3+1), "names: our own, the bystander's, and what the last that was killed left")
}
