//go:build !quicksilver_next

package hg

// Header versions that this release supports. It writes wireVersion, and reads versions starting at
// oldestWire, the version of the previous release.
const (
	oldestWire  = 4
	wireVersion = 4
	ownFields   = 0 // words of appended fields that this release writes in a request header
)

// requestFromWire and responseFromWire convert a header of any supported version, in place, to the
// layout in header.go. They return false for other versions.
func requestFromWire(b []byte) bool  { return b[0] == wireVersion }
func responseFromWire(b []byte) bool { return b[0] == wireVersion }

// requestToWire converts a request header, in place, from the layout in header.go to wireVersion,
// and requestToOlder converts a header of wireVersion to an older version. responseToWire converts
// a response header from the layout in header.go to the given version, where 0 means wireVersion.
func requestToWire([]byte)          {}
func requestToOlder([]byte, uint16) {}
func responseToWire([]byte, uint8)  {}

// putFields writes the appended fields of a request, and takeFields reads them.
func putFields([]byte)  {}
func takeFields([]byte) {}
