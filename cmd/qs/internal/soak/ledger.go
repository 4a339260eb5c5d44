package soak

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ledger has a byte for each call, by its token, and two bits for what the targets say that they ran.
type ledger struct {
	ends     []byte
	ran      []byte
	doubled  int
	wrong    int
	unknown  int // tokens that nobody gave out
	outcomes map[string]int64
	first    []string // of what is wrong
}

// How a call ended.
const (
	soakOpen = iota
	soakOK
	soakNotRun
	soakMaybeRan
	soakRan
	soakOneWay = 1 << 3 // a flag
)

// begin gives out a token.
func (l *ledger) begin(oneWay bool) uint64 {
	b := byte(soakOpen)
	if oneWay {
		b |= soakOneWay
	}
	l.ends = append(l.ends, b)
	return uint64(len(l.ends) - 1)
}

// end writes down the one end of a call.
func (l *ledger) end(token uint64, err error) {
	b := &l.ends[token]
	if *b&^soakOneWay != soakOpen {
		l.doubled++
		l.note("call %d ended again, with %v", token, err)
		return
	}
	l.outcomes[soakOutcome(err)]++
	switch {
	case err == nil:
		*b |= soakOK
	case hg.FateOf(err) == na.NotRun:
		*b |= soakNotRun
	case hg.FateOf(err) == na.Ran:
		*b |= soakRan
	default:
		*b |= soakMaybeRan
	}
}

// note keeps the first things that went wrong.
func (l *ledger) note(format string, args ...any) {
	if len(l.first) < 8 {
		l.first = append(l.first, fmt.Sprintf(format, args...))
	}
}

// heard takes in the log of a target: 8 bytes for each handler that began.
func (l *ledger) heard(log []byte) {
	if l.ran == nil {
		l.ran = make([]byte, len(l.ends))
	}
	for ; len(log) >= 8; log = log[8:] {
		token := binary.LittleEndian.Uint64(log)
		if token >= uint64(len(l.ran)) {
			l.unknown++
		} else if l.ran[token] < 255 {
			l.ran[token]++
		}
	}
}

// audit compares what the origin was told with what the targets did.
func (l *ledger) audit(r *Report) {
	for token, b := range l.ends {
		ran, oneWay := l.ran[token], b&soakOneWay != 0
		if ran > 1 {
			r.ExecutedTwice++
			l.note("call %d ran %d times", token, ran)
		}
		switch b &^ soakOneWay {
		case soakOpen:
			r.Lost++
			l.note("call %d has not ended", token)
		case soakOK:
			if ran == 0 && !oneWay {
				r.WrongFate++
				l.note("call %d succeeded and did not run", token)
			}
		case soakNotRun:
			if ran != 0 {
				r.WrongFate++
				l.note("call %d says that it did not run, and ran", token)
			}
		case soakRan:
			if ran == 0 {
				r.WrongFate++
				l.note("call %d says that it ran, and did not", token)
			}
		}
	}
	r.Ops, r.Doubled, r.WrongAnswers = len(l.ends), l.doubled, l.wrong+l.unknown
	r.Completions, r.FirstWrong = l.outcomes, l.first
}

// size is how many bytes the ledger takes.
func (l *ledger) size() int { return cap(l.ends) + cap(l.ran) }

// soakOutcome names how a call ended.
func soakOutcome(err error) string {
	remote, ok := errors.AsType[*hg.RemoteError](err)
	switch {
	case err == nil:
		return "success"
	case ok:
		return "target: " + remote.Code.Error()
	}
	return na.CodeOf(err).Error()
}
