//go:build !quicksilver_next

package hg

// The versions of the headers that this release reads: it writes wireVersion, and also reads older
// ones from oldestWire on, which is that of the release before.
const (
	oldestWire  = 4
	wireVersion = 4
	ownFields   = 0 // words of appended fields that this release writes in the header of a request
)

// requestFromWire and responseFromWire convert, in place, a header of any version that this release
// reads to the layout in header.go. They return false for other versions.
func requestFromWire(b []byte) bool  { return b[0] == wireVersion }
func responseFromWire(b []byte) bool { return b[0] == wireVersion }

// requestToWire converts, in place, the header of a request from the layout in header.go to
// wireVersion, and requestToOlder from there to an older version. responseToWire converts that of a
// response to a version; 0 is wireVersion.
func requestToWire([]byte)          {}
func requestToOlder([]byte, uint16) {}
func responseToWire([]byte, uint8)  {}

// putFields and takeFields write and read the appended fields of a request.
func putFields([]byte)  {}
func takeFields([]byte) {}
