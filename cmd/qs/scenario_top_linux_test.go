package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// startBusyTarget is a program to inspect, with a call of "stalls" in flight from a client named
// "billing".
func startBusyTarget(t *testing.T) (addr string) {
	t.Helper()
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Inspect: true})
	require.NoError(t, err)
	begun, over := make(chan struct{}), make(chan struct{})
	stalls := qs.Define[string, string]("stalls")
	stalls.Handle(n, func(context.Context, string) (string, error) {
		close(begun)
		<-over
		return "", nil
	})
	upper := qs.Define[string, string]("upper")
	upper.Handle(n, func(_ context.Context, in string) (string, error) { return strings.ToUpper(in), nil })
	served := make(chan error, 1)
	go func() { served <- n.Serve(context.Background()) }()
	client, err := qs.Open("tcp://", qs.Config{Name: "billing"})
	require.NoError(t, err)
	peer, err := client.Peer(t.Context(), n.Addr().String())
	require.NoError(t, err)
	called := make(chan error, 1)
	go func() {
		_, err := stalls.Call(context.Background(), peer, "")
		called <- err
	}()
	<-begun
	ctx, stop := context.WithCancel(context.Background())
	load := make(chan struct{})
	go func() {
		defer close(load)
		for ctx.Err() == nil {
			_, _ = upper.Call(ctx, peer, "a")
		}
	}()
	t.Cleanup(func() {
		stop()
		<-load
		close(over)
		require.NoError(t, <-called)
		require.NoError(t, client.Close())
		require.NoError(t, n.Close())
		require.NoError(t, <-served)
	})
	return n.Addr().String()
}

// TestTopOnce checks that one report has the call in flight with its age, the client by its name
// and address, and rates and percentiles.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	addr := startBusyTarget(t)
	q := run(t, 0, "top", "-once", "-json", "-interval", "200ms", addr)
	requireSchema(t, "top", q.out.Bytes())
	var r topReport
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &r))
	var ages []float64
	for _, c := range r.Calls {
		if c.Method == "stalls" {
			ages = append(ages, c.Age)
			require.Equal(t, "target", c.Kind)
			require.Regexp(t, `^billing \(127\.0\.0\.1:\d+\)$`, c.Peer)
		}
	}
	require.Len(t, ages, 1)
	require.Positive(t, ages[0])
	require.Len(t, r.Methods, 2)
	m := r.Methods[0]
	require.Equal(t, "upper", m.Method)
	require.Equal(t, methodReport{Kind: "target", Method: "stalls", Active: 1}, r.Methods[1])
	require.Positive(t, m.Rate)
	require.True(t, 0 < m.P50 && m.P50 <= m.P90 && m.P90 <= m.P99 && m.P99 <= m.Max, "%+v", m)
	var billing []trafficReport
	for _, p := range r.Peers {
		if p.Name == "billing" {
			billing = append(billing, p)
		}
	}
	require.Len(t, billing, 1)
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, billing[0].Remote)
	require.Positive(t, billing[0].Rate)
	out := run(t, 0, "top", "-once", "-interval", "100ms", "-filter", "stalls", addr).out.String()
	require.Regexp(t, `(?m)^ *\d.* running +target +stalls +billing`, out)
	require.NotContains(t, out, "upper")
}

// A screenStep is an action of a test after a terminal has shown some text since the step before.
type screenStep struct {
	shown string // a regular expression
	do    func(screen *os.File)
}

// runScreenSteps runs a command on a terminal of 100 columns, with the expected exit code, performs the
// steps, and returns everything that the terminal got.
func runScreenSteps(t *testing.T, env string, code int, steps []screenStep, args ...string) string {
	t.Helper()
	screen, terminal := openTerminalColumns(t, 100)
	q := newQS(t, args...)
	q.cmd.Env = append(q.cmd.Env, "TERM=xterm", env)
	q.cmd.Stdin, q.cmd.Stdout, q.cmd.Stderr = terminal, terminal, terminal
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	q.start()
	require.NoError(t, terminal.Close())
	var all, fresh bytes.Buffer
	for b := make([]byte, 64<<10); ; {
		n, err := screen.Read(b)
		all.Write(b[:n])
		fresh.Write(b[:n])
		if len(steps) > 0 && regexp.MustCompile(steps[0].shown).Match(fresh.Bytes()) {
			fresh.Reset()
			steps[0].do(screen)
			steps = steps[1:]
		}
		if err != nil {
			break
		}
	}
	<-q.ended
	require.Equal(t, code, q.code, "%q", &all)
	require.Empty(t, steps, "%q", &all)
	return all.String()
}

