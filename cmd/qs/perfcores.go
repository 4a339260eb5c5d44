package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
)

// measureCores runs qs perf with GOMAXPROCS set to 1, 2, 4 and so on, up to the number of processors. The origin and
// the target have the same setting. Each measurement uses two new processes.
func (m *measurement) measureCores() error {
	ctx, stop := m.app.untilSignal()
	defer stop()
	shown := m.app.newStatus()
	defer shown.clear()
	p := &m.perf
	args := slices.Concat([]string{"perf", "--json", "--transport", m.transport, "--api", p.API, "--size", strconv.Itoa(p.Size),
		"--bulk", strconv.FormatInt(p.Bulk, 10), "--time", p.Time.String(), "--pause", p.Pause.String(), "--inflight", m.inflight}, m.network.childArgs())
	var rs []bench.CoresResult
	for _, cores := range coreCounts(runtime.NumCPU()) {
		shown.update("GOMAXPROCS %d of %d", cores, runtime.NumCPU())
		out, err := self.Output(ctx, append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(cores)), args...)
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err != nil {
			return failedError{fmt.Errorf("with GOMAXPROCS %d: %w", cores, err)}
		}
		var one []bench.Result
		if err := json.Unmarshal(out, &one); err != nil || len(one) != 1 {
			return failedError{fmt.Errorf("with GOMAXPROCS %d: unexpected output %q of the other process", cores, out)}
		}
		rs = append(rs, bench.CoresResult{Cores: cores, Result: one[0]})
	}
	shown.clear()
	return m.app.printResult(rs, func(out io.Writer) { printCores(p, out, rs) })
}

// coreCounts returns the powers of two that are less than n, in ascending order, followed by n.
func coreCounts(n int) []int {
	var counts []int
	for c := 1; c < n; c *= 2 {
		counts = append(counts, c)
	}
	return append(counts, n)
}

func printCores(p *bench.Perf, out io.Writer, rs []bench.CoresResult) {
	fmt.Fprintf(out, "# %s, %d cores, %s, %d B calls\n", runtime.Version(), runtime.NumCPU(), rs[0].Peer, p.Size)
	columns := []string{">GOMAXPROCS", ">p50 us", ">p99 us"}
	for _, n := range p.Inflight {
		columns = append(columns, ">rate@"+strconv.Itoa(n))
	}
	t := newTable(append(columns, ">bulk MiB/s")...)
	for _, r := range rs {
		row := []string{strconv.Itoa(r.Cores), figureText(r.P50, 1), figureText(r.P99, 1)}
		for _, n := range p.Inflight {
			row = append(row, figureText(r.Rate[strconv.Itoa(n)], 0))
		}
		t.addRow(append(row, figureText(r.Bulk, 0))...)
	}
	t.print(out)
}
