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

// Text returns text with non-printable characters escaped as in a Go string, for example \n, \x1b or \u202e.
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

// ToDo is the prefix of a line for Advise that states a remedy.
const ToDo = "to do:  "

// A Writer writes data from a peer to a terminal. It escapes the data like Text, except newlines and tabs.
type Writer struct {
	out  io.Writer
	rest []byte // incomplete character at the end of the data written so far
}

// NewWriter returns a Writer that writes to out. The caller must call Flush after the last Write.
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

// Flush writes the bytes of an incomplete character, escaped.
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

// advised is an error with lines of advice from this program.
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

// Advise returns an error that wraps err and whose text is followed by the given lines. A peer cannot imitate such
// lines, because Error escapes line breaks in all other text.
func Advise(err error, lines ...string) error { return &advised{err, lines} }

// reworded is an error whose text has been replaced.
type reworded struct {
	err  error
	text string
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }

// Reword returns an error that wraps err and has the given text.
func Reword(err error, text string) error { return &reworded{err, text} }

// Error returns the text of an error for a terminal. It escapes non-printable characters, including line breaks, except
// between the lines added by Advise.
func Error(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*advised](err); ok {
		if before, after, ok := strings.Cut(text, e.Error()); ok {
			return Text(before) + e.Error() + Text(after)
		}
	}
	return Text(text)
}

// SplitError splits the text of err into the message and the lines that Advise has added. Control
// characters are not escaped.
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

// EscapeJSON returns text, which must be JSON, with non-printable characters replaced by JSON escape sequences. The
// value does not change.
func EscapeJSON(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || strconv.IsPrint(r): // newlines occur only between JSON tokens, because they are escaped within strings
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

// JSON writes v to out as a single line of JSON with escaped non-printable characters.
func JSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // HTML characters need no escaping, because the output is not HTML
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(EscapeJSON(b.Bytes()))
	return err
}
