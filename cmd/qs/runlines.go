package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// lineWriter keeps the lines of several processes whole.
type lineWriter struct {
	mu     sync.Mutex
	json   bool       // each line is a JSON object
	failed chan error // yields the first write that failed; nothing is written after it
	broken bool       // guarded by mu
}

func (l *lineWriter) newRankLines(rank int, stream string, out io.Writer) *rankLines {
	return &rankLines{lines: l, out: out, rank: rank, stream: stream}
}

// A lineReport is the JSON of a line of a process.
type lineReport struct {
	Rank   int    `json:"rank"`
	Stream string `json:"stream"` // stdout or stderr
	Line   string `json:"line"`
}

// isWriting reports whether a line is being written at this moment.
func (l *lineWriter) isWriting() bool {
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
	lines  *lineWriter
	out    io.Writer
	rank   int
	stream string

	mu   sync.Mutex // guards rest; locked before all.mu
	rest []byte     // of a line that has not ended
}

// Write never fails, so that the processes can go on until they end.
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
	r.lines.mu.Lock()
	defer r.lines.mu.Unlock()
	if !r.lines.broken {
		var err error
		if r.lines.json {
			err = show.JSON(r.out, lineReport{r.rank, r.stream, string(r.rest)})
		} else {
			_, err = fmt.Fprintf(r.out, "[%d] %s\n", r.rank, r.rest)
		}
		if err != nil {
			r.lines.broken = true
			r.lines.failed <- err
		}
	}
	r.rest = r.rest[:0]
}

// flushLast writes a last line that has no end.
func (r *rankLines) flushLast() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rest) > 0 {
		r.writeLocked()
	}
}
