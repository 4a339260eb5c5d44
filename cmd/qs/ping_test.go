package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

func TestPing(t *testing.T) {
	s := serve(t, "")
	out := run(t, 0, "ping", "-interval", "0", "-count", "3", s.addr).out.String()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4)
	var times []string
	for i, seq := range []string{"1", "2", "3"} {
		require.Regexp(t, `^64 bytes from `+s.addr+`: seq=`+seq+` time=\d+(\.\d)? [µm]s$`, lines[i])
		_, took, _ := strings.Cut(lines[i], "time=")
		times = append(times, took)
	}
	sum := regexp.MustCompile(`^3 sent, 3 answered, 0 lost; min (.*), p50 (.*), p99 (.*), max (.*)$`).FindStringSubmatch(lines[3])
	require.Len(t, sum, 5, lines[3])
	for _, took := range sum[1:] {
		require.Contains(t, times, took, "of a line")
	}
}

// TestPingStats checks that the lines and the summary print a time alike.
func TestPingStats(t *testing.T) {
	var out strings.Builder
	p := &pinger{out: &out}
	for _, took := range []time.Duration{401_600 * time.Nanosecond, 508_400 * time.Nanosecond, 12_349_999 * time.Nanosecond} {
		p.countAnswer(took)
	}
	p.computeStats()
	p.print(&out)
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{"time=402 µs", "time=508 µs", "time=12.3 ms", "min 402 µs, p50 508 µs, p99 12.3 ms, max 12.3 ms"} {
		require.Contains(t, lines[i], want)
	}
}

func TestPingJSON(t *testing.T) {
	s := serve(t, "")
	var r pingStats
	q := run(t, 0, "ping", "-json", "-interval", "0", "-count", "100", "-size", "100000", s.addr)
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	require.Equal(t, pingStats{Peer: s.addr, Bytes: 100000, Sent: 100, Answered: 100, Min: r.Min, P50: r.P50, P99: r.P99, Max: r.Max}, r)
	require.True(t, 0 < r.Min && r.Min <= r.P50 && r.P50 <= r.P99 && r.P99 <= r.Max, "%+v", r)
}

// startTarget is a target in this process with other handlers than those of qs.
func startTarget(t *testing.T, handlers map[string]hg.Handler) string {
	t.Helper()
	_, addr := startTargetClass(t, handlers)
	return addr
}

// startTargetClass is inProcess, and the target's class.
func startTargetClass(t *testing.T, handlers map[string]hg.Handler) (class *hg.Class, addr string) {
	t.Helper()
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{Codec: codec.Raw, Reflect: true})
	require.NoError(t, err)
	for name, handler := range handlers {
		if _, ok := class.Registered(name); ok {
			require.NoError(t, class.Deregister(hg.HashName(name)))
		}
		_, err := class.Register(name, handler)
		require.NoError(t, err)
	}
	hctx, err := class.NewContext()
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for hctx.Progress(-1) == nil {
			hctx.Trigger(0)
		}
	}()
	t.Cleanup(func() {
		_ = class.Close()
		<-ended
	})
	return class, class.Addr().String()
}

// TestPingContinuesAfterTimeout checks that a call without an answer is canceled and counted, and
// the next ones are answered.
func TestPingContinuesAfterTimeout(t *testing.T) {
	t.Parallel()
	calls := 0
	addr := startTarget(t, map[string]hg.Handler{hg.PingRPC: func(h hg.Request) error {
		if calls++; calls == 2 {
			_ = h.Detach() // never answered
			return nil
		}
		in, _ := h.InputRaw()
		return h.RespondRaw(in, nil)
	}})
	out := run(t, 0, "ping", "-interval", "0", "-timeout", "1s", "-count", "4", addr).out.String()
	require.Regexp(t, `(?m)^no answer from .*: seq=2 time=[1-9]\d{3,}\.\d ms$`, out)
	require.Regexp(t, `(?m)^64 bytes from .*: seq=4 `, out)
	require.Regexp(t, `(?m)^4 sent, 3 answered, 1 lost; `, out)
}

// TestPingRefused checks that a target that refuses a ping is alive.
func TestPingRefused(t *testing.T) {
	t.Parallel()
	addr := startTarget(t, map[string]hg.Handler{hg.PingRPC: func(hg.Request) error { return hg.Errorf(hg.ErrDenied, "not you") }})
	out := run(t, 0, "ping", "-interval", "0", "-count", "2", addr).out.String()
	require.Regexp(t, `(?m)^2 sent, 2 answered, 0 lost; `, out)
}

// TestPingSilent checks that a target that is alive and sends no answer is given up after the peer
// timeout.
func TestPingSilent(t *testing.T) {
	t.Parallel()
	addr := startTarget(t, map[string]hg.Handler{hg.PingRPC: func(h hg.Request) error {
		_ = h.Detach()
		return nil
	}})
	q := run(t, exitNotRun, "ping", "-interval", "0", "-timeout", "200ms", "-peer-timeout", "500ms", addr)
	// 3, but for a busy machine
	require.Regexp(t, `(?m)^(2 sent, 0 answered, 2|3 sent, 0 answered, 3|4 sent, 0 answered, 4) lost$`, q.out.String())
	require.Regexp(t, `^qs ping: `+addr+` is connected and has answered nothing for 500ms\n  to do:  .*\n$`, q.errors.String())
}

func TestPingUnreachable(t *testing.T) {
	s := serve(t, "")
	s.kill()
	q := run(t, exitNotRun, "ping", "-json", s.addr)
	var r pingStats
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r), "%s", &q.out)
	require.Equal(t, pingStats{Peer: s.addr, Bytes: 64, Sent: 1, Lost: 1, Error: r.Error}, r)
	require.Contains(t, r.Error, s.addr+" cannot be reached: connect: connection refused")
	var e struct{ Error errorReport }
	require.NoError(t, json.Unmarshal(q.errors.Bytes(), &e), "%s", &q.errors)
	require.Equal(t, s.addr+" cannot be reached: connect: connection refused", e.Error.Message)
}

func TestPingInterrupt(t *testing.T) {
	s := serve(t, "")
	q := newQS(t, "ping", "-interval", "1h", s.addr)
	out, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer out.Close()
	q.cmd.Stdout = out
	q.start()
	text := func() string {
		b, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		return string(b)
	}
	waitUntil(t, "the first answer", func() bool { return strings.Contains(text(), "seq=1") })
	require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
	q.wait(0)
	require.Regexp(t, `\n1 sent, 1 answered, 0 lost; `, text())
}

func TestPingProfile(t *testing.T) {
	s := serve(t, "")
	profile := filepath.Join(t.TempDir(), "profile")
	run(t, 0, "ping", "-count", "1", "-cpuprofile", profile, s.addr)
	b, err := os.ReadFile(profile)
	require.NoError(t, err)
	require.NotEmpty(t, b)
}
