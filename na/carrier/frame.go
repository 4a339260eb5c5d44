package carrier

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

type (
	// A Header is the front of a frame. A carrier may keep, copy and encode it, and reads no more of it than it needs: Append encodes it with
	// a payload, Payload is the length of the payload in bytes, and Kind.Bulk says that the payload is placed rather than delivered.
	Header = frame.Header
	// A Greeting is what a HELLO says. Target is the context that the peer wants, Listen the name under which the peer says
	// that it can be dialed, and Label what the carrier of the peer gave to Session.Hello.
	Greeting = frame.Greeting
	// A Bye is the last that a side says in a session: a code, a text of at most 512 bytes, and the first message that was not taken. Words encodes it; it is nil for a Bye that is not said.
	Bye = frame.Bye
)

// MaxWhole is the length in bytes of the longest payload of a frame that is not placed in pieces: 65 KiB, that is 66,560. A piece may have up to
// PieceSize, and needs no buffer of the carrier.
const MaxWhole = frame.MaxWhole

// ParseHeader decodes the front of a frame. b holds at least NeedHeader(b) bytes. An error matches codes.ErrProtocol or codes.ErrChecksum. The
// checksum of a frame that is not Bulk and has a payload covers both: Header.Verify checks it.
func ParseHeader(b []byte) (Header, error) { return frame.Parse(b) }

// NeedHeader is how many bytes ParseHeader needs, as far as b, the beginning of a frame, tells.
func NeedHeader(b []byte) int { return frame.Need(b) }

// ParseGreeting decodes what Session.Hello has appended.
func ParseGreeting(b []byte) (Greeting, error) { return frame.ParseGreeting(b) }

// ByeOf is what turns a peer away because of err, for an error of Core.Admit.
func ByeOf(err error) Bye { return frame.ByeOf(err) }

// ParseBye decodes what Bye.Words has encoded.
func ParseBye(words []byte) Bye { return frame.ParseBye(words) }
