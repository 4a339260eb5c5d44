package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A progressDisplay displays the progress of qs cp. On a terminal it draws a bar. Otherwise it prints at most one line
// per second.
type progressDisplay struct {
	out   io.Writer
	quiet bool
	bars  *mpb.Progress // if out is a terminal
	bar   *mpb.Bar

	endless bool // the total is unknown

	mu        sync.Mutex // guards the fields below
	total     int64
	moved     int64 // in this run, in bytes
	skipped   int64 // bytes that need not be moved
	name      string
	startTime time.Time
	lastShown time.Time
}

// newProgress returns a display that writes to out. If quiet is true and out is not a terminal, the display prints only
// notes. A negative total means that the total is unknown.
func newProgress(out io.Writer, total int64, quiet bool) *progressDisplay {
	p := &progressDisplay{out: out, quiet: quiet, total: total, endless: total < 0, startTime: time.Now()}
	p.lastShown = p.startTime
	if isTerminal(out) {
		p.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
		if total == 0 {
			total = 1
		}
		p.bar = p.bars.AddBar(total, mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.statusTextLocked(time.Now())
		})))
	}
	return p
}

// File displays the name of the file being copied.
func (p *progressDisplay) File(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = show.Text(name)
}

// Add adds n to the number of bytes that were transferred.
func (p *progressDisplay) Add(n int64) {
	p.addCount(&p.moved, n)
}

// Skip adds n to the number of bytes that need not be transferred.
func (p *progressDisplay) Skip(n int64) {
	p.addCount(&p.skipped, n)
}

// Grow adds n bytes to the total.
func (p *progressDisplay) Grow(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += n
}

// addCount adds n to *count and updates the display. It must not hold p.mu while updating the bar, because the bar may
// first call the decorator, which acquires p.mu.
func (p *progressDisplay) addCount(count *int64, n int64) {
	if p.bar != nil {
		defer p.bar.IncrInt64(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	*count += n
	if p.bar != nil {
		return
	}
	if now := time.Now(); !p.quiet && now.Sub(p.lastShown) >= time.Second {
		p.lastShown = now
		fmt.Fprintln(p.out, p.statusTextLocked(now))
	}
}

// statusTextLocked returns a text with the progress, rate and remaining time. p.mu must be held.
func (p *progressDisplay) statusTextLocked(now time.Time) string {
	done := p.moved + p.skipped
	if p.endless {
		rate := float64(done) / max(now.Sub(p.startTime).Seconds(), 1e-9)
		return fmt.Sprintf("%s, %s/s  %s", bytesText(done), bytesText(int64(rate)), p.name)
	}
	percent := int64(100)
	if done < p.total {
		percent = done * 100 / p.total
	}
	rate := float64(p.moved) / max(now.Sub(p.startTime).Seconds(), 1e-9)
	left := "?"
	if rate > 0 {
		left = (time.Duration(float64(max(p.total-done, 0))/rate*1e9)*time.Nanosecond + time.Second - 1).Truncate(time.Second).String()
	}
	return fmt.Sprintf("%3d %%  %s of %s, %s/s, %s left  %s", percent, bytesText(done), bytesText(p.total), bytesText(int64(rate)), left, p.name)
}

// Note prints text as a note for the user.
func (p *progressDisplay) Note(text string) {
	text = show.Text(text)
	if p.bars != nil {
		_, _ = fmt.Fprintln(p.bars, text)
		return
	}
	fmt.Fprintln(p.out, text)
}

// close stops updating the progress bar and removes it unless it is complete.
func (p *progressDisplay) close() {
	if p.bars == nil {
		return
	}
	p.bar.Abort(false) // leave a complete bar on the screen; calling Completed would race with the bar's last update
	p.bars.Wait()
}
