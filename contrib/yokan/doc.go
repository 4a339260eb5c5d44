// Package yokan is a client of Yokan, the key-value service of Mochi, in Go alone: package mercury speaks the
// service's protocol, and no C library is needed.
//
//	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
//	db, err := yokan.Open(ctx, node, "ofi+tcp://10.0.0.7:4000", 42, yokan.Config{})
//	err = db.Put(ctx, []byte("key"), []byte("value"))
//	value, err := db.Get(ctx, []byte("key"))
//
// The service must have an address of ofi+tcp. Releases up to 0.9 and those from 0.10 encode requests differently
// and share the names of their RPCs: Open detects the encoding of the provider. Both are tested.
//
// # How data travels
//
// Keys and values of 3 KiB or less in total travel inside the request and the response (Yokan's direct RPCs). For
// more than that the client lends its memory, and the service reads and writes it (bulk). With(Direct) and
// With(Bulk) choose one of the two for every size.
//
// A service cannot send more than the client has made room for. Get, GetMulti, ListKeys and ListPairs make room
// themselves: they ask for the lengths, or ask again with more room, up to Config.MaxBytes. GetPacked and GetEach
// fill buffers of the caller.
//
// # Contexts
//
// A context ends every operation. Releases from 0.10 get the deadline, and give up transfers that take longer than
// half of the time that is left; older releases do not get it, and none gets a cancel. An operation that ended early
// may still be carried out.
//
// # Errors
//
// Every error is an *Error. errors.Is matches the Code that the provider answered, ErrKeyNotFound for example; the
// codes of package mercury for an error of the call, mercury.ErrTimeout for example; and ErrAnswer for an
// answer that does not fit the request. Error.Fate says whether it was
// carried out.
//
// # What it does not do
//
// Collections of documents, callbacks for each pair (yk_fetch, yk_iter), migration, and the configuration of
// providers, which is bedrock's.
package yokan
