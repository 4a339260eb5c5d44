package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
)

// statusInterval is the interval between printed status lines if standard error is not a terminal.
const statusInterval = 10 * time.Second

// A statusLine displays the progress of a long-running command. On a terminal it updates the last line; otherwise it
// prints a line every statusInterval. The command must write its results through writerAbove, because both may go to
// the same terminal.
type statusLine struct {
	to     io.Writer
	screen bool
	quiet  bool // print nothing unless it is a terminal

	mu        sync.Mutex // guards the fields below
	line      string     // the displayed line
	isPrinted time.Time
}

// newStatus returns a status line on standard error. If --json is set, the line is displayed only on a terminal.
func (a *app) newStatus() *statusLine {
	return &statusLine{to: a.stderr, screen: isTerminal(a.stderr), quiet: a.isJSON}
}

// update sets the text of the status line. If standard error is not a terminal, update prints the text, but not more
// often than every statusInterval.
func (s *statusLine) update(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if s.screen {
		width, _ := terminalWidth(s.to)
		s.line = text.Trim(line, width-1)
		fmt.Fprintf(s.to, "\r\x1b[K%s", s.line)
		return
	}
	if now := time.Now(); !s.quiet && now.Sub(s.isPrinted) >= statusInterval {
		s.isPrinted = now
		fmt.Fprintln(s.to, line)
	}
}

// clear removes the status line from the terminal.
func (s *statusLine) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != "" {
		fmt.Fprint(s.to, "\r\x1b[K")
		s.line = ""
	}
}

// writerAbove returns a writer that writes to out and redraws the status line below the output.
func (s *statusLine) writerAbove(out io.Writer) io.Writer { return &statusWriter{s, out} }

type statusWriter struct {
	s   *statusLine
	out io.Writer
}

// Write implements io.Writer. Each call must pass complete lines.
func (w *statusWriter) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.line != "" {
		fmt.Fprint(w.s.to, "\r\x1b[K")
	}
	n, err := w.out.Write(b)
	if w.s.line != "" {
		fmt.Fprint(w.s.to, w.s.line)
	}
	return n, err
}
