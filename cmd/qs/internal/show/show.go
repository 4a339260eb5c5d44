package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns text with everything that is not printable as Go writes it in a string: \n, \x1b, \u202e.
func Text(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// ToDo begins a line of Advise that says what to do about the error.
const ToDo = "to do:  "

// advised is an error with lines of this program below it.
type advised struct {
	err   error
	lines []string
}

func (e *advised) Error() string { return Error(e.err) + e.below() }

// below returns the lines as they stand below the text of the error.
func (e *advised) below() (text string) {
	for _, l := range e.lines {
		text += "\n  " + Text(l)
	}
	return text
}

func (e *advised) Unwrap() error { return e.err }

// Advise returns err with lines of this program below it: they cannot be mistaken for what a peer says, whose lines Error
// does not break.
func Advise(err error, lines ...string) error { return &advised{err, lines} }

// Error returns the text of an error, whatever a peer has put in it: in one line, and those of Advise.
func Error(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*advised](err); ok {
		if before, after, ok := strings.Cut(text, e.Error()); ok {
			return Text(before) + e.Error() + Text(after)
		}
	}
	return Text(text)
}

// SplitError returns the text of an error in one line, as Error has it, and the lines of Advise, which are not in it.
func SplitError(err error) (text string, lines []string) {
	text = Error(err)
	for {
		e, ok := errors.AsType[*advised](err)
		if !ok {
			return text, lines
		}
		text = strings.Replace(text, e.below(), "", 1)
		lines = append(lines, e.lines...)
		err = e.err
	}
}

// EscapeJSON returns JSON of the same value without what is not printable.
func EscapeJSON(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || strconv.IsPrint(r): // outside of strings all is ASCII, and in them a newline is escaped
			b = append(b, text[:n]...)
		case r > 0xffff:
			r -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b
}

// JSON prints a value in one line of JSON.
func JSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // what is printed is no HTML
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(EscapeJSON(b.Bytes()))
	return err
}
