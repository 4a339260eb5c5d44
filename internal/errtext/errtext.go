package errtext

import (
	"strings"
	"time"
)

// Closed is the reason that a process sends to its peers when it closes a context of package na.
const Closed = "the process has shut down or closed its qs.Node or na.Context"

// Suffix returns the given facts in parentheses, preceded by a space and separated by commas. Empty
// facts are omitted. Suffix returns "" if all are empty.
func Suffix(facts ...string) string {
	var b strings.Builder
	for _, fact := range facts {
		switch {
		case fact == "":
			continue
		case b.Len() == 0:
			b.WriteString(" (")
		default:
			b.WriteString(", ")
		}
		b.WriteString(fact)
	}
	if b.Len() > 0 {
		b.WriteByte(')')
	}
	return b.String()
}

// After returns the fact that an operation ended after d, such as "after 416µs". It returns "" if d
// is not positive.
func After(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return "after " + Round(d).String()
}

// Round rounds d to about three digits.
func Round(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// packages holds the names of packages with which texts of errors begin.
var packages = [...]string{"qs: ", "hg: ", "na: ", "bulk: "}

// Cause returns the text of err for use behind another text. It omits the name of the package that
// returned err.
func Cause(err error) string {
	return trimPackage(err.Error())
}

func trimPackage(text string) string {
	for _, name := range packages {
		if cause, ok := strings.CutPrefix(text, name); ok {
			return cause
		}
	}
	return text
}

// Wrap returns an error that wraps err. Its text is doing, a colon, and Cause(err). If err is the
// result of errors.Join, its lines become the parts of one line.
func Wrap(doing string, err error) error { return &wrapped{doing, err} }

type wrapped struct {
	doing string
	err   error
}

func (e *wrapped) Error() string {
	causes := strings.Split(e.err.Error(), "\n")
	for i, text := range causes {
		causes[i] = trimPackage(text)
	}
	return e.doing + ": " + strings.Join(causes, "; ")
}

func (e *wrapped) Unwrap() error { return e.err }
