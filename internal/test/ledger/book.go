package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An ID names a request: the number of its origin, and that of the call.
type ID uint64

// Calls of an origin have 40 bits.
const perOrigin = 40

func (id ID) origin() uint64 { return uint64(id >> perOrigin) }

func (id ID) String() string { return fmt.Sprintf("%d.%d", id.origin(), uint64(id)&(1<<perOrigin-1)) }

// A Book is the log of origins and targets. Each line is written with one write.
//
//	call ID WHAT MOST          it begins, and may run MOST times
//	end ID FATE ATTEMPTS CODE  it has ended
//	back ID RESULT             Withdraw has returned
//	run ID, done ID            its handler begins, is about to return without an error
//	refused ID                 its handler has answered that it did nothing
//	wrong TEXT                 a process has observed a violation
type Book struct {
	mu sync.Mutex // one write at a time
	to io.Writer
}

// NewBook returns a book that is written to w.
func NewBook(w io.Writer) *Book { return &Book{to: w} }

func (b *Book) writeLine(format string, args ...any) {
	text := fmt.Appendf(nil, format+"\n", args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.to.Write(text); err != nil {
		panic(err) // without its book a process is worth nothing
	}
}

func (b *Book) addCall(id ID, what string, most int) { b.writeLine("call %v %s %d", id, what, most) }

// addEnd adds the end of a call that its caller has not canceled, abandoned or withdrawn.
func (b *Book) addEnd(id ID, attempts int, err error) {
	how := outcome(err)
	if how == qs.ErrCanceled.Error() {
		b.addWrong("call %v was canceled, and nobody canceled it: %v", id, err)
	}
	b.writeEnd(id, attempts, err, how)
}

// addTakenEnd adds the end of a call that its caller has canceled, abandoned or withdrawn, or was
// about to.
func (b *Book) addTakenEnd(id ID, attempts int, err error) {
	how := outcome(err)
	if how == qs.ErrCanceled.Error() {
		how = CanceledOnPurpose
	}
	b.writeEnd(id, attempts, err, how)
}

func (b *Book) writeEnd(id ID, attempts int, err error, how string) {
	fate := "ok"
	if err != nil {
		fate = map[hg.Fate]string{qs.NotRun: "notrun", qs.MaybeRan: "maybe", qs.Ran: "ran"}[qs.FateOf(err)]
	}
	b.writeLine("end %v %s %d %s", id, fate, attempts, how)
}

func (b *Book) addWithdraw(id ID, r hg.WithdrawResult) {
	b.writeLine("back %v %s", id, map[hg.WithdrawResult]string{hg.Withdrawn: "withdrawn", hg.TooLate: "too-late", hg.Indeterminate: "indeterminate"}[r])
}

// addRuns adds how often a call to several peers ran at least, and at most.
func (b *Book) addRuns(id ID, least, most int) { b.writeLine("ran %v %d %d", id, least, most) }

func (b *Book) addRun(id ID)  { b.writeLine("run %v", id) }
func (b *Book) addDone(id ID) { b.writeLine("done %v", id) }

// addRefused adds that a handler of id has begun and has answered that it did nothing.
func (b *Book) addRefused(id ID) { b.writeLine("refused %v", id) }

// AddWrong adds that a process has seen a promise broken.
func (b *Book) AddWrong(format string, args ...any) { b.addWrong(format, args...) }

func (b *Book) addWrong(format string, args ...any) {
	b.writeLine("wrong %s", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// CanceledOnPurpose is the outcome of a call that its caller has canceled, abandoned or withdrawn.
// Such an end is no error.
const CanceledOnPurpose = "canceled on purpose"

// outcome names how a call ended.
func outcome(err error) string {
	remote, ok := hg.RemoteOf(err)
	switch {
	case err == nil:
		return "success"
	case ok:
		return "target: " + remote.Code.Error()
	}
	return qs.CodeOf(err).Error()
}

// An entry is the state of a call. It is small, because an audit has millions.
type entry struct {
	begun, ends    uint8
	most, attempts uint8
	runs, dones    uint8
	fate           fate
	bounded        bool // the two below are known
	least, atMost  uint8
	back           bool // Withdraw has returned Withdrawn
	refused        bool
}

type fate uint8

const (
	fateOpen fate = iota
	fateOK
	fateNotRun
	fateMaybe
	fateRan
)

var fates = map[string]fate{"ok": fateOK, "notrun": fateNotRun, "maybe": fateMaybe, "ran": fateRan}

func parseSmall(text string) uint8 {
	n, _ := strconv.ParseUint(text, 10, 8)
	return uint8(n)
}

// Read reads a book into the audit.
func (a *Audit) Read(book io.Reader) error {
	in := bufio.NewScanner(book)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		word, rest, _ := strings.Cut(in.Text(), " ")
		if word == "wrong" {
			a.addBroken(&a.Wrong, "%s", rest)
			continue
		}
		f := strings.Fields(rest)
		if len(f) < map[string]int{"call": 3, "end": 4, "back": 2, "ran": 3, "run": 1, "done": 1, "refused": 1}[word] || len(f) == 0 {
			return fmt.Errorf("%q is no line of a book", in.Text())
		}
		origin, number, _ := strings.Cut(f[0], ".")
		o, err1 := strconv.ParseUint(origin, 10, 64-perOrigin)
		n, err2 := strconv.ParseUint(number, 10, perOrigin)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%q is no line of a book: %w", in.Text(), err)
		}
		e := a.entryOf(ID(o<<perOrigin | n))
		switch word {
		case "call":
			e.begun, e.most = min(e.begun+1, 2), parseSmall(f[2])
			a.Calls++
			a.Kinds[f[1]]++
		case "end":
			e.ends, e.fate, e.attempts = min(e.ends+1, 2), fates[f[1]], parseSmall(f[2])
			a.Outcomes[strings.Join(f[3:], " ")]++
		case "back":
			a.Withdraws[f[1]]++
			e.back = e.back || f[1] == "withdrawn"
		case "ran":
			e.bounded, e.least, e.atMost = true, parseSmall(f[1]), parseSmall(f[2])
		case "run":
			e.runs = min(e.runs, 254) + 1
		case "refused":
			e.refused = true
		case "done":
			e.dones = min(e.dones, 254) + 1
		default:
			return fmt.Errorf("%q is no line of a book", in.Text())
		}
	}
	return in.Err()
}