// typeKeys returns a step that types keys.
func typeKeys(keys string) func(screen *os.File) {
	return func(screen *os.File) { _, _ = screen.WriteString(keys) }
}

// TestTopScreen checks that on a terminal top uses the whole screen, and restores it, with the call
// in flight; keys filter, sort, pause and quit.
func TestTopScreen(t *testing.T) {
	t.Parallel()
	addr := startBusyTarget(t)
	steps := []screenStep{
		{`running +target +stalls +billing[^\r]*\r(?s:.*)\nupper[^\r]*target`, typeKeys("/billing\r")},
		{`filter: billing (?s:.*)Peers: 1`, typeKeys("s")}, {`sort: p99`, typeKeys("p")}, {`PAUSED`, typeKeys("\x1b[A3q")},
	}
	shown := runScreenSteps(t, "NO_COLOR=", 0, steps, "top", "-interval", "100ms", addr)
	require.True(t, strings.HasPrefix(shown, "\x1b[?1049h\x1b[?25l"), "%q", shown[:100])
	require.True(t, strings.HasSuffix(shown, "\x1b[?25h\x1b[?1049l"))
	require.Contains(t, shown, "\x1b[1mCalls under way")
	shown = runScreenSteps(t, "NO_COLOR=1", 0, []screenStep{{`running +target +stalls`, typeKeys("\x03")}}, "top", "-interval", "100ms", addr)
	require.NotRegexp(t, `\x1b\[\d*m`, shown)
}

// TestTopAndPingOutliveProgram checks that top and ping without a number of reports or calls outlive their
// program: they count for how long there is no answer, and continue when it is there again. Ctrl-C
// ends them at once; ping fails if there is no answer then.
func TestTopAndPingOutliveProgram(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args    []string
		answers string
		lost    int // the exit code when the program is lost at the end
	}{
		"top":      {[]string{"top", "-interval", "50ms"}, `0 handlers at work`, 0},
		"top json": {[]string{"top", "-json", "-interval", "50ms"}, `"address":`, 0},
		"ping":     {[]string{"ping", "-interval", "20ms"}, `64 bytes from (?s:.*)64 bytes from `, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "")
			addr := s.addr
			kill := func(*os.File) { s.kill() }
			restart := func(*os.File) { s = serve(t, "", addr) }
			runScreenSteps(t, "NO_COLOR=1", 0, []screenStep{
				{c.answers, kill}, {`no answer for [1-9]\d*s: connect: connection refused`, func(*os.File) {}},
				{`no answer for ([2-9]|\d\d+)s: connect: connection refused`, restart}, {c.answers, typeKeys("\x03")},
			}, append(c.args, addr)...)
			text := runScreenSteps(t, "NO_COLOR=1", c.lost, []screenStep{{c.answers, kill}, {`no answer for \d+s`, typeKeys("\x03")}}, append(c.args, addr)...)
			if c.lost != 0 {
				require.Regexp(t, `\d+ sent, \d+ answered, \d+ lost; (?s:.*)qs ping: `+addr+` was lost: no answer for \d+s: connect: connection refused\r\n$`, text)
			}
		})
	}
}

// TestTopStream checks that a running stream is a handler at work, and its items are in the rates
// of its method and its peer.
func TestTopStream(t *testing.T) {
	t.Parallel()
	addr := startTargetNode(t, func(n *qs.Node) {
		qs.DefineStream[int, int]("flood").Handle(n, func(_ context.Context, _ int, send func(int) error) error {
			for i := 0; ; i++ {
				if err := send(i); err != nil {
					return err
				}
			}
		})
	})
	caller := newQS(t, "call", "-timeout", "0", addr, "flood", "0")
	caller.cmd.Stdout = nil // /dev/null
	caller.start()
	var r topReport
	waitUntil(t, "the stream", func() bool {
		q := run(t, 0, "top", "-once", "-json", "-interval", "100ms", addr)
		r = topReport{}
		require.NoError(t, json.Unmarshal(q.out.Bytes(), &r))
		return len(r.Methods) == 1 && r.Methods[0].Items > 0
	})
	require.EqualValues(t, 1, r.Contexts[0].Active)
	m := r.Methods[0]
	require.Equal(t, "flood", m.Method)
	require.Equal(t, 1, m.Active)
	require.Positive(t, m.Sent)
	require.Positive(t, r.Calls[0].Items)
	require.Positive(t, r.Calls[0].Moved)
	sent := 0.0
	for _, p := range r.Peers {
		if !p.Own {
			require.Equal(t, 1, p.Active)
			sent = p.Sent
		}
	}
	require.Positive(t, sent)
}
