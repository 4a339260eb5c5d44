package load

import (
	"cmp"
	"errors"
	"strings"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

const (
	digits      = 3         // significant digits of the histograms of a run
	sliceDigits = 2         // significant digits of the histograms of a slice
	maxLatency  = time.Hour // maximum latency; longer ones are recorded as this value
	fewSlices   = 20        // minimum number of slices in a run, unless the run is very short
	maxSlices   = 2 * fewSlices
	firstSlice  = 50 * time.Millisecond // initial width of a slice if the duration of the run is not known
)

// newHistogram returns a histogram of latencies in nanoseconds.
func newHistogram(digits int) *hdr.Histogram { return hdr.New(1, int64(maxLatency), digits) }

func recordIn(h *hdr.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(max(d, 0), maxLatency))) // cannot fail, because the value is within bounds
}

// A recorder holds one worker's measurements. All times are relative to the end of the warm-up.
type recorder struct {
	warmup  time.Duration
	end     time.Duration // end of the run, or 0 if it is not known; calls that complete later do not count toward the rate
	rated   bool          // the run is an open loop, in which latency and service time differ
	warm    int64         // number of calls made during the warm-up
	latency *hdr.Histogram
	service *hdr.Histogram
	failed  *hdr.Histogram

	width  time.Duration // width of a slice
	slices []slice       // in order of time; a call belongs to the slice in which it completed

	lastEnd        time.Duration // completion time of the last call
	canceled       int64
	late           int64 // number of calls that succeeded after end
	sent, received int64 // bytes sent and received by calls that succeeded before end
	failures       map[failureKey]*Failure
	nodes          []NodeResult
}

// A slice holds the measurements of a part of the run. Slices with the same index in different recorders cover the same
// time if the slice widths are equal.
type slice struct {
	latency *hdr.Histogram // latencies of successful calls; nil if there are none
	failed  int64
}

type failureKey struct {
	code   hg.Code
	fate   hg.Fate
	remote bool
}

func newRecorder(cfg Config) *recorder {
	rec := &recorder{warmup: cfg.Warmup, end: cfg.Duration, rated: cfg.Rate > 0, width: firstSlice, failures: map[failureKey]*Failure{}}
	rec.latency, rec.service, rec.failed = newHistogram(digits), newHistogram(digits), newHistogram(digits)
	if width := max(cfg.Duration/fewSlices, 1); cfg.Duration > 0 && (cfg.Count == 0 || width < firstSlice) {
		rec.width = width
	}
	for _, addr := range cfg.Nodes {
		rec.nodes = append(rec.nodes, NodeResult{Address: addr})
	}
	return rec
}

// cut sets the end of the run to t, a time relative to the start, unless the run ends earlier.
func (rec *recorder) cut(t time.Duration) {
	t = max(t-rec.warmup, 1)
	if rec.end == 0 || t < rec.end {
		rec.end = t
	}
}

// record records that c succeeded at the time now, relative to the start. The parameter received is the size of the
// output in bytes.
func (rec *recorder) record(c *call, now time.Duration, received int) {
	if c.due < rec.warmup {
		rec.warm++
		return
	}
	latency, at := now-c.due, now-rec.warmup
	rec.nodes[c.lane.node].Succeeded++
	rec.lastEnd = at
	recordIn(rec.latency, latency)
	if rec.rated {
		recordIn(rec.service, now-c.sent)
	}
	if rec.end > 0 && at >= rec.end {
		rec.late++
		return
	}
	rec.sent += int64(c.bytes)
	rec.received += int64(received)
	s := rec.sliceAt(at)
	if s.latency == nil {
		s.latency = newHistogram(sliceDigits)
	}
	recordIn(s.latency, latency)
}

// shortErrorText returns the text of an error without the method, node, code and fate, which appear elsewhere in the
// report.
func shortErrorText(err error) string {
	if remote, ok := hg.RemoteOf(err); ok {
		return cmp.Or(remote.Text, remote.Code.Error())
	}
	if call, ok := errors.AsType[*hg.Error](err); ok {
		return call.Err.Error()
	}
	return err.Error()
}

// recordFailure records that c failed with err at the time now, relative to the start.
func (rec *recorder) recordFailure(c *call, now time.Duration, err error) {
	if c.due < rec.warmup {
		rec.warm++
		return
	}
	rec.nodes[c.lane.node].Failed++
	rec.lastEnd = now - rec.warmup
	recordIn(rec.failed, now-c.due)
	if at := now - rec.warmup; rec.end == 0 || at < rec.end {
		rec.sliceAt(at).failed++
	}
	key := failureKey{code: hg.CodeOf(err), fate: hg.FateOf(err)}
	if remote, ok := hg.RemoteOf(err); ok {
		key.code, key.remote = remote.Code, true
	}
	f := rec.failures[key]
	if f == nil {
		f = &Failure{Code: uint8(key.code), Meaning: key.code.Error(), Fate: strings.ReplaceAll(key.fate.String(), " ", "_"), Answered: key.remote, Example: shortErrorText(err)}
		rec.failures[key] = f
	}
	f.Count++
}

// sliceAt returns the slice for the time t. If the slices up to t would exceed maxSlices, it first doubles their width.
func (rec *recorder) sliceAt(t time.Duration) *slice {
	i := int(t / rec.width)
	for i >= maxSlices {
		rec.doubleSlices()
		i = int(t / rec.width)
	}
	for len(rec.slices) <= i {
		rec.slices = append(rec.slices, slice{})
	}
	return &rec.slices[i]
}

// doubleSlices doubles the width of the slices and merges each pair of slices into one.
func (rec *recorder) doubleSlices() {
	wide := make([]slice, (len(rec.slices)+1)/2)
	for i, s := range rec.slices {
		wide[i/2].merge(s)
	}
	rec.width, rec.slices = 2*rec.width, wide
}

func (s *slice) merge(from slice) {
	s.failed += from.failed
	switch {
	case s.latency == nil:
		s.latency = from.latency
	case from.latency != nil:
		s.latency.Merge(from.latency)
	}
}

// merge adds the measurements of from to rec. It may modify from.
func (rec *recorder) merge(from *recorder) {
	rec.warm += from.warm
	rec.canceled += from.canceled
	rec.late += from.late
	rec.sent += from.sent
	rec.received += from.received
	rec.lastEnd = max(rec.lastEnd, from.lastEnd)
	rec.latency.Merge(from.latency)
	rec.service.Merge(from.service)
	rec.failed.Merge(from.failed)
	for i := range from.nodes {
		rec.nodes[i].Succeeded += from.nodes[i].Succeeded
		rec.nodes[i].Failed += from.nodes[i].Failed
	}
	for key, f := range from.failures {
		if own := rec.failures[key]; own != nil {
			own.Count += f.Count
		} else {
			rec.failures[key] = f
		}
	}
	for rec.width < from.width {
		rec.doubleSlices()
	}
	for from.width < rec.width {
		from.doubleSlices()
	}
	for i, s := range from.slices {
		for len(rec.slices) <= i {
			rec.slices = append(rec.slices, slice{})
		}
		rec.slices[i].merge(s)
	}
	if from.end > 0 && (rec.end == 0 || from.end < rec.end) {
		rec.end = from.end
	}
}
