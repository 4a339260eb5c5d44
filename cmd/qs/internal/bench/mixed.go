package bench

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A MixedResult holds the latency of calls and the throughput of bulk data that the target pushes. Each is measured
// alone and while the other is in progress.
type MixedResult struct {
	IdleP50  float64 `json:"idle_p50_us"`
	IdleP99  float64 `json:"idle_p99_us"`
	BusyP50  float64 `json:"busy_p50_us"`
	BusyP99  float64 `json:"busy_p99_us"`
	IdleBulk float64 `json:"idle_bulk_mib_per_s"`
	Bulk     float64 `json:"bulk_mib_per_s"`
}

// Mixed measures the latency of calls and the throughput of bulk data, first separately and then together. If it
// returns an error, the result contains the completed measurements.
func (p *Perf) Mixed() (r MixedResult, err error) {
	p.reportStep(0, 3, "latency of calls alone")
	lat, err := p.measureLatencies(Pattern(p.Size))
	if err != nil {
		return r, err
	}
	r.IdleP50, r.IdleP99 = Percentile(lat, 50), Percentile(lat, 99)
	p.reportStep(1, 3, "throughput of bulk transfers alone")
	m, err := p.newMover(push, p.Bulk, 1)
	if err != nil {
		return r, err
	}
	defer m.close()
	if err := m.moveOnce(true); err != nil {
		return r, err
	}
	if r.IdleBulk, err = p.measureMoves(m); err != nil {
		return r, err
	}
	p.reportStep(2, 3, "latency of calls beside bulk data")
	s := &bulkLoop{m: m, running: true}
	begun := time.Now()
	if err := m.c.h.ForwardRaw(m.c.in, s.startMove); err != nil {
		return r, err
	}
	if lat, err = p.measureLatencies(Pattern(p.Size)); err != nil {
		return r, err
	}
	r.BusyP50, r.BusyP99 = Percentile(lat, 50), Percentile(lat, 99)
	for s.isOver = true; s.running; {
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

// A bulkLoop makes one transfer after another until isOver is set or a transfer fails.
type bulkLoop struct {
	m               *mover
	isOver, running bool
	moved           int64
	err             error
}

func (s *bulkLoop) startMove(h *hg.Handle, err error) {
	s.moved += int64(len(s.m.buf))
	if err == nil && !s.isOver {
		if err = h.ForwardRaw(s.m.c.in, s.startMove); err == nil {
			return
		}
	}
	s.err, s.running = err, false
}
