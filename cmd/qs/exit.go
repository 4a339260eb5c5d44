package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotRun      = 3
	exitMayHaveRun  = 4
	exitHandler     = 5
	exitInterrupted = 130 // 128 + SIGINT, the convention of shells
)

// exitCodes is the description of the exit codes in the help output.
const exitCodes = `  0    success
  1    failed on this machine, or a check did: a request was not sent, or it
       ran and its output was lost; the text says which
  2    the command line is wrong, or asks for what the program does not serve
       or always refuses; nothing was done
  3    the request did not run, or only read something: it may be repeated
       (a wrong address gives 3, too: limit the repeats)
  4    the request may have run, or was ended while it ran: look before you
       repeat it
  5    the handler ran, and its answer is an error
  130  interrupted by SIGINT or SIGTERM: treat it as 4`

// errorKinds maps exit codes to the names used in JSON output.
var errorKinds = map[int]string{
	exitFailed: "failed", exitUsage: "usage", exitNotRun: "did_not_run", exitMayHaveRun: "may_have_run", exitHandler: "handler",
	exitInterrupted: "interrupted",
}

// A usageError is returned when the command line is invalid.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// A notSentError is returned when an error occurs before the method has been called, in which case another attempt may
// succeed. It does not wrap local errors, such as a missing file, because the same command would fail again.
type notSentError struct{ err error }

func (e notSentError) Error() string { return e.err.Error() }
func (e notSentError) Unwrap() error { return e.err }

// A refusedError is returned when nothing was done and the same command would fail again, because the program refused
// the request or a certificate is missing.
type refusedError struct{ err error }

func (e refusedError) Error() string { return e.err.Error() }
func (e refusedError) Unwrap() error { return e.err }

// A repeatableError is returned by a command that may safely be repeated, even if some of its requests ran. The
// requests only transfer bytes, and bytes that have arrived are kept.
type repeatableError struct{ err error }

func (e repeatableError) Error() string { return e.err.Error() }
func (e repeatableError) Unwrap() error { return e.err }

// A ranError is returned when an error occurred after the handler had begun. The method therefore ran.
type ranError struct{ err error }

func (e ranError) Error() string { return e.err.Error() }
func (e ranError) Unwrap() error { return e.err }

// newOutputError returns the error for a call that succeeded but whose output could not be written.
func newOutputError(method string, err error) error {
	if err == nil {
		return nil
	}
	return ranError{fmt.Errorf("cannot write the output of %s: %w; the method ran", method, err)}
}

// An unansweredError is returned when a read-only request receives no answer. The error does not state whether the
// request ran, because the request changes nothing.
type unansweredError struct {
	text string
	err  error
}

func (e unansweredError) Error() string { return e.text }
func (e unansweredError) Unwrap() error { return e.err }

// isNoMethod reports whether err means that the program rejected a request because it does not serve the RPC.
func isNoMethod(err error) bool {
	remote, ok := hg.RemoteOf(err)
	return ok && remote.Refused && remote.Code == hg.ErrNoMethod || errors.Is(err, mercury.ErrNoMethod)
}

// A failedError is returned when a command that makes many requests fails. It hides whether the failed request ran,
// which says nothing about the other requests.
type failedError struct{ err error }

func (e failedError) Error() string { return e.err.Error() }
func (e failedError) Unwrap() error { return e.err }

// withoutFate wraps err, the first error of a command that makes many requests, in a failedError. If no connection
// could be established, it returns err unchanged.
func withoutFate(err error) error {
	call, ok := errors.AsType[*hg.Error](err)
	if err == nil || errors.Is(err, hg.ErrUnreachable) || ok && call.Op == "lookup" {
		return err
	}
	return failedError{err}
}

// A brokenPromiseError is returned when an audit finds a violation, when the shutdown of a server interrupts requests,
// or when ping loses its target. It determines the exit code even if the command was interrupted.
type brokenPromiseError struct{ err error }

func (e brokenPromiseError) Error() string { return e.err.Error() }
func (e brokenPromiseError) Unwrap() error { return e.err }

