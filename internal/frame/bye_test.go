package frame_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestWords: last words come back as they were, and those of earlier versions, which are a code and the text, can be read.
func TestWords(t *testing.T) {
	b := frame.Bye{Code: codes.ErrVersion, Next: 1<<56 - 1, Text: "peer speaks protocol version 3"}
	require.Equal(t, b, frame.ParseBye(b.Words()))
	earlier := append([]byte{byte(b.Code)}, b.Text...)
	require.Equal(t, frame.Bye{Code: b.Code, Text: b.Text}, frame.ParseBye(earlier))
	for n := range earlier {
		frame.ParseBye(earlier[:n:n])
	}
}
