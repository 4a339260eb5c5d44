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

// A connectError is the JSON representation of an error in the Connect protocol.
type connectError struct {
	Code    string          `json:"code"`
	Message string          `json:"message,omitempty"`
	Details []connectDetail `json:"details,omitempty"`
}

// A connectDetail is one detail of a connectError. It is a Protocol Buffers message in Value, with
// the same contents as JSON in Debug.
type connectDetail struct {
	Type  string          `json:"type"`
	Value string          `json:"value"` // base64 without padding
	Debug json.RawMessage `json:"debug,omitempty"`
}

// Message types of error details.
const (
	// outcomeType is the type of message Outcome { string fate = 1; uint32 code = 2; }. The fate is
	// not_run, may_have_run or ran. The code is an error code of package qs.
	outcomeType = "quicksilver.v1.Outcome"
	// detailType is the type of message Detail { string json = 1; }, which holds the detail
	// attached by the handler.
	detailType = "quicksilver.v1.Detail"
)

var fateNames = map[qs.Fate]string{qs.NotRun: "not_run", qs.MaybeRan: "may_have_run", qs.Ran: "ran"}

// httpStatuses maps error codes of the Connect protocol to HTTP status codes.
var httpStatuses = map[string]int{
	"canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404, "already_exists": 409,
	"permission_denied": 403, "resource_exhausted": 429, "aborted": 409, "unimplemented": 501, "internal": 500, "unavailable": 503, "data_loss": 500,
}

// connectCode returns the code of the Connect protocol that corresponds to a code of package qs.
func connectCode(code qs.Code) string {
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
	return "unknown" // the handler returned an error without a code, or with a code chosen by the program
}

// newConnectError converts err, the error of a call, to the error returned to the HTTP client.
func newConnectError(err error) connectError {
	if bad := (inputError{}); errors.As(err, &bad) {
		return connectError{"invalid_argument", bad.Error(), []connectDetail{newOutcomeDetail(qs.NotRun, qs.ErrBadInput)}}
	}
	if bad := (outputError{}); errors.As(err, &bad) {
		return connectError{"internal", bad.Error(), []connectDetail{newOutcomeDetail(qs.Ran, qs.ErrInternal)}}
	}
	code, text := qs.CodeOf(err), err.Error()
	remote, answered := hg.RemoteOf(err)
	if answered {
		text = remote.Text
		if code == hg.ErrRemote { // report the code at the target, for example that of a panic in the handler
			switch code = hg.ErrHandler; remote.Code {
			case hg.ErrPanic, na.ErrNoResponse:
				code = remote.Code
			}
		}
	}
	e := connectError{connectCode(code), text, []connectDetail{newOutcomeDetail(qs.FateOf(err), code)}}
	if answered {
		var v typed.Free
		if remote.Detail(&v) == nil {
			if said, err := typed.ToJSON(v); err == nil {
				e.Details = append(e.Details, connectDetail{detailType, encodeMessage(said, 0), json.RawMessage(said)})
			}
		}
	}
	return e
}

// newOutcomeDetail returns a detail of type outcomeType with the given fate and code.
func newOutcomeDetail(fate qs.Fate, code qs.Code) connectDetail {
	debug, _ := json.Marshal(struct {
		Fate string `json:"fate"`
		Code uint8  `json:"code"`
		Name string `json:"name"`
	}{fateNames[fate], uint8(code), code.Error()})
	return connectDetail{outcomeType, encodeMessage(fateNames[fate], uint64(code)), debug}
}

// encodeMessage returns the base64 encoding of a Protocol Buffers message with text in field 1 and,
// unless it is 0, number in field 2.
func encodeMessage(text string, number uint64) string {
	b := binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(text)))
	b = append(b, text...)
	if number != 0 {
		b = binary.AppendUvarint(append(b, 2<<3), number)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// marshal returns e as JSON. If the detail attached by the handler is not valid JSON, it is
// omitted.
func (e connectError) marshal() []byte {
	b, err := json.Marshal(e)
	if err != nil { // the handler's detail is not valid JSON
		e.Details = e.Details[:1]
		b, _ = json.Marshal(e)
	}
	return b
}

// writeError responds to a request whose call failed with err.
func (g *Gate) writeError(w http.ResponseWriter, err error) {
	e := newConnectError(err)
	writeJSON(w, httpStatuses[e.Code], e)
}

// writeNoMethod responds to a request for a method that the gate does not serve. The response is
// the same as if the target did not serve the method.
func (g *Gate) writeNoMethod(w http.ResponseWriter, name string) {
	text := fmt.Sprintf("method %s is not served by this gate", name)
	g.writeError(w, &hg.Error{Op: "forward", RPC: name, Fate: qs.NotRun, Err: na.WithText(qs.ErrNoMethod, text)})
}

// writeRefusal responds to a request for which no call is made.
func (g *Gate) writeRefusal(w http.ResponseWriter, status int, code, text string) {
	writeJSON(w, status, connectError{code, text, []connectDetail{newOutcomeDetail(qs.NotRun, qs.ErrInvalid)}})
}

func writeJSON(w http.ResponseWriter, status int, e connectError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(e.marshal(), '\n'))
}
