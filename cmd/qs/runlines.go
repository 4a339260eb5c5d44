package main

import (
	"fmt"
	"io"
	"sync"
)

// lines keeps the lines of several processes whole.
type lines struct {
	mu     sync.Mutex
	failed chan error // yields the first write that failed; nothing is written after it
	broken bool       // guarded by mu
}

func (l *lines) of(rank int, out io.Writer) *rankLines {
	return &rankLines{all: l, out: out, prefix: fmt.Sprintf("[%d] ", rank)}
}

// blocked reports whether a line is being written at this moment.
func (l *lines) blocked() bool {
	if !l.mu.TryLock() {
		return true
	}
	l.mu.Unlock()
	return false
}

// maxLine is how much of a line without an end is kept.
const maxLine = 64 << 10

// rankLines is one stream of one process. Its lines are written behind the rank that they come from.
type rankLines struct {
	all    *lines
	out    io.Writer
	prefix string

	mu   sync.Mutex // guards rest; locked before all.mu
	rest []byte     // of a line that has not ended
}

// Write never fails: the processes go on while they are told to end.
func (r *rankLines) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range b {
		if c != '\n' {
			r.rest = append(r.rest, c)
		}
		if c == '\n' || len(r.rest) == maxLine {
			r.writeLocked()
		}
	}
	return len(b), nil
}

func (r *rankLines) writeLocked() {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	if !r.all.broken {
		if _, err := fmt.Fprintf(r.out, "%s%s\n", r.prefix, r.rest); err != nil {
			r.all.broken = true
			r.all.failed <- err
		}
	}
	r.rest = r.rest[:0]
}

// end writes a last line that has no end.
func (r *rankLines) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rest) > 0 {
		r.writeLocked()
	}
}
