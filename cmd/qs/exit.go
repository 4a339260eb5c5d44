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

// The exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotRun      = 3
	exitMayHaveRun  = 4
	exitHandler     = 5
	exitInterrupted = 130 // 128 and SIGINT, as shells have it
)

// exitCodes explains the codes in the help.
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

// errorKinds name the exit codes in JSON.
var errorKinds = map[int]string{
	exitFailed: "failed", exitUsage: "usage", exitNotRun: "did_not_run", exitMayHaveRun: "may_have_run", exitHandler: "handler",
	exitInterrupted: "interrupted",
}

// usageError is a command line that cannot be understood.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// notSentError is an error before the method was called: another attempt may succeed. Errors of this machine, such as a file that is
// missing, are none: the same command fails again.
type notSentError struct{ err error }

func (e notSentError) Error() string { return e.err.Error() }
func (e notSentError) Unwrap() error { return e.err }

// refusedError is an error before anything was done, which the same command gets again until it is changed: the program refuses the request, or
// a certificate is missing.
type refusedError struct{ err error }

func (e refusedError) Error() string { return e.err.Error() }
func (e refusedError) Unwrap() error { return e.err }

// repeatableError is the error of a command that may be repeated as it is, whatever the fate of its requests: they move bytes, and those that
// have arrived are kept.
type repeatableError struct{ err error }

func (e repeatableError) Error() string { return e.err.Error() }
func (e repeatableError) Unwrap() error { return e.err }

// ranError is an error after the handler has begun: the method ran.
type ranError struct{ err error }

func (e ranError) Error() string { return e.err.Error() }
func (e ranError) Unwrap() error { return e.err }

// newOutputError returns the error of a call whose output could not be written.
func newOutputError(method string, err error) error {
	if err == nil {
		return nil
	}
	return ranError{fmt.Errorf("cannot write the output of %s: %w; the method ran", method, err)}
}

// unansweredError is that of a request which only asks, and has no answer: it has no fate, since it changes nothing.
type unansweredError struct {
	text string
	err  error
}

func (e unansweredError) Error() string { return e.text }
func (e unansweredError) Unwrap() error { return e.err }

// isNoMethod reports whether a program has refused a request for an RPC that it does not serve.
func isNoMethod(err error) bool {
	remote, ok := hg.RemoteOf(err)
	return ok && remote.Refused && remote.Code == hg.ErrNoMethod || errors.Is(err, mercury.ErrNoMethod)
}

// failedError is an error of a command that makes many requests: the fate of one of them is not that of the command.
type failedError struct{ err error }

func (e failedError) Error() string { return e.err.Error() }
func (e failedError) Unwrap() error { return e.err }

// withoutFate returns the first error of a command that makes many requests: as a failedError, unless no connection could be made.
func withoutFate(err error) error {
	call, ok := errors.AsType[*hg.Error](err)
	if err == nil || errors.Is(err, hg.ErrUnreachable) || ok && call.Op == "lookup" {
		return err
	}
	return failedError{err}
}

// brokenPromiseError is an error that a check has found, or that the end of a server has: an interrupt does not hide it.
type brokenPromiseError struct{ err error }

func (e brokenPromiseError) Error() string { return e.err.Error() }
func (e brokenPromiseError) Unwrap() error { return e.err }

// exitCode returns the code for an error of a command.
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

// An errorReport is the JSON of an error.
type errorReport struct {
	Command  string   `json:"command"`
	Kind     string   `json:"kind"`
	ExitCode int      `json:"exit_code"`
	Message  string   `json:"message"`
	Code     int      `json:"code,omitempty"` // of the library, or of the handler
	CodeText string   `json:"code_text,omitempty"`
	Fate     string   `json:"fate,omitempty"`
	Detail   any      `json:"detail,omitempty"`
	Kept     string   `json:"kept,omitempty"` // of a copy that was broken off
	ToDo     []string `json:"to_do,omitempty"`
}

// reportError prints the error of a command, if there is one, and returns its exit code.
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

// describeCall adds the code, the text and the fate of a call that has failed.
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
	case isNoMethod(err): // of a C program
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

// fateText is a fate in JSON.
func fateText(fate hg.Fate) string { return strings.ReplaceAll(fate.String(), " ", "_") }

// rawJSON is JSON that stays as it is.
type rawJSON string

// MarshalJSON implements json.Marshaler.
func (j rawJSON) MarshalJSON() ([]byte, error) { return []byte(j), nil }
