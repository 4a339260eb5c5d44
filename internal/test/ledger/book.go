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

// A Book is where origins and targets write down what they do, a line in one write.
//
//	call ID WHAT MOST          it begins, and may run MOST times
//	end ID FATE ATTEMPTS CODE  it has ended
//	back ID RESULT             Withdraw has returned
//	run ID, done ID            its handler begins, is about to return without an error
//	refused ID                 its handler says that it has done nothing
//	wrong TEXT                 somebody has seen a promise broken
type Book struct {
	mu sync.Mutex // one write at a time
	to io.Writer
}

// NewBook returns a book that is written to w.
func NewBook(w io.Writer) *Book { return &Book{to: w} }

func (b *Book) line(format string, args ...any) {
	text := fmt.Appendf(nil, format+"\n", args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.to.Write(text); err != nil {
		panic(err) // without its book a process is worth nothing
	}
}

func (b *Book) call(id ID, what string, most int) { b.line("call %v %s %d", id, what, most) }

// end says how a call ended that its caller has not taken back.
func (b *Book) end(id ID, attempts int, err error) {
	how := outcome(err)
	if how == qs.ErrCanceled.Error() {
		b.wrong("call %v was canceled, and nobody canceled it: %v", id, err)
	}
	b.writeEnd(id, attempts, err, how)
}

// endTaken says how a call ended that its caller has canceled, abandoned or withdrawn, or was about to.
func (b *Book) endTaken(id ID, attempts int, err error) {
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
	b.line("end %v %s %d %s", id, fate, attempts, how)
}

func (b *Book) back(id ID, r hg.WithdrawResult) {
	b.line("back %v %s", id, map[hg.WithdrawResult]string{hg.Withdrawn: "withdrawn", hg.TooLate: "too-late", hg.Indeterminate: "indeterminate"}[r])
}

// ran says how often a call to several peers ran at least, and at the most.
func (b *Book) ran(id ID, least, most int) { b.line("ran %v %d %d", id, least, most) }

func (b *Book) run(id ID)  { b.line("run %v", id) }
func (b *Book) done(id ID) { b.line("done %v", id) }

// refused says that a handler of id has begun and says that it did nothing.
func (b *Book) refused(id ID) { b.line("refused %v", id) }

func (b *Book) wrong(format string, args ...any) {
	b.line("wrong %s", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// CanceledOnPurpose is the outcome of a call that its caller has canceled, abandoned or withdrawn. Such an end is no error.
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

// An entry is what is known of a call: a ledger has millions.
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

func small(text string) uint8 {
	n, _ := strconv.ParseUint(text, 10, 8)
	return uint8(n)
}

// Read takes in a book.
func (a *Audit) Read(book io.Reader) error {
	in := bufio.NewScanner(book)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		word, rest, _ := strings.Cut(in.Text(), " ")
		if word == "wrong" {
			a.broken(&a.Wrong, "%s", rest)
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
		e := a.entry(ID(o<<perOrigin | n))
		switch word {
		case "call":
			e.begun, e.most = min(e.begun+1, 2), small(f[2])
			a.Calls++
			a.Kinds[f[1]]++
		case "end":
			e.ends, e.fate, e.attempts = min(e.ends+1, 2), fates[f[1]], small(f[2])
			a.Outcomes[strings.Join(f[3:], " ")]++
		case "back":
			a.Withdraws[f[1]]++
			e.back = e.back || f[1] == "withdrawn"
		case "ran":
			e.bounded, e.least, e.atMost = true, small(f[1]), small(f[2])
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
