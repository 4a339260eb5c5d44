package ledger

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// An Audit sums up the books, and counts the guarantees that were broken. The zero Audit is not
// ready: see NewAudit.
type Audit struct {
	Calls    int            `json:"calls"`
	Executed int            `json:"executed"` // calls that ran
	Repeated int            `json:"repeated"` // calls that ran more than once, and may have
	Cut      int            `json:"cut"`      // calls of origins that were killed
	Kinds    map[string]int `json:"kinds"`    // calls by kind
	// by how they ended: success, CanceledOnPurpose, or an error
	Outcomes  map[string]int `json:"outcomes"`
	Withdraws map[string]int `json:"withdraws"` // by result

	// From here on all must be zero.
	Unended      int `json:"unended"`
	EndedTwice   int `json:"ended_twice"`
	NotRunRan    int `json:"told_not_run_and_ran"`
	WithdrawnRan int `json:"told_withdrawn_and_ran"`
	RanNot       int `json:"told_ran_and_did_not"`
	RanTooOften  int `json:"ran_too_often"`
	Unknown      int `json:"ran_and_never_called"`
	Wrong        int `json:"wrong"` // that an origin or a target has detected
	// Broken counts the broken guarantees by their format, First has some texts of each.
	Broken map[string]int `json:"broken,omitempty"`
	First  []string       `json:"first_wrong,omitempty"`

	byOrigin map[uint64][]entry
}

// NewAudit returns an audit of no calls.
func NewAudit() *Audit {
	return &Audit{Kinds: map[string]int{}, Outcomes: map[string]int{}, Withdraws: map[string]int{}, Broken: map[string]int{}, byOrigin: map[uint64][]entry{}}
}

// entryOf returns that of a call. Numbers of calls have no gaps.
func (a *Audit) entryOf(id ID) *entry {
	all, n := a.byOrigin[id.origin()], int(id&(1<<perOrigin-1))
	if n >= 1<<30 {
		a.addBroken(&a.Unknown, "call %v is none that was made", id)
		n = 0
	}
	if n >= len(all) {
		all = slices.Grow(all, n+1-len(all))[:n+1]
		a.byOrigin[id.origin()] = all
	}
	return &all[n]
}

func (a *Audit) addBroken(count *int, format string, args ...any) {
	*count++
	text := fmt.Sprintf(format, args...)
	kind, _, _ := strings.Cut(numbers.ReplaceAllString(text, "N"), ": hg:")
	kind, _, _ = strings.Cut(kind, " (")
	if a.Broken[kind]++; a.Broken[kind] <= 2 && len(a.First) < 16 {
		a.First = append(a.First, text)
	}
}

var numbers = regexp.MustCompile(`[0-9][0-9.]*`)

// Close compares the outcomes that callers got with the runs of handlers. Calls of an origin that
// died need no end.
func (a *Audit) Close(died func(origin uint64) bool) {
	for _, origin := range slices.Sorted(maps.Keys(a.byOrigin)) {
		for i, e := range a.byOrigin[origin] {
			if e != (entry{}) {
				a.judgeCall(ID(origin<<perOrigin|uint64(i)), e, died(origin))
			}
		}
	}
}

func (a *Audit) judgeCall(id ID, e entry, died bool) {
	if e.runs > 0 {
		a.Executed++
	}
	switch {
	case e.begun == 0:
		a.addBroken(&a.Unknown, "call %v ran, and nobody made it", id)
		return
	case e.ends == 0 && died:
		a.Cut++
	case e.ends == 0:
		a.addBroken(&a.Unended, "call %v has not ended", id)
	case e.ends > 1 || e.begun > 1:
		a.addBroken(&a.EndedTwice, "call %v ended twice", id)
	}
	most := e.most
	if e.ends > 0 {
		most = min(most, e.attempts)
	}
	switch {
	case e.runs > max(most, 1):
		a.addBroken(&a.RanTooOften, "call %v ran %d times, in %d attempts, and may %d times", id, e.runs, e.attempts, e.most)
	case e.runs > 1:
		a.Repeated++
	}
	if e.back && e.runs > 0 {
		a.addBroken(&a.WithdrawnRan, "call %v was withdrawn, and ran", id)
	}
	switch {
	case e.bounded && e.runs < e.least:
		a.addBroken(&a.RanNot, "call %v is said to have run at %d peers, and ran %d times", id, e.least, e.runs)
	case e.bounded && e.runs > e.atMost && e.most < 100:
		a.addBroken(&a.NotRunRan, "call %v is said to have run at %d peers at the most, and ran %d times", id, e.atMost, e.runs)
	}
	switch e.fate {
	case fateNotRun:
		if e.runs > 0 {
			a.addBroken(&a.NotRunRan, "call %v is said not to have run, and ran %d times, in %d attempts", id, e.runs, e.attempts)
		}
	case fateRan:
		if e.runs == 0 && !e.refused {
			a.addBroken(&a.RanNot, "call %v is said to have run, and did not", id)
		}
	case fateOK:
		if e.dones == 0 && e.most != oneWay {
			a.addBroken(&a.RanNot, "call %v succeeded, and its handler did not", id)
		}
	}
}

// merge adds the counts of another audit, which is closed.
func (a *Audit) merge(b *Audit) {
	a.Calls, a.Executed, a.Repeated, a.Cut = a.Calls+b.Calls, a.Executed+b.Executed, a.Repeated+b.Repeated, a.Cut+b.Cut
	for _, m := range [][2]map[string]int{{a.Kinds, b.Kinds}, {a.Outcomes, b.Outcomes}, {a.Withdraws, b.Withdraws}, {a.Broken, b.Broken}} {
		for k, n := range m[1] {
			m[0][k] += n
		}
	}
}

// Err returns an error that names the guarantees that were broken.
func (a *Audit) Err() error {
	var wrong []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{a.Unended, "calls have not ended"}, {a.EndedTwice, "calls ended twice"}, {a.NotRunRan, "calls are said not to have run, and ran"},
		{a.WithdrawnRan, "calls were withdrawn, and ran"}, {a.RanNot, "calls are said to have run, and did not"},
		{a.RanTooOften, "calls ran more often than they may"}, {a.Unknown, "calls ran that nobody made"},
		{a.Wrong, "times somebody saw something wrong"},
	} {
		if f.n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, ", ") + "; first: " + strings.Join(a.First, "; "))
}
