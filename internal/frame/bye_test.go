package frame_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestWords checks that a BYE decodes to the encoded values, and that BYEs of earlier versions,
// which are a code and the text, can be read.
func TestWords(t *testing.T) {
	b := frame.Bye{Code: codes.ErrVersion, Next: 1<<56 - 1, Text: "peer speaks protocol version 3"}
	require.Equal(t, b, frame.ParseBye(b.Words()))
	earlier := append([]byte{byte(b.Code)}, b.Text...)
	require.Equal(t, frame.Bye{Code: b.Code, Text: b.Text}, frame.ParseBye(earlier))
	for n := range earlier {
		frame.ParseBye(earlier[:n:n])
	}
}

// TestCutText checks that a text that is too long is cut at a character, so that its receiver can
// print the rest.
func TestCutText(t *testing.T) {
	for _, row := range []struct {
		text string
		most int
		want string
	}{{"größe", 7, "größe"}, {"größe", 4, "grö"}, {"größe", 3, "gr"}, {"größe", 1, "g"}, {"größe", 0, ""}, {"größe", -5, ""}, {"日本", 2, ""}, {"\x80\x80", 1, ""}} {
		require.Equal(t, row.want, frame.CutText(row.text, row.most), "%d bytes of %q", row.most, row.text)
	}
	long := frame.Bye{Code: codes.ErrVersion, Text: "x" + strings.Repeat("ö", 300)}
	gotText := frame.ParseBye(long.Words()).Text
	require.True(t, utf8.ValidString(gotText), "%q", gotText)
	require.Len(t, gotText, 511)
}
