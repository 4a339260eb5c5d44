package httpgate

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A connectError is an error as the protocol Connect says it in JSON.
type connectError struct {
	Code    string          `json:"code"`
	Message string          `json:"message,omitempty"`
	Details []connectDetail `json:"details,omitempty"`
}

// A connectDetail is a message of Protocol Buffers, with what it says in JSON beside it.
type connectDetail struct {
	Type  string          `json:"type"`
	Value string          `json:"value"` // base64 without padding
	Debug json.RawMessage `json:"debug,omitempty"`
}

// The types of details.
const (
	// outcomeType is message Outcome { string fate = 1; uint32 code = 2; }: a fate is not_run, may_have_run or ran, a code one of package qs.
	outcomeType = "quicksilver.v1.Outcome"
	// detailType is message Detail { string json = 1; }: what the handler has attached.
	detailType = "quicksilver.v1.Detail"
)

var fates = map[qs.Fate]string{qs.NotRun: "not_run", qs.MaybeRan: "may_have_run", qs.Ran: "ran"}

// statuses are those of HTTP that the protocol Connect gives its codes.
var statuses = map[string]int{
	"canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404, "already_exists": 409,
	"permission_denied": 403, "resource_exhausted": 429, "aborted": 409, "unimplemented": 501, "internal": 500, "unavailable": 503, "data_loss": 500,
}

// codeOf returns the code of Connect for one of package qs.
func codeOf(code qs.Code) string {
	switch code {
	case qs.ErrNotFound:
		return "not_found"
	case qs.ErrAlreadyExists:
		return "already_exists"
	case qs.ErrBadInput:
		return "invalid_argument"
	case qs.ErrDenied, qs.ErrPermission:
		return "permission_denied"
	case qs.ErrExhausted, hg.ErrOverflow, hg.ErrAgain, hg.ErrNoCredit, na.ErrNoMemory, na.ErrMsgSize:
		return "resource_exhausted"
	case qs.ErrAborted:
		return "aborted"
	case qs.ErrUnavailable, qs.ErrNotReady, qs.ErrDraining, qs.ErrUnreachable, qs.ErrPeerLost, qs.ErrClosed, qs.ErrNoEntry:
		return "unavailable"
	case qs.ErrTimeout:
		return "deadline_exceeded"
	case qs.ErrCanceled:
		return "canceled"
	case qs.ErrNoMethod, hg.ErrUnsupported:
		return "unimplemented"
	case qs.ErrInternal, hg.ErrPanic, na.ErrNoResponse, na.ErrProtocol, qs.ErrInvalid:
		return "internal"
	case na.ErrChecksum:
		return "data_loss"
	}
	return "unknown" // a handler's error without a code, or with one of the program's own
}

// errorOf returns what a client gets of the error of a call.
func errorOf(err error) connectError {
	if bad := (badInput{}); errors.As(err, &bad) {
		return connectError{"invalid_argument", bad.Error(), []connectDetail{outcome(qs.NotRun, qs.ErrBadInput)}}
	}
	if bad := (badOutput{}); errors.As(err, &bad) {
		return connectError{"internal", bad.Error(), []connectDetail{outcome(qs.Ran, qs.ErrInternal)}}
	}
	code, text := qs.CodeOf(err), err.Error()
	remote, answered := hg.RemoteOf(err)
	if answered {
		text = remote.Text
		if code == hg.ErrRemote { // what says nothing of this call elsewhere does here: the handler panicked, for example
			switch code = hg.ErrHandler; remote.Code {
			case hg.ErrPanic, na.ErrNoResponse:
				code = remote.Code
			}
		}
	}
	e := connectError{codeOf(code), text, []connectDetail{outcome(qs.FateOf(err), code)}}
	if answered {
		var v typed.Free
		if remote.Detail(&v) == nil {
			if said, err := typed.ToJSON(v); err == nil {
				e.Details = append(e.Details, connectDetail{detailType, message(said, 0), json.RawMessage(said)})
			}
		}
	}
	return e
}

// outcome returns the detail that says what became of a request.
func outcome(fate qs.Fate, code qs.Code) connectDetail {
	debug, _ := json.Marshal(struct {
		Fate string `json:"fate"`
		Code uint8  `json:"code"`
		Name string `json:"name"`
	}{fates[fate], uint8(code), code.Error()})
	return connectDetail{outcomeType, message(fates[fate], uint64(code)), debug}
}

// message encodes a message of Protocol Buffers with a string in field 1, and a number in field 2 unless that is 0.
func message(text string, number uint64) string {
	b := binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(text)))
	b = append(b, text...)
	if number != 0 {
		b = binary.AppendUvarint(append(b, 2<<3), number)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// json returns e in JSON.
func (e connectError) json() []byte {
	b, err := json.Marshal(e)
	if err != nil { // a detail of the program's that is none
		e.Details = e.Details[:1]
		b, _ = json.Marshal(e)
	}
	return b
}

// fail answers with the error of a call.
func (g *Gate) fail(w http.ResponseWriter, err error) {
	e := errorOf(err)
	write(w, statuses[e.Code], e)
}

// refuseMethod answers a request for a method that the gate does not serve, as it does one for a method that its Peer does not serve.
func (g *Gate) refuseMethod(w http.ResponseWriter, name string) {
	text := fmt.Sprintf("method %s is not served by this gate: is it given to it under this name?", name)
	g.fail(w, &hg.Error{Op: "forward", RPC: name, Fate: qs.NotRun, Err: na.WithText(qs.ErrNoMethod, text)})
}

// refuse answers a request that leads to no call.
func (g *Gate) refuse(w http.ResponseWriter, status int, code, text string) {
	write(w, status, connectError{code, text, []connectDetail{outcome(qs.NotRun, qs.ErrInvalid)}})
}

func write(w http.ResponseWriter, status int, e connectError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(e.json(), '\n'))
}
