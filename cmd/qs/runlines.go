package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// lines keeps the lines of several processes whole.
type lines struct {
	mu     sync.Mutex
	json   bool       // each line is a JSON object
	failed chan error // yields the first write that failed; nothing is written after it
	broken bool       // guarded by mu
}

func (l *lines) of(rank int, stream string, out io.Writer) *rankLines {
	return &rankLines{all: l, out: out, rank: rank, stream: stream}
}

// A lineReport is what --json prints of a line of a process.
type lineReport struct {
	Rank   int    `json:"rank"`
	Stream string `json:"stream"` // stdout or stderr
	Line   string `json:"line"`
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
	rank   int
	stream string

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
		var err error
		if r.all.json {
			err = show.JSON(r.out, lineReport{r.rank, r.stream, string(r.rest)})
		} else {
			_, err = fmt.Fprintf(r.out, "[%d] %s\n", r.rank, r.rest)
		}
		if err != nil {
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
