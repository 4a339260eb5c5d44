// Package yokan is a pure Go client for Yokan, the key-value service of Mochi. Package mercury implements the service's
// protocol; no C library is required.
//
//	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
//	db, err := yokan.Open(ctx, node, "ofi+tcp://10.0.0.7:4000", 42, yokan.Config{})
//	err = db.Put(ctx, []byte("key"), []byte("value"))
//	value, err := db.Get(ctx, []byte("key"))
//
// The service must have an ofi+tcp address. Releases up to 0.9 and releases from 0.10 encode requests differently but
// use the same RPC names. Open detects the provider's encoding. Both encodings are tested.
//
// # How data travels
//
// Keys and values of at most 3 KiB in total travel inside the request and the response, using Yokan's direct RPCs. For
// larger data the client lends its memory, which the service reads and writes (bulk). With(Direct) and With(Bulk)
// select one of the two methods for all sizes.
//
// A service cannot send more data than the client has allocated memory for. Get, GetMulti, ListKeys and ListPairs
// allocate memory themselves: they query the lengths, or repeat the request with more memory, up to Config.MaxBytes.
// GetPacked and GetEach fill buffers provided by the caller.
//
// # Contexts
//
// Every operation ends when its context is done. Releases from 0.10 receive the deadline and give up on transfers that
// take longer than half of the remaining time. Older releases do not receive it, and no release is notified of a
// cancellation. An operation that ended early may still be executed.
//
// # Errors
//
// Every error is an *Error. It matches, by errors.Is, the Code with which the provider answered, such as
// ErrKeyNotFound; the code of package mercury if the call failed, such as mercury.ErrTimeout; or ErrAnswer if the
// answer does not fit the request. Error.Fate reports whether the operation was executed.
//
// # What is not supported
//
// The package does not support collections of documents, callbacks for each pair (yk_fetch, yk_iter), migration, or the
// configuration of providers, which is the task of bedrock.
package yokan
