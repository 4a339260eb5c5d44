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

// ToDo begins a line of Advise with the remedy for an error.
const ToDo = "to do:  "

// A Writer writes data of a peer to a terminal: like Text, but for newlines and tabs.
type Writer struct {
	out  io.Writer
	rest []byte // the beginning of a character
}

// NewWriter returns a Writer to out. Flush writes the bytes that it holds back.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Write implements io.Writer.
func (w *Writer) Write(b []byte) (int, error) {
	all := append(w.rest, b...)
	whole := len(all)
	for n := 1; n < utf8.UTFMax && n <= len(all); n++ {
		if last := all[len(all)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole -= n
			}
			break
		}
	}
	w.rest = bytes.Clone(all[whole:])
	return len(b), w.write(all[:whole])
}

// Flush writes the beginning of a character that has no end.
func (w *Writer) Flush() error {
	rest := w.rest
	w.rest = nil
	return w.write(rest)
}

func (w *Writer) write(b []byte) error {
	var text strings.Builder
	for len(b) > 0 {
		n := bytes.IndexAny(b, "\n\t")
		if n < 0 {
			n = len(b)
		}
		text.WriteString(Text(string(b[:n])))
		if n < len(b) {
			text.WriteByte(b[n])
			n++
		}
		b = b[n:]
	}
	_, err := io.WriteString(w.out, text.String())
	return err
}

// advised is an error with lines of this program below it.
type advised struct {
	err   error
	lines []string
}

func (e *advised) Error() string {
	text := Error(e.err)
	for _, l := range e.lines {
		text += "\n  " + Text(l)
	}
	return text
}

func (e *advised) Unwrap() error { return e.err }

// Advise returns err with lines of this program below it. They cannot be mistaken for a text of a peer, because Error
// writes that without line breaks.
func Advise(err error, lines ...string) error { return &advised{err, lines} }

// reworded is an error with a text of this program.
type reworded struct {
	err  error
	text string
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }

// Reword returns err with another text.
func Reword(err error, text string) error { return &reworded{err, text} }

// Error returns the text of an error without control characters of a peer: one line, and those of Advise.
func Error(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*advised](err); ok {
		if before, after, ok := strings.Cut(text, e.Error()); ok {
			return Text(before) + e.Error() + Text(after)
		}
	}
	return Text(text)
}

// SplitError returns the text of an error as it is, without the lines of Advise, and these lines.
func SplitError(err error) (text string, lines []string) {
	text = err.Error()
	for {
		e, ok := errors.AsType[*advised](err)
		if !ok {
			return text, lines
		}
		text = strings.Replace(text, e.Error(), e.err.Error(), 1)
		lines = append(lines, e.lines...)
		err = e.err
	}
}

// EscapeJSON returns JSON of the same value without characters that are not printable.
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
