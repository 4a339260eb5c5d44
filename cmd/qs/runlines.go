package main

import (
	"fmt"
	"io"
	"sync"
)

// lines keeps the lines of several processes whole.
type lines struct{ mu sync.Mutex }

func (l *lines) of(rank int, out io.Writer) *rankLines {
	return &rankLines{all: l, out: out, prefix: fmt.Sprintf("[%d] ", rank)}
}

// maxLine is how much of a line without an end is kept.
const maxLine = 64 << 10

// rankLines is one stream of one process. Its lines are written behind the rank that they come from.
type rankLines struct {
	all    *lines
	out    io.Writer
	prefix string
	rest   []byte // of a line that has not ended
}

func (r *rankLines) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' {
			r.rest = append(r.rest, c)
		}
		if c == '\n' || len(r.rest) == maxLine {
			if err := r.write(); err != nil {
				return 0, err
			}
		}
	}
	return len(b), nil
}

func (r *rankLines) write() error {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	_, err := fmt.Fprintf(r.out, "%s%s\n", r.prefix, r.rest)
	r.rest = r.rest[:0]
	return err
}

// end writes a last line that has no end.
func (r *rankLines) end() {
	if len(r.rest) > 0 {
		_ = r.write()
	}
}
