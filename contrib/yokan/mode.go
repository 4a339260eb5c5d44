package yokan

// A Mode changes what the operations of a Database do: Database.With. Modes are combined with |.
// Not every backend supports every mode; an unsupported one is ErrMode.
type Mode int32

// The modes, with Yokan's numbers.
const (
	Inclusive   Mode = 1 << 0  // ListKeys and ListPairs begin with the key from, if it is there, and not behind it
	Append      Mode = 1 << 1  // Put appends to the value that is there
	Consume     Mode = 1 << 2  // Get erases what it returns
	Wait        Mode = 1 << 3  // Get, Length, Exists and Erase wait until the key is there; it must be put with Notify
	Notify      Mode = 1 << 3  // Put wakes operations that wait for the key
	NewOnly     Mode = 1 << 4  // Put does not replace values: with one key it fails with ErrKeyExists, of several it skips existing ones
	ExistOnly   Mode = 1 << 5  // Put only replaces values: with one key it fails with ErrKeyNotFound, of several it skips missing ones
	NoPrefix    Mode = 1 << 6  // ListKeys and ListPairs remove the filter prefix from the keys
	IgnoreKeys  Mode = 1 << 7  // ListPairs returns values and empty keys; some backends nevertheless the last key
	KeepLast    Mode = 3 << 7  // IgnoreKeys, but for the last key
	Suffix      Mode = 1 << 9  // the filter of ListKeys and ListPairs is a suffix
	LuaFilter   Mode = 1 << 10 // the filter is a program in Lua
	FilterValue Mode = 1 << 12 // the filter needs the value, too
	LibFilter   Mode = 1 << 13 // the filter names a library and a function of it

	// Direct sends keys and values inside of requests and responses; with Bulk the service reads and writes memory
	// that the client lends. Without either the size decides. The mode is not sent to the provider, which serves both.
	// With Direct a response longer than the node's MaxBody, 64 MiB by default, is mercury.ErrOverflow, and with Consume
	// its values are lost.
	Direct Mode = 1 << 14
	Bulk   Mode = 1 << 30
)

// transport holds the modes that are not sent to the provider.
const transport = Direct | Bulk

// incompatible are modes that exclude each other.
var incompatible = []Mode{Append | NewOnly, NewOnly | ExistOnly, Suffix | LuaFilter, Suffix | LibFilter, LuaFilter | LibFilter, Direct | Bulk}

// isValid reports whether the modes in m go together.
func (m Mode) isValid() bool {
	for _, pair := range incompatible {
		if m&pair == pair {
			return false
		}
	}
	return true
}
