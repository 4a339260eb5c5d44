package yokan

// A Mode modifies the operations of a Database. See Database.With. Modes are combined with |. An operation with a mode
// that the backend does not support fails with ErrMode.
type Mode int32

// Modes. The numbers are Yokan's.
const (
	Inclusive   Mode = 1 << 0  // ListKeys and ListPairs start with the key from, if it exists, instead of after it
	Append      Mode = 1 << 1  // Put appends to the existing value
	Consume     Mode = 1 << 2  // Get erases the pairs that it returns
	Wait        Mode = 1 << 3  // Get, Length, Exists and Erase wait until the key exists; it must be put with Notify
	Notify      Mode = 1 << 3  // Put wakes operations that wait for the key
	NewOnly     Mode = 1 << 4  // Put does not replace values: with one key it fails with ErrKeyExists, with several it skips existing ones
	ExistOnly   Mode = 1 << 5  // Put only replaces values: with one key it fails with ErrKeyNotFound, with several it skips missing ones
	NoPrefix    Mode = 1 << 6  // ListKeys and ListPairs remove the prefix filter from the keys
	IgnoreKeys  Mode = 1 << 7  // ListPairs returns values with empty keys; some backends still return the last key
	KeepLast    Mode = 3 << 7  // like IgnoreKeys, but the last key is returned
	Suffix      Mode = 1 << 9  // the filter of ListKeys and ListPairs is a suffix
	LuaFilter   Mode = 1 << 10 // the filter is a Lua program
	FilterValue Mode = 1 << 12 // the filter also needs the value
	LibFilter   Mode = 1 << 13 // the filter names a library and a function in it

	// Direct sends keys and values inside requests and responses. With Bulk the service reads and writes memory that
	// the client lends. If neither is set, the size determines the method. These modes are not sent to the provider,
	// which supports both methods. With Direct, a response longer than the node's MaxBody, which is 64 MiB by default,
	// results in mercury.ErrOverflow. If Consume is also set, its values are lost.
	Direct Mode = 1 << 14
	Bulk   Mode = 1 << 30
)

// transport holds the modes that are not sent to the provider.
const transport = Direct | Bulk

// incompatible lists combinations of modes that exclude each other.
var incompatible = []Mode{Append | NewOnly, NewOnly | ExistOnly, Suffix | LuaFilter, Suffix | LibFilter, LuaFilter | LibFilter, Direct | Bulk}

// isValid reports whether the modes in m may be combined.
func (m Mode) isValid() bool {
	for _, pair := range incompatible {
		if m&pair == pair {
			return false
		}
	}
	return true
}
