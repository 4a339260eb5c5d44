package protocol

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrViolation matches the error of a peer that has violated the protocol.
var ErrViolation = errors.New("startup protocol violation")

// ErrDenied is the error of a connection whose authentication failed.
var ErrDenied = errors.New("authentication failed")

// ErrLate is the error of a connection that did not join in time.
var ErrLate = errors.New("join timed out")

// ErrCrowded is the error of a connection that was closed before it joined, to make room for a newer one.
var ErrCrowded = errors.New("too many connections before join")

// ErrRank is the error of a connection whose rank is out of range or already in use.
var ErrRank = errors.New("rank not available")

// violationError returns an error that matches ErrViolation.
func violationError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...))
}

// A MemberError is the error of one client, which causes the startup to fail.
type MemberError struct {
	Rank int
	Err  error
}

func (e *MemberError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

func (e *MemberError) Unwrap() error { return e.Err }

// An AbortError is the error that a native server sends when the startup has failed. Rank is the rank of the client
// that caused the failure, or -1 if there is none.
type AbortError struct {
	Rank   int
	Reason string
}

func (e *AbortError) Error() string {
	return "startup aborted: " + e.Reason
}

// A MissingError is the error of a startup that was not complete when its time limit expired. It matches
// os.ErrDeadlineExceeded.
type MissingError struct {
	Ranks   []int     // ranks that have not joined, ascending
	Waiting []Waiting // incomplete labels, ascending
	Undone  []int     // if no label is incomplete, the ranks that have joined but not sent DONE, ascending
}

// A Waiting is an incomplete label.
type Waiting struct {
	Label   Label
	Missing []int // ranks that may still submit a part, ascending
}

func (e *MissingError) Error() string {
	var b strings.Builder
	b.WriteString("startup timed out:")
	sep := " "
	add := func(format string, args ...any) {
		b.WriteString(sep)
		fmt.Fprintf(&b, format, args...)
		sep = "; "
	}
	if len(e.Ranks) > 0 {
		add("missing %s", formatRanks(e.Ranks))
	}
	for _, w := range e.Waiting {
		add("label %v waits for %s", w.Label, formatRanks(w.Missing))
	}
	if len(e.Undone) > 0 {
		add("not done: %s", formatRanks(e.Undone))
	}
	return b.String()
}

// maxShownRanks is the maximum number of ranks listed in an error message.
const maxShownRanks = 16

// formatRanks returns a list of ranks for an error message.
func formatRanks(ranks []int) string {
	words := make([]string, 0, maxShownRanks)
	for _, r := range ranks[:min(len(ranks), maxShownRanks)] {
		words = append(words, strconv.Itoa(r))
	}
	s := "rank " + strings.Join(words, ", ")
	if n := len(ranks) - maxShownRanks; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Is reports whether target is os.ErrDeadlineExceeded.
func (e *MissingError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// firstRank returns the first missing rank, or -1 if there is none.
func (e *MissingError) firstRank() int {
	all := slices.Clone(e.Ranks)
	for _, w := range e.Waiting {
		all = append(all, w.Missing...)
	}
	all = append(all, e.Undone...)
	if len(all) == 0 {
		return -1
	}
	return all[0]
}
