package grpcqs

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/hg"
	nacodes "github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// firstOwn is added to a code of gRPC that package qs has no code for.
const firstOwn = 128

// codeOf is the code that a status has on the wire, for qs.Retry, qs.LogCalls and callers that are not gRPC's.
var codeOf = [...]qs.Code{
	codes.OK:                 0,
	codes.Canceled:           firstOwn + 1,
	codes.Unknown:            firstOwn + 2,
	codes.InvalidArgument:    qs.ErrBadInput,
	codes.DeadlineExceeded:   firstOwn + 4,
	codes.NotFound:           qs.ErrNotFound,
	codes.AlreadyExists:      qs.ErrAlreadyExists,
	codes.PermissionDenied:   qs.ErrDenied,
	codes.ResourceExhausted:  qs.ErrExhausted,
	codes.FailedPrecondition: firstOwn + 9,
	codes.Aborted:            qs.ErrAborted,
	codes.OutOfRange:         firstOwn + 11,
	codes.Unimplemented:      firstOwn + 12,
	codes.Internal:           qs.ErrInternal,
	codes.Unavailable:        qs.ErrUnavailable,
	codes.DataLoss:           firstOwn + 15,
	codes.Unauthenticated:    firstOwn + 16,
}

// libraryCodes are what the codes of the library become.
var libraryCodes = map[qs.Code]codes.Code{
	qs.ErrCanceled:        codes.Canceled,
	qs.ErrTimeout:         codes.DeadlineExceeded,
	hg.ErrPermission:      codes.PermissionDenied,
	hg.ErrOverflow:        codes.ResourceExhausted,
	hg.ErrAgain:           codes.ResourceExhausted,
	hg.ErrNoCredit:        codes.ResourceExhausted,
	nacodes.ErrNoMemory:   codes.ResourceExhausted,
	qs.ErrNoMethod:        codes.Unimplemented,
	hg.ErrUnsupported:     codes.Unimplemented,
	nacodes.ErrProtocol:   codes.Unimplemented, // the two sides have different definitions
	nacodes.ErrVersion:    codes.Unimplemented,
	qs.ErrInvalid:         codes.Internal,
	hg.ErrPanic:           codes.Internal,
	nacodes.ErrNoResponse: codes.Internal,
	hg.ErrHandler:         codes.Unknown,
	qs.ErrUnreachable:     codes.Unavailable,
	qs.ErrPeerLost:        codes.Unavailable,
	qs.ErrClosed:          codes.Unavailable,
	qs.ErrNotReady:        codes.Unavailable,
	qs.ErrDraining:        codes.Unavailable,
	qs.ErrNoEntry:         codes.Unavailable, // no such host
	hg.ErrRefused:         codes.Unavailable,
	nacodes.ErrChecksum:   codes.DataLoss,
	qs.ErrBadInput:        codes.InvalidArgument,
	qs.ErrNotFound:        codes.NotFound,
	qs.ErrAlreadyExists:   codes.AlreadyExists,
	qs.ErrDenied:          codes.PermissionDenied,
	qs.ErrExhausted:       codes.ResourceExhausted,
	qs.ErrAborted:         codes.Aborted,
	qs.ErrInternal:        codes.Internal,
	qs.ErrUnavailable:     codes.Unavailable,
}

// wireCode returns the code that a status has on the wire.
func wireCode(c codes.Code) qs.Code {
	if int(c) < len(codeOf) {
		return codeOf[c]
	}
	return codeOf[codes.Unknown]
}

// grpcCode returns what a code of package qs becomes.
func grpcCode(c qs.Code) codes.Code {
	if known, ok := libraryCodes[c]; ok {
		return known
	}
	if c > firstOwn && int(c-firstOwn) < len(codeOf) && codeOf[c-firstOwn] == c {
		return codes.Code(c - firstOwn)
	}
	return codes.Unknown
}

// A statusError is the error of a call: a status, and what package qs knows of the call.
type statusError struct {
	st  *status.Status
	err error // of package qs
}

// Error returns the text of the status, as errors of package status do.
func (e *statusError) Error() string { return e.st.Err().Error() }

// GRPCStatus is what status.FromError asks for.
func (e *statusError) GRPCStatus() *status.Status { return e.st }

// Unwrap returns the error of package qs.
func (e *statusError) Unwrap() error { return e.err }

// Is matches an error with the same status, as errors of package status do.
func (e *statusError) Is(target error) bool {
	is, ok := e.st.Err().(interface{ Is(error) bool })
	return ok && is.Is(target)
}

// FateOf returns what became of the request of a call that ended with err: qs.NotRun says that it is certain that its handler has not
// begun. It is qs.Ran for nil. An error that was made of the status alone, by an interceptor for example, has lost it, and is qs.MaybeRan.
func FateOf(err error) qs.Fate {
	if e, ok := errors.AsType[*statusError](err); ok {
		return qs.FateOf(e.err)
	}
	if err == nil {
		return qs.Ran
	}
	return qs.MaybeRan
}

// refused returns the error of a call of which nothing was sent.
func refused(c codes.Code, format string, args ...any) error {
	st := status.Newf(c, format, args...)
	return &statusError{st, &hg.Error{Op: "forward", Fate: qs.NotRun, Err: hg.Errorf(wireCode(c), "%s", st.Message())}}
}

// ended returns the error of a call that ended with err, which is that of package qs, and what the server has said of its end.
func ended(err error) (error, *end) {
	if err == nil {
		return nil, nil
	}
	if e, ok := err.(*statusError); ok {
		return e, nil
	}
	if e, ok := errors.AsType[*endError](err); ok {
		return &statusError{e.st, err}, e.end
	}
	if e, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok { // a message that cannot be encoded, or decoded
		return &statusError{e.GRPCStatus(), err}, nil
	}
	if r, ok := hg.RemoteOf(err); ok {
		e := &end{}
		if r.Detail(e) == nil && e.st != nil {
			return &statusError{e.st, err}, e
		}
		text := r.Text
		if text == "" {
			text = r.Code.Error()
		}
		return &statusError{status.New(grpcCode(r.Code), text), err}, nil
	}
	c := qs.CodeOf(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c = qs.ErrTimeout
	case errors.Is(err, context.Canceled):
		c = qs.ErrCanceled
	}
	text := err.Error()
	switch c { // the texts that programs compare
	case qs.ErrTimeout:
		text = context.DeadlineExceeded.Error() + ": " + text
	case qs.ErrCanceled:
		text = context.Canceled.Error() + ": " + text
	}
	return &statusError{status.New(grpcCode(c), text), err}, nil
}

// handlerStatus returns the status of what a handler has returned, whose context is ctx.
func handlerStatus(ctx context.Context, err error) *status.Status {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), hg.ErrClosed) { // else the caller would believe that it was canceled
		return status.New(codes.Unavailable, "the target is shutting down")
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err)
	}
	return status.New(codes.Unknown, err.Error())
}

// answerError returns the error with which package qs answers st; the end goes with it if there is room.
func (e *end) answerError() error {
	return hg.WithDetail(hg.Errorf(wireCode(e.st.Code()), "%s", e.st.Message()), e)
}

// marshalError is the status of a message that cannot be encoded.
func marshalError(err error) error {
	return refused(codes.Internal, "grpc: error while marshaling: %v", err)
}

// A badMessage is the error of a message that cannot be decoded.
func badMessage(err error) error {
	return status.Error(codes.Internal, fmt.Sprintf("grpc: error unmarshalling request: %v", err))
}
