package load

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// Report writes a human-readable report of r to out.
func (r *Result) Report(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %s\n", show.Text(r.Method), show.Text(strings.Join(r.Nodes, ", ")))
	fmt.Fprintf(&b, "%s, at most %d call%s in flight, %d connection%s to each node, inputs of %d byte%s\n\n", r.loopText(), r.Concurrency, countNoun(r.Concurrency), r.Connections, countNoun(r.Connections), r.InputBytes, countNoun(r.InputBytes))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "calls\t%d in %s s, %d succeeded, %d failed%s\n", r.Calls, formatNumber(r.Seconds), r.Succeeded, r.Failed, r.otherCallsText())
	if r.Succeeded > 0 {
		fmt.Fprintf(w, "rate\t%s calls/s, %s/s sent, %s/s received\n", formatNumber(r.CallsPerS), formatBytes(r.SentPerS), formatBytes(r.ReceivedPerS))
	}
	_ = w.Flush()
	for _, s := range r.findStalls() {
		fmt.Fprintf(&b, "\nNo call ended from %.1f to %.1f s.\n", s.from, s.to)
	}
	if r.Unsent > 0 {
		fmt.Fprintf(&b, "\nThe rate was not reached: %d calls were due and not sent, since %d were in flight (-c). The latencies are without them, and too low.\n", r.Unsent, r.Concurrency)
	}
	r.writeLatencies(&b)
	r.writeErrors(&b)
	r.writeNodes(&b)
	r.writeChanges(&b)
	_, err := io.WriteString(out, b.String())
	return err
}

// loopText returns a description of the loop, which is open or closed.
func (r *Result) loopText() string {
	if r.TargetRate > 0 {
		return fmt.Sprintf("open loop at %s calls/s", formatNumber(r.TargetRate))
	}
	return "closed loop"
}

// otherCallsText returns a description of the calls that do not count toward the rate or that were not reported.
func (r *Result) otherCallsText() (text string) {
	if r.Late*100 > r.Succeeded { // a few late calls are normal, because a closed loop has calls in flight when it ends
		text += fmt.Sprintf("; %d ended after that, and are not in the rate", r.Late)
	}
	if r.Canceled > 0 {
		text += fmt.Sprintf("; %d canceled in flight", r.Canceled)
	}
	if r.WarmupCalls > 0 {
		text += fmt.Sprintf("; and %d before, to warm up", r.WarmupCalls)
	}
	if r.Interrupted {
		text += "; interrupted"
	}
	return text
}

// A stall is a period in which no call completed. Its times are in seconds since the end of the warm-up.
type stall struct{ from, to float64 }

// minStalled is the minimum number of calls that, at the run's mean rate, would have completed in a period for the
// period to be reported as a stall.
const minStalled = 20

// findStalls returns the stalls of the run that span at least two slices.
func (r *Result) findStalls() (all []stall) {
	for i := 0; i < len(r.Slices); i++ {
		first := i
		for i < len(r.Slices) && r.Slices[i].Ended == 0 {
			i++
		}
		if i-first < 2 {
			continue
		}
		last := r.Slices[i-1]
		s := stall{r.Slices[first].At, last.At + last.Seconds}
		if float64(r.Calls)/r.Seconds*(s.to-s.from) >= minStalled {
			all = append(all, s)
		}
	}
	return all
}

func (r *Result) writeLatencies(b *strings.Builder) {
	if r.Calls == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w)
	fmt.Fprintln(w, "\tmin\tmean\tp50\tp90\tp99\tp99.9\tmax\t")
	row := func(name string, l *Latencies) {
		if l == nil || l.Calls == 0 {
			return
		}
		fmt.Fprintf(w, "%s\t", name)
		for _, us := range []float64{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max} {
			fmt.Fprintf(w, "%s\t", timeText(us))
		}
		fmt.Fprintln(w)
	}
	row("latency", &r.Latency)
	row("service time", r.Service)
	row("failed", r.Failures)
	_ = w.Flush()
	if r.Service != nil {
		fmt.Fprintln(b, "\nLatencies are from when a call was due, service times from its send.")
	}
}

