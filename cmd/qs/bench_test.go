//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/load"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// benchJSON runs qs bench with -json.
func benchJSON(t *testing.T, code int, args ...string) load.Result {
	t.Helper()
	q := run(t, code, append([]string{"bench", "-json"}, args...)...)
	var res load.Result
	require.NoError(t, json.Unmarshal(q.out.Bytes(), &res), "%s", &q.out)
	requireSchema(t, "bench", q.out.Bytes())
	return res
}

func TestBench(t *testing.T) {
	t.Parallel()
	addr, plain := startTypedTarget(t, true), serve(t, "").addr
	out := run(t, 0, "bench", "-n", "500", addr, "shop/token", `"x"`).out.String()
	require.Regexp(t, `^shop/token at `+addr+`\nclosed loop, at most 50 calls in flight, 1 connection to each node, inputs of 2 bytes\n\n`+
		`calls  500 in \S+ s, 500 succeeded, 0 failed\nrate   \S+ calls/s, `, out)
	require.Less(t, benchJSON(t, 0, "-n", "10", "-d", "1h", addr, "shop/token", `"x"`).Seconds, 3600.0)
	require.Regexp(t, `\n +min +mean +p50 +p90 +p99 +p99\.9 +max\n +latency +\S+ [µm]?s `, out)

	res := benchJSON(t, 0, "-n", "500", "-c", "7", "-connections", "2", "-rate", "10000", "-warmup", "20ms", "-node", addr, addr, "shop/token", `"x"`)
	require.Equal(t, int64(500), res.Succeeded)
	require.Equal(t, int64(200), res.WarmupCalls)
	require.Equal(t, 7, res.Concurrency)
	require.Equal(t, 2, res.Connections)
	require.Equal(t, []string{addr, addr}, res.Nodes)
	require.Equal(t, int64(500), res.Service.Calls)

	require.Equal(t, 2+64, benchJSON(t, 0, "-n", "1", "-size", "64", serve(t, "", "-handlers", "typed").addr, "qs/typed").InputBytes, "msgpack of 64 bytes")
	require.Equal(t, 4096, benchJSON(t, 0, "-n", "10", "-raw", "-size", "4096", plain, "qs/echo").InputBytes)
	require.Equal(t, 5, benchJSON(t, 0, "-n", "10", "-raw", plain, "qs/echo", "hello").InputBytes)
	require.Equal(t, int64(10), benchJSON(t, 0, "-n", "10", "-meta", "token=t", addr, "shop/note", `"x"`).Succeeded, "a one-way method")
	require.Equal(t, `"t: x"`+"\n", run(t, 0, "call", addr, "shop/noted", `""`).out.String())
	require.Equal(t, int64(10), benchJSON(t, 0, "-n", "10", "-oneway", startTypedTarget(t, false), "shop/note", `"x"`).Succeeded)

	file := filepath.Join(t.TempDir(), "lines")
	writeFile(t, file, []byte("{\"Item\": \"nut\"}\n\n{\"Item\": \"\"}\n"))
	res = benchJSON(t, 1, "-n", "100", "-lines", addr, "shop/order", "@"+file)
	require.Equal(t, int64(50), res.Succeeded)
	require.Equal(t, load.Failure{Count: 50, Code: 64, Meaning: "not found", Fate: "ran", Answered: true, Example: res.Errors[0].Example}, res.Errors[0])
	q := newQS(t, "bench", "-n", "100", "-lines", addr, "shop/order", "-")
	q.cmd.Stdin = strings.NewReader("{\"Item\": \"nut\"}\n{\"Item\": \"bolt\"}")
	q.start().wait(0)
}

