package debug

import (
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A processSample describes the process at one point in time. The first event or Snapshot in each
// slot records one.
type processSample struct {
	isSet bool
	at    time.Duration // on the page's clock
	cpu   time.Duration // CPU time used by the process so far

	handles, regions int64 // numbers of handles and regions that are neither closed nor in use
}

// currentUsage returns the CPU and memory usage of the process at the time now.
func (p *Page) currentUsage(now time.Duration) Usage {
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

// isBusy reports whether the process uses nearly all of its processors (GOMAXPROCS).
func (l *snapshotBuilder) isBusy() bool { return l.usage.CPU >= busyShare*float64(l.usage.Processors) }

// sampleBefore returns the oldest sample of the last minute or, if there is none, the newest sample
// that is older. ok is false if there is no sample taken before now.
func (p *Page) sampleBefore(now time.Duration) (from processSample, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.samples.newestSlots(now, tenMinuteSlots)
	for i := len(all) - 1; i >= 0; i-- {
		if s := all[i]; s.isSet && s.at < now && (!ok || len(all)-i <= minuteSlots) {
			from, ok = *s, true
		}
	}
	if !ok && p.first.isSet && p.first.at < now {
		return p.first, true
	}
	return from, ok
}

// takeSample records a sample and subscribes to the faults of new contexts, unless it has already
// done so in the slot of now. It is called for each event and each Snapshot.
func (p *Page) takeSample(now time.Duration) {
	slot := int64(now/slotTime) + 1
	if was := p.sampledSlot.Load(); was >= slot || !p.sampledSlot.CompareAndSwap(was, slot) {
		return
	}
	p.subscribeFaults()
	s := p.newSample(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.samples.slots == nil {
		p.samples = newRing[processSample](tenMinuteSlots)
	}
	if !p.first.isSet {
		p.first = s
	}
	*p.samples.slotAt(now) = s
}

// newSample returns the state of the process at the time now.
func (p *Page) newSample(now time.Duration) processSample {
	s := processSample{isSet: true, at: now, cpu: cpuTime()}
	for _, from := range p.allSources() {
		s.regions += from.countUnused(func(string, hg.Addr) { s.handles++ })
	}
	return s
}

// sampleHistory returns the first sample ever taken and the samples of the last ten minutes, oldest
// first.
func (p *Page) sampleHistory(now time.Duration) (first processSample, all []processSample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.samples.newestSlots(now, tenMinuteSlots) {
		if s.isSet {
			all = append(all, *s)
		}
	}
	return p.first, all
}
