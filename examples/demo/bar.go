package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// A bar displays the progress of a transfer: on a terminal as one line that grows, otherwise as one
// line for every tenth.
type bar struct {
	out      io.Writer
	terminal bool
	total    int64
	shown    int64 // in percent
}

func newBar(out *os.File, total int64) *bar {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &bar{out: out, terminal: terminal, total: total}
}

// show displays n bytes of the total. The last call passes the full size.
func (b *bar) show(n int64) {
	percent := int64(100)
	if n < b.total {
		percent = n * 100 / b.total
	}
	if !b.terminal {
		percent -= percent % 10
	}
	if percent <= b.shown {
		return
	}
	b.shown = percent
	text := fmt.Sprintf("%3d %%  %s of %s", percent, size(int(n)), size(int(b.total)))
	if !b.terminal {
		fmt.Fprintf(b.out, "       %s\n", text)
		return
	}
	const width = 30
	full := int(percent * width / 100)
	fmt.Fprintf(b.out, "\r       [%s%s] %-32s", strings.Repeat("=", full), strings.Repeat(" ", width-full), text)
	if percent == 100 {
		fmt.Fprintln(b.out)
	}
}
