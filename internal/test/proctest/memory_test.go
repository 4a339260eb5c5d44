//go:build linux

package proctest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
)

// small is the profile of a small process; docs/LIMITS.md has the same lines.
var small = hg.Config{
	NA:        hg.NetConfig{Budget: 4 << 20},
	MaxInput:  1 << 20,
	MaxOutput: 1 << 20,
	MaxLent:   4 << 20,
	MaxPulled: 4 << 20,
	MaxActive: 64,
}

const smallLimit = 48 << 20 // GOMEMLIMIT

func init() { roles["small"] = func() error { return serveTarget(small) } }

// TestSmallProfile checks that the profile that docs/LIMITS.md publishes is the one that
// TestLittleMemory uses.
func TestSmallProfile(t *testing.T) {
	source, err := os.ReadFile("memory_test.go")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(source), "\nvar small = ")
	profile, _, found := strings.Cut(after, "\n}\n")
	require.True(t, found)
	page, err := os.ReadFile("../../../docs/LIMITS.md")
	require.NoError(t, err)
	require.Contains(t, string(page), profile)
	require.Contains(t, string(page), fmt.Sprintf("GOMEMLIMIT=%dMiB", smallLimit>>20))
}

// peakMemory is the most memory that a process has had, in bytes.
func (p *process) peakMemory() (n int64) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	require.True(p.t, found)
	_, err = fmt.Sscan(rest, &n)
	require.NoError(p.t, err)
	return n << 10
}

// TestLittleMemory checks a target with the profile of a small process that gets more requests than
// it can accept at once, in bodies of up to a megabyte (F73), until 300 have been answered: its
// resident memory never exceeds 64 MiB, and every other call is refused because of one of these
// settings.
func TestLittleMemory(t *testing.T) {
	eachTransport(t, func(t *testing.T, tr transport) {
		const limit, flight = 64 << 20, 48
		enough := 300
		if raceflag.Enabled {
			enough = 30
		}
		p := startRole(t, "small", listenEnv+"="+tr.listenAddr(), fmt.Sprintf("GOMEMLIMIT=%d", smallLimit))
		o := openAt(t, tr.origin, hg.Config{}, nil)
		o.connect(p)
		o.watch(tr)
		body := make([]byte, 1<<20-16)
		fillPattern(body)
		before, ended, answered, again, wrong, open := p.peakMemory(), 0, 0, 0, 0, flight
		var next hg.ForwardFunc
		next = func(h *hg.Handle, err error) {
			ended++
			out, outErr := []byte(nil), error(nil)
			if err == nil {
				out, outErr = h.OutputRaw()
			}
			remote, _ := hg.RemoteOf(err)
			switch {
			case err == nil && outErr == nil && len(out) > 0 && bytes.Equal(out, body[:len(out)]):
				answered++
			case hg.CodeOf(err) == hg.ErrAgain, remote != nil && remote.Code == hg.ErrAgain:
				again++
			default:
				wrong++
				t.Log(err, outErr)
			}
			if answered >= enough || wrong > 0 {
				open--
				h.Close()
				return
			}
			require.NoError(t, h.ForwardRaw(body[:len(body)>>(ended%8)], next))
		}
		for range flight {
			require.NoError(t, o.newHandle("echo").ForwardRaw(body, next))
		}
		o.driveUntil(func() bool { return open == 0 })
		peak := p.peakMemory()
		t.Logf("%d calls, %d refused; %d bytes at most, %d before", ended, again, peak, before)
		require.Zero(t, wrong)
		require.Positive(t, again, "the target could have taken them all")
		if !raceflag.Enabled {
			require.Less(t, peak, int64(limit))
		}
	})
}
