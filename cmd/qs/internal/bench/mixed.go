package bench

import (
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

// Mixed measures the latencies of calls, alone and beside bulk data. Its result has what was measured, also if there is an error.
func (p *Perf) Mixed() (r MixedResult, err error) {
	p.step(0, 2, "latency of calls alone")
	lat, err := p.latencies(Pattern(p.Size))
	if err != nil {
		return r, err
	}
	r.IdleP50, r.IdleP99 = Percentile(lat, 50), Percentile(lat, 99)
	p.step(1, 2, "latency of calls beside bulk data")
	m, err := p.newMover(push, p.Bulk, 1)
	if err != nil {
		return r, err
	}
	defer m.close()
	if err := m.once(true); err != nil {
		return r, err
	}
	s := &stream{m: m, running: true}
	begun := time.Now()
	if err := m.c.h.ForwardRaw(m.c.in, s.again); err != nil {
		return r, err
	}
	if lat, err = p.latencies(Pattern(p.Size)); err != nil {
		return r, err
	}
	r.BusyP50, r.BusyP99 = Percentile(lat, 50), Percentile(lat, 99)
	for s.over = true; s.running; {
		if err := p.hctx.Progress(-1); err != nil {
			return r, err
		}
		p.hctx.Trigger(0)
	}
	if s.err != nil {
		return r, s.err
	}
	r.Bulk = float64(s.moved) / (1 << 20) / time.Since(begun).Seconds()
	return r, nil
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
