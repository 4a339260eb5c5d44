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

// ownCodeBase is added to a gRPC code to form the wire code of a status for which package qs has no
// code.
const ownCodeBase = 128

// wireCodes maps gRPC codes to wire codes, which are seen by qs.Retry, qs.LogCalls and callers that
// do not use gRPC.
var wireCodes = [...]qs.Code{
	codes.OK:                 0,
	codes.Canceled:           ownCodeBase + 1,
	codes.Unknown:            ownCodeBase + 2,
	codes.InvalidArgument:    qs.ErrBadInput,
	codes.DeadlineExceeded:   ownCodeBase + 4,
	codes.NotFound:           qs.ErrNotFound,
	codes.AlreadyExists:      qs.ErrAlreadyExists,
	codes.PermissionDenied:   qs.ErrDenied,
	codes.ResourceExhausted:  qs.ErrExhausted,
	codes.FailedPrecondition: ownCodeBase + 9,
	codes.Aborted:            qs.ErrAborted,
	codes.OutOfRange:         ownCodeBase + 11,
	codes.Unimplemented:      ownCodeBase + 12,
	codes.Internal:           qs.ErrInternal,
	codes.Unavailable:        qs.ErrUnavailable,
	codes.DataLoss:           ownCodeBase + 15,
	codes.Unauthenticated:    ownCodeBase + 16,
}

// grpcCodes maps the library's codes to gRPC codes. It includes the inverse of wireCodes.
var grpcCodes = map[qs.Code]codes.Code{
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

// toWireCode returns the wire code of a gRPC code. Unknown gRPC codes are mapped to that of
// codes.Unknown.
func toWireCode(c codes.Code) qs.Code {
	if int(c) < len(wireCodes) {
		return wireCodes[c]
	}
	return wireCodes[codes.Unknown]
}

// toGRPCCode returns the gRPC code for a code of package qs. Codes without a counterpart are mapped
// to codes.Unknown.
func toGRPCCode(c qs.Code) codes.Code {
	if known, ok := grpcCodes[c]; ok {
		return known
	}
	if c > ownCodeBase && int(c-ownCodeBase) < len(wireCodes) && wireCodes[c-ownCodeBase] == c {
		return codes.Code(c - ownCodeBase)
	}
	return codes.Unknown
}

// A statusError is the error of a call. It holds the call's status and the underlying error of
// package qs.
type statusError struct {
	st  *status.Status
	err error // the error of package qs, for errors.Is and FateOf
}

// Error returns the text of the status, like errors of package status.
func (e *statusError) Error() string { return e.st.Err().Error() }

// GRPCStatus returns the status, for status.FromError.
func (e *statusError) GRPCStatus() *status.Status { return e.st }

// Unwrap returns the error of package qs.
func (e *statusError) Unwrap() error { return e.err }

// Is reports whether target is an error with the same status, like errors of package status.
func (e *statusError) Is(target error) bool {
	is, ok := e.st.Err().(interface{ Is(error) bool })
	return ok && is.Is(target)
}

// FateOf reports what happened to the request of a call that ended with err. It returns qs.NotRun
// if the handler certainly did not begin, and qs.Ran if err is nil. For an error that carries no
// fate, for example one that an interceptor created from the status alone, it returns qs.MaybeRan.
func FateOf(err error) qs.Fate {
	if e, ok := errors.AsType[*statusError](err); ok {
		return qs.FateOf(e.err)
	}
	if err == nil {
		return qs.Ran
	}
	return qs.MaybeRan
}

// newUnsentError returns the error for a call that failed before anything was sent. Its fate is
// qs.NotRun.
func newUnsentError(c codes.Code, format string, args ...any) error {
	st := status.Newf(c, format, args...)
	return &statusError{st, &hg.Error{
		Op: "forward", Fate: qs.NotRun, Err: hg.Errorf(toWireCode(c), "%s", st.Message()),
	}}
}

// toStatusError converts err, the error of package qs with which a call ended. It also returns the
// end of the call if the server sent one.
func toStatusError(err error) (error, *callEnd) {
	if err == nil {
		return nil, nil
	}
	if e, ok := err.(*statusError); ok {
		return e, nil
	}
	if e, ok := errors.AsType[*endError](err); ok {
		return &statusError{e.st, err}, e.callEnd
	}
	if e, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok { // a message could not be encoded or decoded
		return &statusError{e.GRPCStatus(), err}, nil
	}
	if r, ok := hg.RemoteOf(err); ok {
		e := &callEnd{}
		if r.Detail(e) == nil && e.st != nil {
			return &statusError{e.st, err}, e
		}
		text := r.Text
		if text == "" {
			text = r.Code.Error()
		}
		return &statusError{status.New(toGRPCCode(r.Code), text), err}, nil
	}
	c := qs.CodeOf(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c = qs.ErrTimeout
	case errors.Is(err, context.Canceled):
		c = qs.ErrCanceled
	}
	text := err.Error()
	switch c { // programs compare these texts: the status text begins with that of the context's error, as in grpc-go
	case qs.ErrTimeout:
		text = context.DeadlineExceeded.Error() + ": " + text
	case qs.ErrCanceled:
		text = context.Canceled.Error() + ": " + text
	}
	return &statusError{status.New(toGRPCCode(c), text), err}, nil
}

// handlerStatus returns the status for err, which was returned by a handler whose context is ctx.
func handlerStatus(ctx context.Context, err error) *status.Status {
	if err == nil {
		return nil
	}
	// Shutdown canceled the context. The code Canceled would tell the client that it had canceled
	// the call itself.
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), hg.ErrClosed) {
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

// answerError returns the error with which the handler of package qs answers the call. The end e is
// the error's detail, which package hg omits if it is too long.
func (e *callEnd) answerError() error {
	return hg.WithDetail(hg.Errorf(toWireCode(e.st.Code()), "%s", e.st.Message()), e)
}

// errMarshal returns the status for a message that cannot be encoded.
func errMarshal(err error) error {
	return newUnsentError(codes.Internal, "grpc: error while marshaling: %v", err)
}

// errUnmarshal returns the status for a message that cannot be decoded.
func errUnmarshal(err error) error {
	return status.Error(codes.Internal, fmt.Sprintf("grpc: error unmarshalling request: %v", err))
}
