//go:build unix

package yokan_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
)

// A serviceLog is what a service prints.
type serviceLog struct {
	more chan struct{} // has room for one

	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *serviceLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.buf.Write(b)
}

func (l *serviceLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// bedrock configures a provider of Yokan with a database in memory. Its own RPCs are at provider 0.
const bedrock = `{
	"libraries": ["libyokan-bedrock-module.so"],
	"providers": [{"name": "db", "type": "yokan", "provider_id": 42, "config": {"database": {"type": "map"}}}]
}`

var running = regexp.MustCompile(`running at (ofi\+tcp://\S+)`)

// startBedrock starts C's service, if it is in PATH with its module of Yokan in LD_LIBRARY_PATH, and returns its
// address.
func startBedrock(t *testing.T) string {
	program, err := exec.LookPath("bedrock")
	if err != nil {
		t.Skip("bedrock, a program of Mochi, is not in PATH")
	}
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(bedrock), 0o644))
	cmd := exec.Command(program, "ofi+tcp://127.0.0.1:0", "-c", config)
	out := &serviceLog{more: make(chan struct{}, 1)}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out)
		}
	})
	for ctx := testContext(t); ; {
		select {
		case <-out.more:
		case <-ctx.Done():
			t.Fatal("bedrock does not run")
		}
		if m := running.FindStringSubmatch(out.String()); m != nil {
			return m[1]
		}
	}
}

// TestLive calls a real service: every operation, NULL origins with each of them, and 10,001 segments of memory in
// one put.
func TestLive(t *testing.T) {
	addr := startBedrock(t)
	db, err := yokan.Open(testContext(t), openNode(t), addr, 42, yokan.Config{})
	require.NoError(t, err)
	for name, mode := range ways {
		t.Run(name, func(t *testing.T) { testOperations(t, db, mode) })
	}
	t.Run("errors", func(t *testing.T) { testFailures(t, db) })
	t.Run("segments", func(t *testing.T) { testSegments(t, db, 10_000) })
	t.Run("load", func(t *testing.T) { testLoad(t, db) })
}
