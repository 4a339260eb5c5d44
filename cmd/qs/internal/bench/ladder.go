package bench

import (
	"fmt"
	"math/bits"
)

// A ladder is an operation that is measured for increasing sizes and printed as a table. The columns are those of C
// Mercury's programs hg_rate and hg_bw.
type ladder struct {
	title, column string
	// step measures the operation for one size. It returns the value for the table's value column, and the time per
	// operation in microseconds.
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

// maxUnderWay is the maximum total size, in bytes, of the inputs or outputs of concurrent calls in the rate table. For
// large sizes, the number of calls in flight is reduced accordingly.
const maxUnderWay = 256 << 20

// IsLadder reports whether op is measured as a table of sizes.
func IsLadder(op string) bool { return ladders[op] != nil }

// OfCalls reports whether the table op measures calls. Otherwise it measures bulk transfers.
func OfCalls(op string) bool { return op == "rate" || op == "lat" }

func bulkStep(dir moveDir) func(p *Perf, size int64) (float64, float64, error) {
	return func(p *Perf, size int64) (float64, float64, error) {
		rate, err := p.measureBulkRate(dir, size, p.ladderInflight())
		return rate, float64(size) / (1 << 20) / rate * 1e6, err
	}
}

// A Rung is the measurement for one size, which is a line of the table.
type Rung struct {
	Size  int64   `json:"size"`
	Value float64 `json:"value"`
	Time  float64 `json:"time_us"`
}

// A Table is the result of Ladder.
type Table struct {
	Op     string `json:"op"`
	Column string `json:"column"` // heading of the value column
	Rungs  []Rung `json:"sizes"`
}

// Describe returns the heading of the value column and the title of the table op, and the maximum number of calls or
// transfers in flight.
func (p *Perf) Describe(op string) (column, title string, inflight int) {
	inflight = p.ladderInflight()
	if op == "lat" {
		inflight = 1
	}
	return ladders[op].column, ladders[op].title, inflight
}

// Ladder measures the table op and calls each after each measurement. If it returns an error, the Table contains the
// completed measurements.
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

// ladderInflight returns the maximum number of concurrent calls or transfers in a table.
func (p *Perf) ladderInflight() int { return p.Inflight[len(p.Inflight)-1] }
