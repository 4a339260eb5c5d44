package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A MixedResult is the latency of calls alone, and while the target pushes bulk data to the same process without a pause.
type MixedResult struct {
	IdleP50 float64 `json:"idle_p50_us"`
	IdleP99 float64 `json:"idle_p99_us"`
	BusyP50 float64 `json:"busy_p50_us"`
	BusyP99 float64 `json:"busy_p99_us"`
	Bulk    float64 `json:"bulk_mib_per_s"`
}

// Mixed prints the latencies of calls, alone and beside bulk data.
func (p *Perf) Mixed(asJSON bool, out io.Writer) error {
	var r MixedResult
	lat, err := p.latencies(Pattern(p.Size))
	if err != nil {
		return err
	}
	r.IdleP50, r.IdleP99 = Percentile(lat, 50), Percentile(lat, 99)
	m, err := p.newMover(push, p.Bulk, 1)
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.once(true); err != nil {
		return err
	}
	s := &stream{m: m, running: true}
	begun := time.Now()
	if err := m.c.h.ForwardRaw(m.c.in, s.again); err != nil {
		return err
	}
	if lat, err = p.latencies(Pattern(p.Size)); err != nil {
		return err
	}
	r.BusyP50, r.BusyP99 = Percentile(lat, 50), Percentile(lat, 99)
	for s.over = true; s.running; {
		if err := p.hctx.Progress(-1); err != nil {
			return err
		}
		p.hctx.Trigger(0)
	}
	if s.err != nil {
		return s.err
	}
	r.Bulk = float64(s.moved) / (1 << 20) / time.Since(begun).Seconds()
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	fmt.Fprintf(out, "%-28s %9s %9s %12s\n", "# calls", "p50 us", "p99 us", "bulk MiB/s")
	fmt.Fprintf(out, "%-28s %9.1f %9.1f\n", "alone", r.IdleP50, r.IdleP99)
	fmt.Fprintf(out, "%-28s %9.1f %9.1f %12.0f\n", "beside bulk", r.BusyP50, r.BusyP99, r.Bulk)
	return nil
}

// A stream is transfers one after the other.
type stream struct {
	m             *mover
	over, running bool
	moved         int64
	err           error
}

func (s *stream) again(h *hg.Handle, err error) {
	s.moved += int64(len(s.m.buf))
	if err == nil && !s.over {
		if err = h.ForwardRaw(s.m.c.in, s.again); err == nil {
			return
		}
	}
	s.err, s.running = err, false
}
