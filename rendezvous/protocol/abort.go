package protocol

import "strings"

// maxReason bounds the text of an ABRT in bytes.
const maxReason = 1024

// abortCommand is the ABRT of a native server: the rank that is the reason, or -1, and a text.
func abortCommand(rank int, err error) []byte {
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	return appendCommand(nil, CodeAbrt, int32s(rank), []byte(text))
}

// parseAbort reads it. The text is shown to people, so nothing in it may move a cursor.
func parseAbort(p []byte) (*AbortError, error) {
	if len(p) < 4 {
		return nil, violation("ABRT with a length of %d", len(p))
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(p[4:]), "?"))
	return &AbortError{Rank: getInt32(p), Reason: text}, nil
}
