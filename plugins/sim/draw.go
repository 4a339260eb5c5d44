package sim

import "time"

// drawFault draws a random fault for p's first segment, and reports whether the fault prevents the
// delivery of the segment now.
func (w *World) drawFault(p *pipe, from, to *endpoint) bool {
	u := w.faultRNG.pcg.Uint64() >> 32
	if u >= w.rates.partition {
		return false
	}
	who := to.port.instance.name
	switch {
	case u < w.rates.reset:
		w.stats.Resets++
		w.addTrace("reset", who, p.conn.id, 1)
		p.conn.resetBoth()
	case u < w.rates.corrupt:
		w.corruptSegment(p, who)
		return false
	case u < w.rates.clog:
		d := max(w.faultRNG.expDuration(w.faults.ClogFor), 1)
		w.stats.Clogs++
		w.addTrace("clog", who, p.conn.id, uint64(d))
		p.clogged = w.timeAfter(d)
		p.arrival.isTimer = true
		w.events.schedule(&p.arrival, p.clogged)
	case u < w.rates.pause:
		to.port.instance.node.pause(max(w.faultRNG.expDuration(w.faults.PauseFor), 1))
		p.waitsForReceiver = true
	default:
		from, to := from.port.instance.node, to.port.instance.node
		if from == to {
			return false
		}
		d := max(w.faultRNG.expDuration(w.faults.PartitionFor), 1)
		w.addTimedPartition(from, to, d)
		if u&1 == 1 {
			w.addTimedPartition(to, from, d)
		}
		w.holdEvent(&p.arrival)
	}
	return true
}

// corruptSegment corrupts a byte of p's first segment, if the segment has a byte that may be
// corrupted.
func (w *World) corruptSegment(p *pipe, who string) {
	s := &p.segments[0]
	n := s.covered
	if w.faults.CorruptBulk {
		n = len(s.data)
	}
	if n == 0 {
		return
	}
	i := w.faultRNG.intn(n)
	s.data[i] ^= byte(1 + w.faultRNG.intn(255))
	w.stats.Corrupted++
	w.addTrace("corrupt", who, p.conn.id, uint64(i))
}

// faultRates holds fault rates as thresholds for a 32-bit random number. The first five are
// cumulative, for a single draw per delivered segment.
type faultRates struct {
	reset, corrupt, clog, pause, partition uint64
	refuse, silence                        uint64
	loss, duplicate, reorder               uint64 // cumulative; drawn per segment sent
	postFailure                            uint64 // drawn per post
}

func (f *Faults) toRates() faultRates {
	of := func(p float64) uint64 { return uint64(p * (1 << 32)) }
	var o faultRates
	o.reset = of(f.Reset)
	o.corrupt = o.reset + of(f.Corrupt)
	o.clog = o.corrupt + of(f.Clog)
	o.pause = o.clog + of(f.Pause)
	o.partition = o.pause + of(f.Partition)
	o.refuse, o.silence, o.postFailure = of(f.Refuse), of(f.Silence), of(f.Again)
	o.loss = of(f.Loss)
	o.duplicate = o.loss + of(f.Duplicate)
	o.reorder = o.duplicate + of(f.Reorder)
	return o
}

// The first retransmission of a segment occurs after minRetransmit, or after a round trip if that
// is longer. The delay doubles with each further retransmission, up to maxRetransmit.
const (
	minRetransmit = time.Millisecond
	maxRetransmit = 5 * time.Second
)

// sendFault draws random faults for a segment being sent. It returns by how much the segment's
// delivery is delayed, and how much longer the sender's link is busy. Later segments wait for the
// delayed one, because a stream preserves its order.
func (w *World) sendFault(p *pipe, size time.Duration) (late, busy time.Duration) {
	u := w.faultRNG.pcg.Uint64() >> 32
	switch {
	case u >= w.rates.reorder:
	case u < w.rates.loss:
		late = w.drawRetransmits()
		w.addTrace("loss", "", p.conn.id, uint64(late))
	case u < w.rates.duplicate:
		if size == 0 {
			break // no effect on a link of unlimited bandwidth
		}
		w.stats.Duplicated++
		w.addTrace("duplicate", "", p.conn.id, 0)
		busy = size // the receiver drops the duplicate
	default:
		w.stats.Reordered++
		late = w.faultRNG.expDuration(w.faults.ReorderFor) // later segments overtake it and then wait
		w.addTrace("reorder", "", p.conn.id, uint64(late))
	}
	return late, busy
}

// drawRetransmits draws the time until a lost message has been successfully retransmitted.
func (w *World) drawRetransmits() (late time.Duration) {
	wait := max(2*(w.cfg.Latency+w.faults.Jitter), minRetransmit)
	for again := true; again && late < time.Hour; again = w.faultRNG.hit(w.rates.loss) {
		w.stats.Lost++
		late += wait
		wait = min(2*wait, maxRetransmit)
	}
	return late
}
