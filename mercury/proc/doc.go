// Package proc encodes Go values as hg_proc does in C Mercury. The encoding is the sequence of the fields, without
// types or names.
//
//	C                      Go
//	int32_t, uint8_t …     int32, uint8 …; hg_bool_t is bool, 1 byte
//	hg_size_t              uint64
//	float, double          float32, float64, as hg_proc_memcpy copies their 4 or 8 bytes
//	hg_string_t            string, without a zero byte in it; a NULL is read as ""
//	hg_const_string_t      the same
//	either, if NULL counts *string: nil is NULL, and is not the same as a pointer to ""
//	hg_bulk_t              mercury.Bulk, or another type with AppendProc and ReadProc
//	struct                 struct: its fields, in order, all of them exported
//	char[16], T[n]         [16]byte, [n]T
//	a count, then items    []T with a tag that gives the count's width: `proc:"u8"`, u16, u32 or u64
//	bytes to the end       []byte with `proc:"rest"`, as the last field; or a []byte alone
//	no argument            struct{}
//
// int, uint and uintptr are refused, because they have no fixed width: use int32 or int64. Other pointers, maps,
// interfaces and recursive types are refused, too. The byte order is little-endian, as on the machines that package
// mercury supports. The encoding of a C library that was built with MERCURY_USE_XDR is different and not supported.
//
// For any bytes Unmarshal returns an error or a value; it allocates at most a constant times their length.
package proc
