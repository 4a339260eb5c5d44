package bench

import (
	"encoding/json"
	"fmt"
	"io"
)

// A ladder is a table over sizes, with the columns of C Mercury's hg_rate and hg_bw programs.
type ladder struct {
	title, column string
	// step measures one size: the value of the column, and microseconds for one operation.
	step func(p *Perf, size int64) (value, micros float64, err error)
}

var ladders = map[string]*ladder{
	"rate": {"rate of calls", "Rate (ops/s)", func(p *Perf, size int64) (float64, float64, error) {
		n := max(1, min(int64(p.ladderInflight()), maxUnderWay/size))
		rate, err := p.rate(int(n), Pattern(int(size)))
		return rate, 1e6 / rate, err
	}},
	"lat": {"latency of calls", "p50 (us)", func(p *Perf, size int64) (float64, float64, error) {
		lat, err := p.latencies(Pattern(int(size)))
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

// maxUnderWay bounds the input of all calls of the ladder of rates in bytes: of the largest sizes fewer are in flight.
const maxUnderWay = 256 << 20

// IsLadder reports whether there is a table op.
func IsLadder(op string) bool { return ladders[op] != nil }

// OfCalls reports whether op is a table of calls, rather than transfers.
func OfCalls(op string) bool { return op == "rate" || op == "lat" }

func bulkStep(dir moveDir) func(p *Perf, size int64) (float64, float64, error) {
	return func(p *Perf, size int64) (float64, float64, error) {
		rate, err := p.bulkRate(dir, size, p.ladderInflight())
		return rate, float64(size) / (1 << 20) / rate * 1e6, err
	}
}

// A Rung is a line of the table.
type Rung struct {
	Size  int64   `json:"size"`
	Value float64 `json:"value"`
	Time  float64 `json:"time_us"`
}

// A Table is what Ladder prints as JSON.
type Table struct {
	Op     string `json:"op"`
	Column string `json:"column"` // what the values are
	Rungs  []Rung `json:"sizes"`
}

// Ladder prints a table.
func (p *Perf) Ladder(op string, asJSON bool, out io.Writer) error {
	l, inflight := ladders[op], p.ladderInflight()
	if op == "lat" {
		inflight = 1
	}
	if !asJSON {
		fmt.Fprintf(out, "# quicksilver %s: %s, %d in flight\n", p.peer.Scheme(), l.title, inflight)
		fmt.Fprintf(out, "%-10s %20s %20s\n", "# Size", l.column, "Time (us)")
	}
	var rungs []Rung
	for size := int64(max(p.Size, 1)); size <= p.Bulk; size *= 2 {
		value, micros, err := l.step(p, size)
		if err != nil {
			return fmt.Errorf("size %d: %w", size, err)
		}
		rungs = append(rungs, Rung{size, value, micros})
		if !asJSON {
			fmt.Fprintf(out, "%-10d %20.2f %20.2f\n", size, value, micros)
		}
	}
	if asJSON {
		return json.NewEncoder(out).Encode(Table{op, l.column, rungs})
	}
	return nil
}

// ladderInflight is how many calls or transfers of the table are in flight.
func (p *Perf) ladderInflight() int { return p.Inflight[len(p.Inflight)-1] }