// TestBenchMistakes checks that errors in the flags are reported before anything is sent, or after
// the first call.
func TestBenchMistakes(t *testing.T) {
	t.Parallel()
	addr := startTypedTarget(t, true)
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{2, []string{"shop/order", "{"}, `^qs bench: "\{" is not JSON: `},
		{2, []string{"shop/order", `{"Item": 7}`}, `^qs bench: the input: Item: the number 7 is not a valid string; NOT sent; shop/order takes`},
		{exitUsage, []string{"shop/ordr"}, `serves no method "shop/ordr": NOT sent; did you mean shop/order\?\n  to do:  look at what there is: qs rpcs`},
		{2, []string{"shop/count"}, `shop/count is a stream, or takes a Source or a Sink: qs bench cannot call it; NOT sent`},
		{2, []string{"shop/goods"}, `is a stream, or takes a Source`},
		{exitFailed, []string{"shop/order", "@nosuch"}, `^qs bench: cannot read the input: open nosuch: .*: NOT sent`},
		{2, []string{"-lines", "shop/order"}, `-lines needs an input`},
		{2, []string{"-lines", "shop/order", ""}, `the input of --lines is empty`},
		{2, []string{"-lines", "shop/order", "{}\n{"}, `^qs bench: line 2: "\{" is not JSON`},
		{2, []string{"-lines", "shop/order", "{}\n{\"Item\": 7}"}, `^qs bench: line 2: the input: Item: the number 7`},
		{2, []string{"-size", "3", "shop/order"}, `--size is for --raw, and for methods that take \[\]byte; shop/order takes`},
		{2, []string{"-size", "3", "shop/order", "{}"}, `--size and an input exclude each other`},
		{2, []string{"-rate", "-1", "shop/order"}, `-rate is -1, want 0 to 10000000`},
		{2, []string{"-rate", "NaN", "shop/order"}, `-rate is NaN`},
		{2, []string{"-c", "1", "-connections", "2", "shop/order"}, `-c is 1, want at least the number of connections, 2`},
		{2, []string{"-c", "-1", "shop/order"}, `--concurrency is not positive`},
		{2, []string{"-d", "-1s", "shop/order"}, `--time is not positive`},
		{2, []string{"-d", "0", "shop/order"}, `--time is not positive`},
		{2, []string{"-c", "0", "shop/order"}, `--concurrency is not positive`},
		{2, []string{"-n", "0", "shop/order"}, `--count is not positive`},
		{2, []string{"-warmup", "-1s", "shop/order"}, `--warmup is negative`},
		{2, []string{"-timeout", "0", "shop/order"}, `-timeout is not positive`},
		{2, []string{"-node", "udp://127.0.0.1:1", "shop/order"}, `want the same transport for all nodes`},
		{exitNotRun, []string{"-node", "tcp://127.0.0.1:1", "-d", "1h", "shop/order"}, `^qs bench: tcp://127\.0\.0\.1:1 cannot be reached: `},
		{2, []string{"-compare", "nosuch"}, `^qs bench: METHOD is missing `},
		{1, []string{"-compare", "nosuch", "shop/order"}, `^qs bench: --compare: open nosuch`},
	} {
		args := []string{"bench"}
		at := 0
		for at < len(c.args) && strings.HasPrefix(c.args[at], "-") {
			at++
			if at < len(c.args) && c.args[at-1] != "-lines" {
				at++
			}
		}
		q := run(t, c.code, append(append(append(args, c.args[:at]...), addr), c.args[at:]...)...)
		require.Regexp(t, c.want, q.errors.String())
		require.Empty(t, q.out.String())
	}
	silent := startTypedTarget(t, false)
	q := run(t, exitUsage, "bench", "-d", "1h", silent, "shop/ordr")
	require.Regexp(t, `the method refused the call: .*; it did NOT RUN\n  code:   2, no such method\n  to do:  look at what there is`, q.errors.String())
	require.Empty(t, q.out.String())
	q = run(t, 1, "bench", "-n", "10", addr, "shop/order", `{"Item": "quota"}`)
	require.Regexp(t, `^qs bench: 10 of 10 calls failed\n$`, q.errors.String())
	require.Regexp(t, `\nerrors +code +fate +for example\n10 +200, application error code 200 +did not run +.*the quota is used up`, q.out.String())
}

