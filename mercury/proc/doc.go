// Package proc encodes Go values like hg_proc in C Mercury. An encoding is the sequence of the fields, without types or
// names.
//
//	C                      Go
//	int32_t, uint8_t …     int32, uint8 …; hg_bool_t is bool, 1 byte
//	hg_size_t              uint64
//	float, double          float32, float64, in 4 or 8 bytes as copied by hg_proc_memcpy
//	hg_string_t            string without zero bytes; NULL is decoded as ""
//	hg_const_string_t      the same
//	a string or NULL       *string; nil is NULL, which differs from a pointer to ""
//	hg_bulk_t              mercury.Bulk, or another type with AppendProc and ReadProc
//	struct                 struct with the same fields in order, all of them exported
//	char[16], T[n]         [16]byte, [n]T
//	a count, then items    []T with a tag that gives the count's width: `proc:"u8"`, u16, u32 or u64
//	bytes to the end       []byte with `proc:"rest"` as the last field, or a []byte alone
//	no argument            struct{}
//
// Types int, uint and uintptr are not supported because they have no fixed width. Use int32 or int64 instead. Other
// pointers, maps, interfaces and recursive types are not supported either. The byte order is little-endian, as on the
// machines that package mercury supports. The different encoding of a C library built with MERCURY_USE_XDR is not
// supported.
//
// For arbitrary input, Unmarshal returns an error or a value, and allocates memory at most proportional to the length
// of the input.
package proc
