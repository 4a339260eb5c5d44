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

// Text returns text with non-printable characters escaped as in a Go string: \n, \x1b, \u202e.
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

// ToDo begins a line of Advise that states the remedy for an error.
const ToDo = "to do:  "

// A Writer writes data from a peer to a terminal. It escapes the data like Text, except for newlines and tabs.
type Writer struct {
	out  io.Writer
	rest []byte // beginning of an incomplete character
}

// NewWriter returns a Writer that writes to out. Flush must be called at the end to write bytes that are held back.
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

// Flush writes the bytes of an incomplete character.
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

// advised is an error with additional lines from this program.
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

// Advise returns err with additional lines from this program. They cannot be confused with text from a peer, because
// Error writes such text without line breaks.
func Advise(err error, lines ...string) error { return &advised{err, lines} }

// reworded is an error whose text this program has replaced.
type reworded struct {
	err  error
	text string
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }

// Reword returns an error that wraps err and has the given text.
func Reword(err error, text string) error { return &reworded{err, text} }

// Error returns the text of an error without control characters, as one line followed by the lines of Advise.
func Error(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*advised](err); ok {
		if before, after, ok := strings.Cut(text, e.Error()); ok {
			return Text(before) + e.Error() + Text(after)
		}
	}
	return Text(text)
}

// SplitError returns the unchanged text of an error without the lines of Advise, and those lines.
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

// EscapeJSON returns JSON with the same value and without non-printable characters.
func EscapeJSON(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || strconv.IsPrint(r): // outside strings everything is ASCII, and inside them newlines are escaped
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

// JSON prints a value as a single line of JSON.
func JSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the output is not HTML
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(EscapeJSON(b.Bytes()))
	return err
}
