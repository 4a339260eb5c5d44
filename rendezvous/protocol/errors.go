package protocol

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrViolation means that the peer has violated the protocol.
var ErrViolation = errors.New("startup protocol violation")

// ErrDenied means that the authentication of a connection has failed.
var ErrDenied = errors.New("authentication failed")

// ErrLate means that a connection did not join in time.
var ErrLate = errors.New("join timed out")

// ErrCrowded means that a connection was closed before it joined, to make room for a newer one.
var ErrCrowded = errors.New("too many connections before join")

// ErrRank means that the rank in a join command is out of range or already in use.
var ErrRank = errors.New("rank not available")

// violationError returns an error that matches ErrViolation.
func violationError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...))
}

// A MemberError reports that a single client has failed.
type MemberError struct {
	Rank int
	Err  error
}

func (e *MemberError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

func (e *MemberError) Unwrap() error { return e.Err }

// An AbortError is returned by Client.Receive when a native server reports that the startup has failed. Rank is the
// rank of the client that caused the failure, or -1 if no single client did.
type AbortError struct {
	Rank   int
	Reason string
}

func (e *AbortError) Error() string {
	return "startup aborted: " + e.Reason
}

// A MissingError is returned when the startup is not complete within its time limit. It lists the ranks that the
// startup is waiting for. It matches os.ErrDeadlineExceeded.
type MissingError struct {
	Ranks   []int     // ranks that have not joined, ascending
	Waiting []Waiting // incomplete labels, ascending
	Undone  []int     // if no label is incomplete, the ranks that have joined but not sent DONE, ascending
}

// A Waiting describes a label whose set is incomplete.
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
