package carrier

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

type (
	// A Header is the header of a frame. A carrier may keep, copy and encode it, and should read no
	// more of it than it needs: Append encodes it with a payload, Payload returns the length of the
	// payload in bytes, and Kind.Bulk reports that the payload is placed rather than delivered.
	Header = frame.Header
	// A Greeting is the content of a HELLO. Target is the context that the peer connects to, Listen
	// the name under which the peer claims to be reachable, and Label the bytes that the carrier of
	// the peer passed to Session.Hello.
	Greeting = frame.Greeting
	// A Bye is the last frame of a side in a session: a code, a text of at most 512 bytes, and the
	// first message that was not taken. Words encodes it; the result is nil for a Bye that is not
	// sent.
	Bye = frame.Bye
)

// MaxWhole is the length in bytes of the longest payload of a frame that is not placed in pieces:
// 65 KiB, that is 66,560. A piece may have up to PieceSize, and needs no buffer of the carrier.
const MaxWhole = frame.MaxWhole

// ParseHeader decodes the header of a frame. b has at least NeedHeader(b) bytes. An error matches
// codes.ErrProtocol or codes.ErrChecksum. The checksum of a frame that is not Bulk and has a
// payload covers both: Header.Verify checks it.
func ParseHeader(b []byte) (Header, error) { return frame.Parse(b) }

// NeedHeader returns how many bytes ParseHeader needs, as far as b, the beginning of a frame,
// determines.
func NeedHeader(b []byte) int { return frame.Need(b) }

// ParseGreeting decodes bytes that Session.Hello has appended.
func ParseGreeting(b []byte) (Greeting, error) { return frame.ParseGreeting(b) }

// ByeOf returns the Bye that rejects a peer because of err, an error of Core.Admit.
func ByeOf(err error) Bye { return frame.ByeOf(err) }

// ParseBye decodes the result of Bye.Words.
func ParseBye(words []byte) Bye { return frame.ParseBye(words) }
