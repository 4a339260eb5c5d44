package sim

import "time"

// drawFault draws what happens to the first segment of a pipe, and reports whether it is not delivered now.
func (w *World) drawFault(p *pipe, from, to *end) bool {
	u := w.chance.pcg.Uint64() >> 32
	if u >= w.rates.partition {
		return false
	}
	who := to.port.inst.name
	switch {
	case u < w.rates.reset:
		w.stats.Resets++
		w.trace("reset", who, p.c.id, 1)
		p.c.reset()
	case u < w.rates.corrupt:
		w.corrupt(p, who)
		return false
	case u < w.rates.clog:
		d := max(w.chance.exp(w.faults.ClogFor), 1)
		w.stats.Clogs++
		w.trace("clog", who, p.c.id, uint64(d))
		p.clogged = w.after(d)
		p.ev.slow = true
		w.events.set(&p.ev, p.clogged)
	case u < w.rates.pause:
		to.port.inst.node.pause(max(w.chance.exp(w.faults.PauseFor), 1))
		p.due = true
	default:
		from, to := from.port.inst.node, to.port.inst.node
		if from == to {
			return false
		}
		d := max(w.chance.exp(w.faults.PartitionFor), 1)
		w.partitionFor(from, to, d)
		if u&1 == 1 {
			w.partitionFor(to, from, d)
		}
		w.hold(&p.ev)
	}
	return true
}

// corrupt damages a byte of the first segment of a pipe, if there is one that may be.
func (w *World) corrupt(p *pipe, who string) {
	s := &p.segs[0]
	n := s.covered
	if w.faults.CorruptBulk {
		n = len(s.b)
	}
	if n == 0 {
		return
	}
	i := w.chance.below(n)
	s.b[i] ^= byte(1 + w.chance.below(255))
	w.stats.Corrupted++
	w.trace("corrupt", who, p.c.id, uint64(i))
}

// rates are the rates per segment as bounds for one draw of 32 bits.
type rates struct {
	reset, corrupt, clog, pause, partition uint64
	refuse, silence                        uint64
	loss, duplicate, reorder               uint64 // per segment that is sent
	again                                  uint64 // per post
}

func (f *Faults) rates() rates {
	of := func(p float64) uint64 { return uint64(p * (1 << 32)) }
	var o rates
	o.reset = of(f.Reset)
	o.corrupt = o.reset + of(f.Corrupt)
	o.clog = o.corrupt + of(f.Clog)
	o.pause = o.clog + of(f.Pause)
	o.partition = o.pause + of(f.Partition)
	o.refuse, o.silence, o.again = of(f.Refuse), of(f.Silence), of(f.Again)
	o.loss = of(f.Loss)
	o.duplicate = o.loss + of(f.Duplicate)
	o.reorder = o.duplicate + of(f.Reorder)
	return o
}

// The first retransmission of a segment follows after minRetransmit, or after the time that a round trip takes if that is
// more; each one after it waits twice as long, up to maxRetransmit.
const (
	minRetransmit = time.Millisecond
	maxRetransmit = 5 * time.Second
)

// sendFault draws what becomes of a segment that is sent with the sender's link busy until then, and returns how much later it
// can be handed over, and for how much longer the link is busy. What is behind it waits for it: a stream keeps its order.
func (w *World) sendFault(p *pipe, size time.Duration) (late, busy time.Duration) {
	u := w.chance.pcg.Uint64() >> 32
	switch {
	case u >= w.rates.reorder:
	case u < w.rates.loss:
		late = w.retransmits()
		w.trace("loss", "", p.c.id, uint64(late))
	case u < w.rates.duplicate:
		if size == 0 {
			break // a link without limit does not notice
		}
		w.stats.Duplicated++
		w.trace("duplicate", "", p.c.id, 0)
		busy = size // the receiver drops it
	default:
		w.stats.Reordered++
		late = w.chance.exp(w.faults.ReorderFor) // those behind overtake it, and wait
		w.trace("reorder", "", p.c.id, uint64(late))
	}
	return late, busy
}

// retransmits returns how long it takes until something that was lost once has come through.
func (w *World) retransmits() (late time.Duration) {
	wait := max(2*(w.cfg.Latency+w.faults.Jitter), minRetransmit)
	for again := true; again && late < time.Hour; again = w.chance.chance(w.rates.loss) {
		w.stats.Lost++
		late += wait
		wait = min(2*wait, maxRetransmit)
	}
	return late
}
