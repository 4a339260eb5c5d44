package protocol

import "strings"

// maxReason is the maximum length in bytes of the text in an ABRT.
const maxReason = 1024

// abortCommand returns the ABRT of a native server, which carries the rank that caused the failure, or -1, and a
// text.
func abortCommand(rank int, err error) []byte {
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	return appendCommand(nil, CodeAbrt, encodeInt32s(rank), []byte(text))
}

// parseAbort parses the payload of an ABRT. It replaces control characters in the text with spaces, because the text
// may be displayed in a terminal.
func parseAbort(p []byte) (*AbortError, error) {
	if len(p) < 4 {
		return nil, violationError("ABRT with a length of %d", len(p))
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(p[4:]), "?"))
	return &AbortError{Rank: decodeInt32(p), Reason: text}, nil
}
