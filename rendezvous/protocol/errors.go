package protocol

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrViolation is matched by the error of a peer that has broken the protocol.
var ErrViolation = errors.New("startup protocol broken")

// ErrDenied is the error of a connection whose authentication failed.
var ErrDenied = errors.New("authentication failed")

// ErrLate is the error of a connection that had not joined in time.
var ErrLate = errors.New("did not join in time")

// ErrCrowded is the error of a connection that made room for newer ones before it had joined.
var ErrCrowded = errors.New("too many connections that have not joined")

// ErrRank is the error of a connection that asked for a rank that it cannot have.
var ErrRank = errors.New("rank not available")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...))
}

// A MemberError says which client was the reason why a startup failed.
type MemberError struct {
	Rank int
	Err  error
}

func (e *MemberError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

func (e *MemberError) Unwrap() error { return e.Err }

// An AbortError is what a native server says about a startup that has failed. Rank is -1 if no one client is the reason.
type AbortError struct {
	Rank   int
	Reason string
}

func (e *AbortError) Error() string {
	return "startup aborted: " + e.Reason
}

// A MissingError is what a server reports if the startup is not complete when its time is up. It matches
// os.ErrDeadlineExceeded.
type MissingError struct {
	Ranks   []int     // have not joined, ascending
	Waiting []Waiting // labels that are incomplete, ascending
	Undone  []int     // have joined and have not said that they are done, if no label is incomplete; ascending
}

// A Waiting is a label for which clients are missing.
type Waiting struct {
	Label   Label
	Missing []int // ranks, ascending
}

func (e *MissingError) Error() string {
	var b strings.Builder
	b.WriteString("startup not complete in time:")
	sep := " "
	say := func(format string, args ...any) {
		b.WriteString(sep)
		fmt.Fprintf(&b, format, args...)
		sep = "; "
	}
	if len(e.Ranks) > 0 {
		say("missing %s", rankList(e.Ranks))
	}
	for _, w := range e.Waiting {
		say("label %v waits for %s", w.Label, rankList(w.Missing))
	}
	if len(e.Undone) > 0 {
		say("not done: %s", rankList(e.Undone))
	}
	return b.String()
}

// shownRanks is how many ranks a text lists at most.
const shownRanks = 16

func rankList(ranks []int) string {
	words := make([]string, 0, shownRanks)
	for _, r := range ranks[:min(len(ranks), shownRanks)] {
		words = append(words, strconv.Itoa(r))
	}
	s := "rank " + strings.Join(words, ", ")
	if n := len(ranks) - shownRanks; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Is makes the error match os.ErrDeadlineExceeded.
func (e *MissingError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// firstOf returns the first of the missing ranks, or -1.
func (e *MissingError) firstOf() int {
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
