package bench

import (
	"fmt"
	"math/bits"
)

// A ladder is a table of measurements over sizes, with the columns of C Mercury's programs hg_rate and hg_bw.
type ladder struct {
	title, column string
	// step measures one size. It returns the value for the column, and the microseconds per operation.
	step func(p *Perf, size int64) (value, micros float64, err error)
}

var ladders = map[string]*ladder{
	"rate": {"rate of calls", "Rate (ops/s)", func(p *Perf, size int64) (float64, float64, error) {
		n := max(1, min(int64(p.ladderInflight()), maxUnderWay/size))
		rate, err := p.measureRate(int(n), p.inputOf(int(size)))
		return rate, 1e6 / rate, err
	}},
	"lat": {"latency of calls", "p50 (us)", func(p *Perf, size int64) (float64, float64, error) {
		lat, err := p.measureLatencies(p.inputOf(int(size)))
		if err != nil {
			return 0, 0, err
		}
		sum := 0.0
		for _, d := range lat {
			sum += float64(d) / 1e3
		}
		return Percentile(lat, 50), sum / float64(len(lat)), nil
	}},
	"read":  {"bulk, the target pushes", "Bandwidth (MiB/s)", bulkStep(push)},
	"write": {"bulk, the target pulls", "Bandwidth (MiB/s)", bulkStep(pull)},
}

// maxUnderWay limits the total input or output of the concurrent calls in the rate ladder, in bytes. For the largest
// sizes, fewer calls are in flight.
const maxUnderWay = 256 << 20

// IsLadder reports whether op is the name of a table.
func IsLadder(op string) bool { return ladders[op] != nil }

// OfCalls reports whether op is a table of calls rather than transfers.
func OfCalls(op string) bool { return op == "rate" || op == "lat" }

func bulkStep(dir moveDir) func(p *Perf, size int64) (float64, float64, error) {
	return func(p *Perf, size int64) (float64, float64, error) {
		rate, err := p.measureBulkRate(dir, size, p.ladderInflight())
		return rate, float64(size) / (1 << 20) / rate * 1e6, err
	}
}

// A Rung is one line of a table.
type Rung struct {
	Size  int64   `json:"size"`
	Value float64 `json:"value"`
	Time  float64 `json:"time_us"`
}

// A Table is the result of Ladder.
type Table struct {
	Op     string `json:"op"`
	Column string `json:"column"` // meaning of the values
	Rungs  []Rung `json:"sizes"`
}

// Describe returns the column heading and title of a table, and the number of calls or transfers in flight.
func (p *Perf) Describe(op string) (column, title string, inflight int) {
	inflight = p.ladderInflight()
	if op == "lat" {
		inflight = 1
	}
	return ladders[op].column, ladders[op].title, inflight
}

// Ladder measures a table and calls each for every line. If it returns an error, its result contains the lines measured
// so far.
func (p *Perf) Ladder(op string, each func(Rung)) (t Table, err error) {
	l := ladders[op]
	t = Table{Op: op, Column: l.column, Rungs: []Rung{}}
	least := int64(max(p.Size, 1))
	all := bits.Len64(uint64(p.Bulk / least))
	for size := least; size <= p.Bulk; size *= 2 {
		p.reportStep(len(t.Rungs), all, fmt.Sprintf("%s of %d bytes", l.title, size))
		value, micros, err := l.step(p, size)
		if err != nil {
			return t, fmt.Errorf("size %d: %w", size, err)
		}
		t.Rungs = append(t.Rungs, Rung{size, value, micros})
		each(t.Rungs[len(t.Rungs)-1])
	}
	return t, nil
}

// ladderInflight returns the number of concurrent calls or transfers in the table.
func (p *Perf) ladderInflight() int { return p.Inflight[len(p.Inflight)-1] }
