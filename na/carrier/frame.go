package carrier

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

type (
	// A Header is a frame header. A carrier may keep, copy, and encode it, and should read no more of
	// it than it needs: Append encodes it with a payload, Payload returns the payload length in
	// bytes, and Kind.Bulk reports whether the payload is placed rather than delivered.
	Header = frame.Header
	// A Greeting is the content of a HELLO. Target is the context to which the peer connects, Listen
	// is the name under which the peer claims to be reachable, and Label holds the bytes that the
	// peer's carrier passed to Session.Hello.
	Greeting = frame.Greeting
	// A Bye is the last frame that a side sends in a session. It holds a code, a text of at most 512
	// bytes, and the number of the first message that was not accepted. Words encodes it and returns
	// nil for a Bye that is not to be sent.
	Bye = frame.Bye
)

// MaxWhole is the maximum payload length, in bytes, of a frame that is not placed in pieces: 65
// KiB, or 66,560. A piece may have up to PieceSize bytes and needs no buffer in the carrier.
const MaxWhole = frame.MaxWhole

// ParseHeader decodes a frame header. b must hold at least NeedHeader(b) bytes. Errors match
// codes.ErrProtocol or codes.ErrChecksum. If a frame is not Bulk and has a payload, its checksum
// covers both header and payload and is checked by Header.Verify.
func ParseHeader(b []byte) (Header, error) { return frame.Parse(b) }

// NeedHeader returns the number of bytes that ParseHeader needs, as far as it can be determined
// from b, the beginning of a frame.
func NeedHeader(b []byte) int { return frame.Need(b) }

// ParseGreeting decodes the bytes appended by Session.Hello.
func ParseGreeting(b []byte) (Greeting, error) { return frame.ParseGreeting(b) }

// ByeOf returns the Bye that rejects a peer because of err, which was returned by Core.Admit.
func ByeOf(err error) Bye { return frame.ByeOf(err) }

// ParseBye decodes the result of Bye.Words.
func ParseBye(words []byte) Bye { return frame.ParseBye(words) }
