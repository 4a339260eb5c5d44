package debug

import (
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A processSample is what is noted of the process once in each slot, when something ends or somebody looks.
type processSample struct {
	seen bool
	at   time.Duration // by the clock of the page
	cpu  time.Duration // that the process has used until then

	handles, regions int64 // that are not closed and not in use
}

// usage returns what the process uses, as of now.
func (p *Page) usage(now time.Duration) Usage {
	u := Usage{Processors: runtime.GOMAXPROCS(0)}
	read := []metrics.Sample{
		{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(read)
	u.Goroutines = int(read[0].Value.Uint64())
	u.Memory = int64(read[1].Value.Uint64() - read[2].Value.Uint64())
	u.Heap = int64(read[3].Value.Uint64())
	if cpu := cpuTime(); cpu > 0 {
		if from, ok := p.sampleBefore(now); ok {
			u.CPUCovers = now - from.at
			u.CPU = float64(cpu-from.cpu) / float64(u.CPUCovers)
		}
	}
	return u
}

// isBusy reports whether the process uses nearly all processors that it may.
func (l *look) isBusy() bool { return l.usage.CPU >= busyShare*float64(l.usage.Processors) }

// sampleBefore returns the oldest sample of the last minute, or the newest one that is older, if there is none.
func (p *Page) sampleBefore(now time.Duration) (from processSample, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.samples.newest(now, tenSlots)
	for i := len(all) - 1; i >= 0; i-- {
		if s := all[i]; s.seen && s.at < now && (!ok || len(all)-i <= minuteSlots) {
			from, ok = *s, true
		}
	}
	if !ok && p.first.seen && p.first.at < now {
		return p.first, true
	}
	return from, ok
}

// takeSample notes what there is now, the first time in each slot, and looks for new contexts. It is called when something ends, and when somebody looks.
func (p *Page) takeSample(now time.Duration) {
	slot := int64(now/slotTime) + 1
	if was := p.sampled.Load(); was >= slot || !p.sampled.CompareAndSwap(was, slot) {
		return
	}
	p.hearFaults()
	s := p.sample(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.samples.slots == nil {
		p.samples = newRing[processSample](tenSlots)
	}
	if !p.first.seen {
		p.first = s
	}
	*p.samples.at(now) = s
}

// sample returns what there is now.
func (p *Page) sample(now time.Duration) processSample {
	s := processSample{seen: true, at: now, cpu: cpuTime()}
	for _, from := range p.all() {
		s.regions += from.unused(func(string, hg.Addr) { s.handles++ })
	}
	return s
}

// history returns the samples of the last ten minutes, oldest first, and the first ever.
func (p *Page) history(now time.Duration) (first processSample, all []processSample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.samples.newest(now, tenSlots) {
		if s.seen {
			all = append(all, *s)
		}
	}
	return p.first, all
}
