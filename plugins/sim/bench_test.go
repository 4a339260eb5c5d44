package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// benchWorld is two nodes that exchange n messages each way.
func benchWorld(b *testing.B, cfg sim.Config, n int) *sim.World {
	w := sim.NewWorld(cfg)
	classes := na.Config{Plugins: []na.Plugin{w.Plugin()}}
	to := na.MakeAddr("sim://b", 0)
	buf, text := make([]byte, 64), make([]byte, 64)
	w.Go("b", func() {
		cls, _ := na.Open("sim://b", classes)
		nctx, _ := cls.NewContext()
		var from na.Addr
		var tag na.Tag
		got, sent := false, true
		recv := nctx.NewOp(func(_ *na.Op, r na.Result) {
			from, tag, got = r.Addr, r.Tag, true
			r.Envelope.Free()
		})
		send := nctx.NewOp(func(_ *na.Op, r na.Result) { sent = true })
		for range n {
			got = false
			_ = nctx.RecvUnexpected(recv)
			driveUntil(nctx, &got)
			driveUntil(nctx, &sent)
			sent = false
			_ = nctx.SendExpected(send, from, tag, text)
		}
		driveUntil(nctx, &sent)
		w.Sleep(time.Millisecond)
		closeClass(cls, nctx)
	})
	w.Go("a", func() {
		w.Sleep(time.Microsecond)
		cls, _ := na.Open("sim://a", classes)
		nctx, _ := cls.NewContext()
		got, sent := false, true
		recv := nctx.NewOp(func(_ *na.Op, r na.Result) {
			if r.Err != nil {
				b.Error(r.Err)
			}
			got = true
		})
		send := nctx.NewOp(func(_ *na.Op, r na.Result) { sent = true })
		for i := range n {
			got, sent = false, false
			_ = nctx.RecvExpected(recv, to, na.Tag(i), buf)
			_ = nctx.SendUnexpected(send, to, na.Tag(i), text)
			driveUntil(nctx, &sent)
			driveUntil(nctx, &got)
		}
		closeClass(cls, nctx)
	})
	if err := w.Run(time.Minute); err != nil {
		b.Error(err)
	}
	return w
}

func driveUntil(nctx *na.Context, done *bool) {
	for !*done {
		_ = nctx.Progress(-1)
		nctx.Trigger(0)
	}
}

func closeClass(cls *na.Class, nctx *na.Context) {
	_ = cls.Close()
	for !cls.Closed() {
		nctx.Trigger(0)
		if err := nctx.Progress(0); errors.Is(err, na.ErrClosed) {
			break
		}
	}
}

// BenchmarkPingPong measures a round of two messages and two coroutine switches.
func BenchmarkPingPong(b *testing.B) {
	b.ReportAllocs()
	w := benchWorld(b, sim.Config{}, b.N)
	b.ReportMetric(float64(w.Stats().Events)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkSeed measures an iteration of a new world with two nodes, a connection and 200 rounds.
func BenchmarkSeed(b *testing.B) {
	for name, cfg := range map[string]sim.Config{
		"A":       {},
		"A-noisy": {Faults: sim.Faults{Jitter: time.Millisecond, Clog: 0.01, ClogFor: time.Millisecond}},
		"B":       {Level: sim.LevelB},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			events := uint64(0)
			for b.Loop() {
				cfg.Seed++
				events += benchWorld(b, cfg, 200).Stats().Events
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "seeds/s")
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkStorm measures a seed with every class of faults.
func BenchmarkStorm(b *testing.B) {
	seed := uint64(0)
	events := uint64(0)
	for b.Loop() {
		seed++
		events += runStorm(b, seed).Stats().Events
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "seeds/s")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
