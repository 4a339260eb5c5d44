package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
)

// pingStats is the JSON form of the result of qs ping.
type pingStats struct {
	Peer     string  `json:"peer"`
	Bytes    int     `json:"bytes"`
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"`
	Lost     int     `json:"lost"`
	Min      float64 `json:"min_us"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	Max      float64 `json:"max_us"`
	Error    string  `json:"error,omitempty"`

	min, max time.Duration
}

func (p *pinger) countAnswer(took time.Duration) {
	if p.out != nil {
		fmt.Fprintf(p.out, "%d bytes from %s: seq=%d time=%s\n", p.size, p.peer, p.stats.Sent, timeText(took))
	}
	s := &p.stats
	if s.Answered == 0 {
		s.min = took
	}
	s.min, s.max = min(s.min, took), max(s.max, took)
	if len(p.times) < maxTimes {
		p.times = append(p.times, took)
	} else {
		p.times[s.Answered%maxTimes] = took
	}
	s.Answered++
}

func (p *pinger) countMiss(took time.Duration) {
	p.stats.Lost++
	if p.out != nil {
		fmt.Fprintf(p.out, "no answer from %s: seq=%d time=%s\n", p.peer, p.stats.Sent, timeText(took))
	}
}

// computeStats sets the statistics of p from the recorded latencies.
func (p *pinger) computeStats() {
	if len(p.times) == 0 {
		return
	}
	slices.Sort(p.times)
	s := &p.stats
	s.P50, s.P99 = bench.Percentile(p.times, 50), bench.Percentile(p.times, 99)
	s.Min, s.Max = float64(s.min)/1e3, float64(s.max)/1e3
}

func (p *pinger) print(out io.Writer) {
	s := &p.stats
	fmt.Fprintf(out, "%d sent, %d answered, %d lost", s.Sent, s.Answered, s.Lost)
	if s.Answered > 0 {
		text := func(us float64) string { return timeText(time.Duration(math.Round(us * 1e3))) }
		fmt.Fprintf(out, "; min %s, p50 %s, p99 %s, max %s", text(s.Min), text(s.P50), text(s.P99), text(s.Max))
	}
	fmt.Fprintln(out)
}

// timeText formats d in milliseconds if it is at least 10 ms, and otherwise in microseconds. There are only two units,
// so that times in a column can be compared.
func timeText(d time.Duration) string {
	if d >= 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1e3)
	}
	return fmt.Sprintf("%d µs", d.Round(time.Microsecond).Microseconds())
}
