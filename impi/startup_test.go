package impi_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A goldenLine is a line of a golden exchange.
type goldenLine struct {
	rank       int
	word, text string
	bytes      []byte
}

func readGolden(t *testing.T, file string) (size int, auth protocol.Auth, lines []goldenLine) {
	t.Helper()
	all, err := os.ReadFile(file)
	require.NoError(t, err)
	for at, text := range strings.Split(strings.TrimSpace(string(all)), "\n") {
		f := strings.Fields(text)
		if f[0] == "#" {
			continue
		}
		if f[0] == "server" {
			size, err = strconv.Atoi(f[1])
			require.NoError(t, err)
			auth = goldenAuth(t, f[2:])
			continue
		}
		l := goldenLine{word: f[1], text: strings.Join(f[2:], " ")}
		l.rank, err = strconv.Atoi(f[0])
		require.NoError(t, err, "line %d", at+1)
		if strings.Contains("><!", l.word) {
			l.bytes, err = hex.DecodeString(strings.Join(f[2:], ""))
			require.NoError(t, err, "line %d", at+1)
		}
		lines = append(lines, l)
	}
	return size, auth, lines
}

func goldenAuth(t *testing.T, f []string) (auth protocol.Auth) {
	t.Helper()
	if len(f) > 1 {
		key, err := strconv.ParseUint(f[1], 16, 64)
		require.NoError(t, err)
		auth.Key = &key
	}
	auth.None = f[0] == "none" || f[0] == "both"
	auth.Bare = f[0] == "bare"
	return auth
}

// eachGolden runs f for every golden exchange, with whole lines and with one byte per write.
func eachGolden(t *testing.T, f func(t *testing.T, size int, auth protocol.Auth, lines []goldenLine, cut func([]byte) [][]byte)) {
	files, err := filepath.Glob("testdata/startup-*.txt")
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		for name, n := range map[string]int{"whole": 1 << 20, "byte by byte": 1} {
			t.Run(filepath.Base(file)+"/"+name, func(t *testing.T) {
				size, auth, lines := readGolden(t, file)
				f(t, size, auth, lines, func(b []byte) (cut [][]byte) {
					for len(b) > 0 {
						k := min(n, len(b))
						cut, b = append(cut, b[:k]), b[k:]
					}
					return cut
				})
			})
		}
	}
}

// TestGoldenServer (L-T1, L-T37) checks that the server sends the bytes of the golden exchanges, to
// each client and after each line.
func TestGoldenServer(t *testing.T) {
	eachGolden(t, func(t *testing.T, size int, auth protocol.Auth, lines []goldenLine, cut func([]byte) [][]byte) {
		s, err := protocol.NewServer(protocol.ServerConfig{Form: protocol.Strict, Size: size, Auth: auth})
		require.NoError(t, err)
		gotBytes := make([][]byte, size)
		closed := make([]bool, size)
		quiet := func() {
			for rank, b := range gotBytes {
				require.Empty(t, b, "to client %d", rank)
			}
		}
		for _, l := range lines {
			where := fmt.Sprint(l.rank, " ", l.word, " ", l.text)
			switch l.word {
			case "new":
				s.Connect(l.rank)
			case ">", "!":
				quiet()
				for _, b := range cut(l.bytes) {
					s.Receive(l.rank, b)
				}
			case "<":
				require.GreaterOrEqual(t, len(gotBytes[l.rank]), len(l.bytes), where)
				require.Equal(t, l.bytes, gotBytes[l.rank][:len(l.bytes)], where)
				gotBytes[l.rank] = gotBytes[l.rank][len(l.bytes):]
			case "closed":
				require.True(t, closed[l.rank], where)
			}
			out, _ := s.Take()
			for _, o := range out {
				gotBytes[o.Conn] = append(gotBytes[o.Conn], o.Send...)
				closed[o.Conn] = closed[o.Conn] || o.Close
			}
		}
		quiet()
	})
}

// TestGoldenClients (L-T1, L-T37) checks that clients send the bytes of the golden exchanges.
func TestGoldenClients(t *testing.T) {
	eachGolden(t, func(t *testing.T, size int, _ protocol.Auth, lines []goldenLine, cut func([]byte) [][]byte) {
		clients := make([]*protocol.Client, size)
		gotBytes := make([][]byte, size)
		for _, l := range lines {
			where := fmt.Sprint(l.rank, " ", l.word, " ", l.text)
			var err error
			c := clients[l.rank]
			switch l.word {
			case "new":
				c, err = protocol.NewClient(protocol.ClientConfig{
					Form: protocol.Strict, Rank: l.rank, Auth: goldenAuth(t, strings.Fields(l.text)),
				})
				clients[l.rank] = c
			case "submit":
				label, data, _ := strings.Cut(l.text, " ")
				n, bad := strconv.ParseInt(label, 16, 32)
				require.NoError(t, bad)
				b, bad := hex.DecodeString(strings.ReplaceAll(data, " ", ""))
				require.NoError(t, bad)
				err = c.Submit(protocol.Label(n), b)
			case "done":
				err = c.Done()
			case "fini":
				err = c.Fini()
			case ">":
				require.GreaterOrEqual(t, len(gotBytes[l.rank]), len(l.bytes), where)
				require.Equal(t, l.bytes, gotBytes[l.rank][:len(l.bytes)], where)
				gotBytes[l.rank] = gotBytes[l.rank][len(l.bytes):]
			case "<":
				for _, b := range cut(l.bytes) {
					require.NoError(t, c.Receive(b), where)
				}
			}
			require.NoError(t, err, where)
			out, _ := c.Take()
			gotBytes[l.rank] = append(gotBytes[l.rank], out...)
		}
		for rank, b := range gotBytes {
			require.Empty(t, b, "of client %d", rank)
		}
	})
}
