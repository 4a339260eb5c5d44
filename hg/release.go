//go:build !quicksilver_next

package hg

// The versions of the headers that this release reads: wireVersion is its own, which it writes, oldestWire that of the release before.
const (
	oldestWire  = 4
	wireVersion = 4
	ownFields   = 0 // words of fields behind the header of a request that this release writes
)

// requestFromWire and responseFromWire rewrite a header of any version that this release reads, in its place, as header.go has it. They report
// false for any other version.
func requestFromWire(b []byte) bool  { return b[0] == wireVersion }
func responseFromWire(b []byte) bool { return b[0] == wireVersion }

// requestToWire rewrites the header of a request, as header.go has it, in its place as wireVersion has it, and requestToOlder from there to an
// older version. responseToWire rewrites that of a response for a version; 0 is wireVersion.
func requestToWire([]byte)          {}
func requestToOlder([]byte, uint16) {}
func responseToWire([]byte, uint8)  {}

// putFields and takeFields write and read the fields behind the header of a request.
func putFields([]byte)  {}
func takeFields([]byte) {}