func (r *Result) writeErrors(b *strings.Builder) {
	if len(r.Errors) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nerrors\tcode\tfate\tfor example")
	for _, f := range r.Errors {
		fmt.Fprintf(w, "%d\t%d, %s\t%s\t%s\n", f.Count, f.Code, show.Text(f.Meaning), show.Text(strings.ReplaceAll(f.Fate, "_", " ")), show.Text(f.Example))
	}
	_ = w.Flush()
}

func (r *Result) writeNodes(b *strings.Builder) {
	if len(r.ByNode) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nnode\tsucceeded\tfailed")
	for _, n := range r.ByNode {
		fmt.Fprintf(w, "%s\t%d\t%d\n", show.Text(n.Address), n.Succeeded, n.Failed)
	}
	_ = w.Flush()
}

func (r *Result) writeChanges(b *strings.Builder) {
	if r.Before != "" {
		fmt.Fprintf(b, "\nbefore: %s\nnow:    %s\n", show.Text(r.Before), show.Text(r.Now))
	}
	if len(r.Settings) > 0 {
		fmt.Fprintf(b, "\nNOT COMPARED: other settings: %s\n", show.Text(strings.Join(r.Settings, "; ")))
	}
	if len(r.Changes) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\n\tbefore\tnow\tratio\tnoise\t")
	for _, c := range r.Changes {
		text, name := formatNumber, c.Name
		switch {
		case strings.HasSuffix(name, "_us"):
			text, name = timeText, strings.ReplaceAll(strings.TrimSuffix(name, "_us"), "_", ".")
		case name == "calls_per_s":
			name = "calls/s"
		case name == "failed_ratio":
			text, name = percentText, "failed"
		}
		ratio, noise, mark := "-", "-", ""
		if c.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", c.Ratio)
		}
		if c.Noise != nil {
			noise = fmt.Sprintf("±%.0f %%", 100**c.Noise)
		}
		if c.Beyond {
			mark = "  beyond noise"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, text(c.Before), text(c.Now), ratio, noise, mark)
	}
	_ = w.Flush()
}

// Line formats s as a line of at most 79 columns. The rate is computed relative to the snapshot before.
func (s Snapshot) Line(before Snapshot, warmup time.Duration) string {
	if s.Elapsed < 0 {
		return fmt.Sprintf("warming up, %.0f of %v", (warmup + s.Elapsed).Seconds(), warmup)
	}
	rate := float64(s.Calls-before.Calls) / max((s.Elapsed-max(before.Elapsed, 0)).Seconds(), 1e-9)
	times := ""
	if s.Calls > s.Failed {
		times = fmt.Sprintf("p50 %s  p99 %s  ", timeText(toMicros(int64(s.P50))), timeText(toMicros(int64(s.P99))))
	}
	return fmt.Sprintf("%.1f s  %d calls  %s/s now  %s%d failed  %d in flight", s.Elapsed.Seconds(), s.Calls, formatNumber(rate), times, s.Failed, s.InFlight)
}

func countNoun(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// formatNumber formats v with three significant digits, or without decimals if v has more than three digits before the
// decimal point.
func formatNumber(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.3g", v)
	}
	text := significant(v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func percentText(v float64) string { return formatNumber(100*v) + " %" }

// timeText formats a number of microseconds with three significant digits.
func timeText(us float64) string {
	switch {
	case us >= 999.5e3:
		return significant(us/1e6) + " s"
	case us >= 999.5:
		return significant(us/1e3) + " ms"
	}
	return significant(us) + " µs"
}

func significant(v float64) string {
	switch {
	case v == 0 || v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// formatBytes formats a number of bytes with a binary unit, such as "1.5 MiB".
func formatBytes(v float64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if v < 1024 {
			return formatNumber(v) + " " + unit
		}
		v /= 1024
	}
	return formatNumber(v) + " GiB"
}
