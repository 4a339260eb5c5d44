package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
)

// A lineWriter writes the output of several processes line by line, so that lines are not
// interleaved.
type lineWriter struct {
	mu     sync.Mutex
	json   bool       // each line is a JSON object
	failed chan error // receives the first write error; later output is discarded
	broken bool       // guarded by mu
}

func (l *lineWriter) newRankLines(rank int, stream string, out io.Writer) *rankLines {
	return &rankLines{lines: l, out: out, rank: rank, stream: stream}
}

// A lineReport is the JSON form of one line of a process's output.
type lineReport struct {
	Rank   int    `json:"rank"`
	Stream string `json:"stream"` // stdout or stderr
	Line   string `json:"line"`
}

// isWriting reports whether a line is currently being written to the output.
func (l *lineWriter) isWriting() bool {
	if !l.mu.TryLock() {
		return true
	}
	l.mu.Unlock()
	return false
}

// maxLine is the maximum number of bytes of an unterminated line that are buffered.
const maxLine = 64 << 10

// rankLines is one output stream of a process. It prefixes each line with the process's rank.
type rankLines struct {
	lines  *lineWriter
	out    io.Writer
	rank   int
	stream string

	mu   sync.Mutex // guards rest; acquired before lines.mu
	rest []byte     // unterminated last line
}

// Write implements io.Writer. It never fails, so that a process is not terminated by a write error.
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

// flushLast writes an unterminated last line.
func (r *rankLines) flushLast() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rest) > 0 {
		r.writeLocked()
	}
}