func TestBenchCompare(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	before := filepath.Join(t.TempDir(), "before.json")
	writeFile(t, before, run(t, 0, "bench", "-json", "-n", "200", "-c", "1", "-raw", s.addr, hg.PingRPC).out.Bytes())
	out := run(t, 0, "bench", "-n", "200", "-c", "1", "-compare", before, "-raw", s.addr, hg.PingRPC).out.String()
	require.NotContains(t, out, "NOT COMPARED")
	q := run(t, exitUsage, "bench", "-d", "1h", "-c", "2", "-compare", before, "-raw", s.addr, hg.PingRPC)
	require.Equal(t, "qs bench: --compare: the run of "+before+" has different settings: calls in flight 1 before, now 2; no call was made\n", q.errors.String())
	require.Regexp(t, `(?m)^ +before +now +ratio +noise$`, out)
	require.Regexp(t, `(?m)^ +calls/s +\S+ +\S+ +\d+\.\d\d +(±\d+ %|-)`, out)
	res := benchJSON(t, 0, "-n", "200", "-c", "1", "-compare", before, "-raw", s.addr, hg.PingRPC)
	require.Equal(t, "calls_per_s", res.Changes[0].Name)
	require.Equal(t, res.CallsPerS, res.Changes[0].Now)
	require.True(t, *res.Compared)

	require.NotContains(t, run(t, 0, "bench", "--help").out.String(), "default -1")
	require.Contains(t, run(t, 0, "bench", "-n", "1", "-raw", s.addr, hg.PingRPC, "x").out.String(), "inputs of 1 byte\n")
	require.Equal(t, newBuildReport().Version, res.Version)
	require.WithinDuration(t, time.Now(), res.Began, patience)
	open := filepath.Join(t.TempDir(), "open.json")
	writeFile(t, open, run(t, 0, "bench", "-json", "-n", "10", "-rate", "1000", "-c", "1", "-raw", s.addr, hg.PingRPC).out.Bytes())
	q = run(t, exitFailed, "bench", "-compare", open, before) // without a program
	out = q.out.String()
	require.Equal(t, "qs bench: the settings of the runs differ: NOT COMPARED\n", q.errors.String())
	require.False(t, *benchJSON(t, exitFailed, "-compare", open, before).Compared)
	require.Contains(t, out, "\nbefore: "+open+"\nnow:    "+before+"\n\nNOT COMPARED: other settings: open loop at 1000 calls/s before, now closed loop\n")
	require.NotContains(t, out, "ratio")
	require.Contains(t, run(t, 0, "bench", "-compare", before, before).out.String(), "ratio")
	require.Equal(t, "calls_per_s", benchJSON(t, 0, "-compare", before, before).Changes[0].Name)

	writeFile(t, before, []byte(`{}`))
	require.Regexp(t, `--compare: .* is not output of qs bench --json`, run(t, 1, "bench", "-compare", before, s.addr, hg.PingRPC).errors.String())
}

// TestBenchTargetDies checks that if the target is killed during a run without end, the run ends by
// itself, and reports the outcomes of the calls.
func TestBenchTargetDies(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]string{"closed": "0", "open": "20000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "")
			q := newQS(t, "bench", "-json", "-d", "1h", "-rate", rate, "-peer-timeout", "500ms", "-raw", s.addr, "qs/echo", "hello").start()
			s.waitForLoad()
			before := processorTime(t, s.cmd.Process.Pid)
			waitUntil(t, "calls", func() bool { // more than the lines before the first call
				return processorTime(t, s.cmd.Process.Pid) >= before+200*time.Millisecond || runtime.GOOS != "linux"
			})
			if rate == "0" {
				// and does not spin
				requireEnds(t, q, 1, func() { require.NoError(t, s.cmd.Process.Kill()) })
			} else {
				require.NoError(t, s.cmd.Process.Kill())
				q.wait(1)
			}
			require.Contains(t, q.errors.String(), "the run ended early: all nodes are unreachable")
			var res load.Result
			require.NoError(t, json.Unmarshal(q.out.Bytes(), &res), "%s", &q.out)
			require.Positive(t, res.Succeeded)
			fates := map[string]int64{}
			for _, f := range res.Errors {
				fates[f.Fate] += f.Count
			}
			require.Positive(t, fates["did_not_run"])
			require.Equal(t, res.Failed, fates["did_not_run"]+fates["may_have_run"])
			require.False(t, res.Interrupted)
		})
	}
}

// TestBenchInterrupt checks that an interrupt ends the run, and its results are printed.
func TestBenchInterrupt(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	q := newQS(t, "bench", "-d", "1h", "-raw", s.addr, "qs/echo", "hello").start()
	s.waitForLoad()
	require.NoError(t, q.cmd.Process.Signal(os.Interrupt))
	q.wait(exitInterrupted)
	require.Regexp(t, `\ncalls  \d+ in \S+ s, \d+ succeeded, 0 failed(; \d+ canceled in flight)?; interrupted\n`, q.out.String())
}