// exitCode returns the exit code for a command's error.
func (a *app) exitCode(err error) int {
	if err == nil {
		return 0
	}
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	if errors.As(err, new(brokenPromiseError)) {
		return exitFailed
	}
	if a.gotSignal.Load() {
		return exitInterrupted
	}
	if isNoMethod(err) || errors.As(err, new(refusedError)) || files.NeedsCertificate(err) {
		return exitUsage
	}
	if errors.As(err, new(failedError)) {
		return exitFailed
	}
	if errors.As(err, new(notSentError)) || errors.As(err, new(unansweredError)) || errors.As(err, new(repeatableError)) {
		return exitNotRun
	}
	if remote, answered := hg.RemoteOf(err); answered {
		switch {
		case remote.Refused && isFinal(remote.Code):
			return exitUsage
		case remote.Refused:
			return exitNotRun
		}
		return exitHandler
	}
	if errors.Is(err, hg.ErrUnreachable) {
		return exitNotRun
	}
	if call, ok := errors.AsType[*hg.Error](err); ok {
		if call.Fate == hg.NotRun {
			return exitNotRun
		}
		return exitMayHaveRun
	}
	if errors.Is(err, na.ErrPeerLost) || errors.Is(err, na.ErrTimeout) {
		return exitMayHaveRun
	}
	return exitFailed
}

// An errorReport is the JSON form of an error.
type errorReport struct {
	Command  string   `json:"command"`
	Kind     string   `json:"kind"`
	ExitCode int      `json:"exit_code"`
	Message  string   `json:"message"`
	Code     int      `json:"code,omitempty"` // error code of the library or the handler
	CodeText string   `json:"code_text,omitempty"`
	Fate     string   `json:"fate,omitempty"`
	Detail   any      `json:"detail,omitempty"`
	Kept     string   `json:"kept,omitempty"` // description of the data that an interrupted copy has left
	ToDo     []string `json:"to_do,omitempty"`
}

// reportError prints a command's error, if any, and returns the exit code.
func (a *app) reportError(cmd *cobra.Command, err error) int {
	code := a.exitCode(err)
	if err == nil {
		return 0
	}
	if !a.isJSON {
		fmt.Fprintf(a.stderr, "%s: %s\n", cmd.CommandPath(), show.Error(err))
		return code
	}
	r := errorReport{Command: cmd.Name(), Kind: errorKinds[code], ExitCode: code}
	var lines []string
	r.Message, lines = show.SplitError(err)
	for _, l := range lines {
		if text, ok := strings.CutPrefix(l, show.ToDo); ok {
			r.ToDo = append(r.ToDo, text)
		} else if text, ok := strings.CutPrefix(l, keptLine); ok {
			r.Kept = text
		}
	}
	r.describeCall(err)
	_ = show.JSON(a.stderr, map[string]errorReport{"error": r})
	return code
}

// describeCall sets the fields of r that describe a failed call: the code, its text, the details and the fate.
func (r *errorReport) describeCall(err error) {
	remote, answered := hg.RemoteOf(err)
	_, called := errors.AsType[*hg.Error](err)
	code, coded := errors.AsType[na.Code](err)
	switch {
	case answered:
		code = remote.Code
		var v typed.Free
		if remote.Detail(&v) == nil {
			if text, err := typed.ToJSON(v); err == nil {
				r.Detail = rawJSON(text)
			}
		}
	case called:
		code = hg.CodeOf(err)
	case isNoMethod(err): // from a C program
		code = mercury.ErrNoMethod
	case !coded:
		if errors.As(err, new(ranError)) {
			r.Fate = fateText(hg.Ran)
		}
		return
	}
	r.Code, r.CodeText = int(code), code.Error()
	switch {
	case errors.As(err, new(ranError)):
		r.Fate = fateText(hg.Ran)
	case errors.As(err, new(notSentError)), errors.As(err, new(refusedError)):
		r.Fate = fateText(hg.NotRun)
	case errors.As(err, new(unansweredError)), errors.As(err, new(repeatableError)):
	case code == hg.ErrUnreachable && !answered:
		r.Fate = fateText(hg.NotRun)
	case answered || called:
		r.Fate = fateText(hg.FateOf(err))
	case code == mercury.ErrNoMethod:
		r.Fate = fateText(hg.NotRun)
	}
}

// fateText returns the JSON form of a fate.
func fateText(fate hg.Fate) string { return strings.ReplaceAll(fate.String(), " ", "_") }

// A rawJSON is encoded JSON that is inserted unchanged.
type rawJSON string

// MarshalJSON implements json.Marshaler.
func (j rawJSON) MarshalJSON() ([]byte, error) { return []byte(j), nil }
