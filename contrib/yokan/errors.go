package yokan

import (
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// A Code is the error code in a provider's answer. It implements error, for use with errors.Is. The
// numbers are those of Yokan's yk_return_t.
type Code int32

// Error codes.
const (
	ErrAllocation      Code = iota + 1 // YOKAN_ERR_ALLOCATION; the others are named likewise
	ErrInvalidMID                      // invalid Margo instance at the provider
	ErrInvalidArgs                     // for example an empty key
	ErrInvalidProvider                 // no such provider, or a provider of another service
	ErrInvalidDatabase                 // the provider has no database
	ErrInvalidBackend
	ErrInvalidConfig
	ErrInvalidID
	ErrInvalidFilter
	ErrFromMercury // the provider could not decode the request, or could not read or write the client's memory
	ErrFromArgobots
	ErrFromRemi
	ErrOpUnsupported // not supported by the backend or the release
	ErrOpForbidden
	ErrKeyNotFound
	ErrBufferSize // the value does not fit into the buffer
	ErrKeyExists  // the key exists, and the mode is NewOnly
	ErrCorruption
	ErrIO
	ErrIncomplete
	ErrTimeout
	ErrAborted
	ErrBusy
	ErrExpired
	ErrTryAgain
	ErrSystem
	ErrCanceled
	ErrPermission
	ErrMode // the modes exclude each other, or the backend does not support one
	ErrNonContiguous
	ErrReadOnly
	ErrMigrated // the database has moved to another provider
	ErrNotListening
	ErrStopIteration
	ErrOther
)

// codes holds the names and texts of the codes, indexed by number.
var codes = [...]struct{ name, text string }{
	ErrAllocation:      {"YOKAN_ERR_ALLOCATION", "the provider is out of memory"},
	ErrInvalidMID:      {"YOKAN_ERR_INVALID_MID", "the provider has no Margo instance"},
	ErrInvalidArgs:     {"YOKAN_ERR_INVALID_ARGS", "invalid argument"},
	ErrInvalidProvider: {"YOKAN_ERR_INVALID_PROVIDER", "not a provider of Yokan"},
	ErrInvalidDatabase: {"YOKAN_ERR_INVALID_DATABASE", "the provider has no database"},
	ErrInvalidBackend:  {"YOKAN_ERR_INVALID_BACKEND", "unknown backend type"},
	ErrInvalidConfig:   {"YOKAN_ERR_INVALID_CONFIG", "invalid configuration"},
	ErrInvalidID:       {"YOKAN_ERR_INVALID_ID", "invalid document ID"},
	ErrInvalidFilter:   {"YOKAN_ERR_INVALID_FILTER", "invalid filter"},
	ErrFromMercury:     {"YOKAN_ERR_FROM_MERCURY", "the provider could not decode the request or transfer the data; see its log"},
	ErrFromArgobots:    {"YOKAN_ERR_FROM_ARGOBOTS", "Argobots failed at the provider"},
	ErrFromRemi:        {"YOKAN_ERR_FROM_REMI", "REMI failed at the provider"},
	ErrOpUnsupported:   {"YOKAN_ERR_OP_UNSUPPORTED", "the operation is not supported"},
	ErrOpForbidden:     {"YOKAN_ERR_OP_FORBIDDEN", "the operation is forbidden"},
	ErrKeyNotFound:     {"YOKAN_ERR_KEY_NOT_FOUND", "key not found"},
	ErrBufferSize:      {"YOKAN_ERR_BUFFER_SIZE", "buffer too small"},
	ErrKeyExists:       {"YOKAN_ERR_KEY_EXISTS", "key exists"},
	ErrCorruption:      {"YOKAN_ERR_CORRUPTION", "the data are corrupt"},
	ErrIO:              {"YOKAN_ERR_IO", "the provider could not read or write its storage"},
	ErrIncomplete:      {"YOKAN_ERR_INCOMPLETE", "incomplete operation"},
	ErrTimeout:         {"YOKAN_ERR_TIMEOUT", "timeout at the provider"},
	ErrAborted:         {"YOKAN_ERR_ABORTED", "the operation was aborted"},
	ErrBusy:            {"YOKAN_ERR_BUSY", "the backend is busy"},
	ErrExpired:         {"YOKAN_ERR_EXPIRED", "the operation expired"},
	ErrTryAgain:        {"YOKAN_ERR_TRY_AGAIN", "try again"},
	ErrSystem:          {"YOKAN_ERR_SYSTEM", "system error at the provider"},
	ErrCanceled:        {"YOKAN_ERR_CANCELED", "canceled at the provider"},
	ErrPermission:      {"YOKAN_ERR_PERMISSION", "permission denied"},
	ErrMode:            {"YOKAN_ERR_MODE", "the modes exclude each other, or the backend does not support them"},
	ErrNonContiguous:   {"YOKAN_ERR_NONCONTIG", "the buffer is not contiguous"},
	ErrReadOnly:        {"YOKAN_ERR_READONLY", "the buffer is read-only"},
	ErrMigrated:        {"YOKAN_ERR_MIGRATED", "the database has migrated to another provider"},
	ErrNotListening:    {"YOKAN_ERR_MID_NOT_LISTENING", "the Margo instance does not listen"},
	ErrStopIteration:   {"YOKAN_STOP_ITERATION", "the iteration was stopped"},
	ErrOther:           {"YOKAN_ERR_OTHER", "other error"},
}

// Error returns a text such as "key not found (YOKAN_ERR_KEY_NOT_FOUND)".
func (c Code) Error() string {
	if c <= 0 || int(c) >= len(codes) {
		return fmt.Sprintf("unknown code %d", int32(c))
	}
	return fmt.Sprintf("%s (%s)", codes[c].text, codes[c].name)
}

// ErrAnswer is the cause of an Error if a provider's answer does not fit the request, because it
// has a different number of sizes or because sizes exceed the buffer. No part of such an answer is
// returned.
var ErrAnswer = errors.New("the response does not match the request")

// An Error describes a failed operation of a Database.
type Error struct {
	Op       string // "open", "put", "get", "length", "exists", "erase", "count" or "list"
	Addr     string // address of the provider's process
	Provider uint16
	// Fate is the fate of the operation's last call. It is NotRun if the call was not sent or
	// certainly did not run, Ran if a response arrived, even one with an error, and MaybeRan
	// otherwise.
	Fate mercury.Fate
	Err  error // a Code, a *mercury.Error, or an error that wraps a Code or ErrAnswer
}

// Error returns a text such as "yokan: get at ofi+tcp://127.0.0.1:4000, provider 42: key not found
// (YOKAN_ERR_KEY_NOT_FOUND)".
func (e *Error) Error() string {
	return fmt.Sprintf("yokan: %s at %s, provider %d: %v", e.Op, e.Addr, e.Provider, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
