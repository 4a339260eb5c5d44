package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPages checks that the plots and tables of the repository are generated from the figures
// beside them.
func TestPages(t *testing.T) {
	made, err := page("../../../docs")
	require.NoError(t, err)
	require.Len(t, made, 9)
	for name, b := range made {
		have, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, have), "%s is not what the figures make: go run . writes it anew", name)
		if strings.HasSuffix(name, ".svg") {
			parse(t, b)
		}
	}
}

// parse checks that an image is well-formed and returns its texts and the names of its elements.
func parse(t *testing.T, image []byte) (texts []string, elements map[string]int) {
	t.Helper()
	elements = map[string]int{}
	d := xml.NewDecoder(bytes.NewReader(image))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts, elements
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				texts = append(texts, text)
			}
		}
	}
}

func newRun(system, command string, rounds ...string) *run {
	r := &run{System: system, Command: command}
	for _, printed := range rounds {
		r.Rounds = append(r.Rounds, json.RawMessage(printed))
	}
	return r
}

// TestCalls checks that figures of "qs perf", and of a program that measures others and has no
// latency, are one plot and one table.
func TestCalls(t *testing.T) {
	f := &file{Runs: []*run{
		newRun("ours", "qs perf",
			`[{"lat_p50_us":30,"rate_per_s":{"1":1000,"16":2000,"64":3000},"bulk_mib_per_s":150}]`,
			`[{"lat_p50_us":10,"rate_per_s":{"1":3000,"16":6000,"64":1234567},"bulk_mib_per_s":300}]`,
			`[{"lat_p50_us":20,"rate_per_s":{"1":2000,"16":4000,"64":2000},"bulk_mib_per_s":200}]`),
		newRun("theirs", "peer", `[{"rate_per_s":{"1":50,"16":60,"64":70}}]`),
	}}
	images, table, err := calls(f)
	require.NoError(t, err)
	require.Contains(t, table, "|ours|20 (10–30)\\*|2,000 (1,000–3,000)\\*|4,000 (2,000–6,000)\\*|3,000 (2,000–1,230,000)\\*|200 (150–300)|\n")
	require.Contains(t, table, "|theirs||50|60|70||\n")
	texts, _ := parse(t, images["latency"])
	require.Subset(t, texts, []string{"ours", "20", "microseconds; less is better"})
	require.NotContains(t, texts, "theirs")
	texts, elements := parse(t, images["rate"])
	require.Subset(t, texts, []string{"ours", "theirs", "1 in flight", "16 in flight", "64 in flight", "2,000", "4,000", "3,000", "70"})
	require.GreaterOrEqual(t, elements["path"], 6, "a bar for each of three rates of two systems")
}

// TestShared checks that figures of one host have plots and a table of their own.
func TestShared(t *testing.T) {
	ours := newRun("ours", "qs perf -transport sm", `[{"lat_p50_us":2,"rate_per_s":{"1":1000}}]`)
	ours.Shared = true
	images, table, err := calls(&file{Runs: []*run{newRun("theirs", "peer", `[{"lat_p50_us":3,"rate_per_s":{"1":50}}]`), ours}})
	require.NoError(t, err)
	require.Len(t, images, 4)
	require.Equal(t, 2, strings.Count(table, "p50, us"))
	texts, _ := parse(t, images["shared-rate"])
	require.Contains(t, texts, "ours")
	require.NotContains(t, texts, "theirs")
}

// TestBodies checks a table with a row for each system, and a column for each size and each number
// of calls in flight.
func TestBodies(t *testing.T) {
	f := &file{Runs: []*run{
		newRun("ours", "qs perf -size 1024 -inflight 1,3,16", `[{"rate_per_s":{"1":10,"3":20,"16":30}}]`),
		newRun("theirs", "peers -size 2048", `[{"rate_per_s":{"3":7}}]`),
	}}
	_, table, err := bodies(f)
	require.NoError(t, err)
	require.Contains(t, table, "|calls/s|1 KiB, 1|1 KiB, 3|1 KiB, 16|2 KiB, 1|2 KiB, 3|2 KiB, 16|\n")
	require.Contains(t, table, "|ours|10|20|30||||\n")
	require.Contains(t, table, "|theirs|||||7.0||\n")
	_, _, err = bodies(&file{Runs: []*run{newRun("ours", "qs perf", `[{}]`)}})
	require.ErrorContains(t, err, "no -size")
	_, _, err = short(f)
	require.ErrorContains(t, err, "quicksilver, sm")
}

// TestSizes checks that a table over sizes, and single transfers of one system, are a line each.
func TestSizes(t *testing.T) {
	f := &file{Runs: []*run{
		newRun("ours", "qs perf -op read",
			`{"sizes":[{"size":4096,"value":10},{"size":65536,"value":100},{"size":1048576,"value":1000}]}`),
		newRun("theirs", "peers -bulk 65536", `[{"bulk_mib_per_s":50}]`),
		newRun("theirs", "peers -bulk 1048576", `[{"bulk_mib_per_s":500}]`),
	}}
	images, table, err := bandwidth(f)
	require.NoError(t, err)
	require.Contains(t, table, "|ours|10|100||1,000|||\n")
	require.Contains(t, table, "|theirs||50||500|||\n")
	texts, elements := parse(t, images["bulk"])
	require.Subset(t, texts, []string{"ours", "theirs", "4 KiB", "64 KiB", "1 MiB"})
	require.Greater(t, elements["path"], 7, "two lines and their points")
}

// TestPlain checks a table with a row for each system, and columns by the printed names.
func TestPlain(t *testing.T) {
	f := &file{Runs: []*run{newRun("ours", "a", `{"x":0.0234,"y":2}`, `{"x":0.03,"y":2}`), newRun("theirs", "b", `[{"y":3}]`)}}
	images, table, err := plain(column{"of x", "x"}, column{"of no run", "z"}, column{"of y", "y"})(f)
	require.NoError(t, err)
	require.Empty(t, images)
	require.Equal(t, "||of x|of y|\n|---|---:|---:|\n|ours|0.027 (0.023–0.030)|2.0|\n|theirs||3.0|\n", table)
}

// TestRefused checks that invalid input is an error that names it, and nothing is drawn of it.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "JSON",
		`{"runs":[{"system":"a","command":"a"}]}`:                        "a: no rounds",
		`{"runs":[{"system":"a","command":"a","rounds":[[{},{}]]}]}`:     "a: 2 results",
		`{"runs":[{"system":"a","command":"a","rounds":[{"sizes":1}]}]}`: "a: json",
	} {
		name := filepath.Join(t.TempDir(), "calls.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		_, err := readFile(name)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, name)
	}
	_, err := replace([]byte("<!-- figures: calls -->\n"), "calls", "")
	require.ErrorContains(t, err, "calls")
}

// TestMeasure checks that commands are run in turn, and that their output replaces the earlier
// rounds or is added to them.
func TestMeasure(t *testing.T) {
	f := &file{Runs: []*run{newRun("a", `echo [{"lat_p50_us":1}]`, `[{}]`), newRun("b", `echo {"sizes":[]}`)}}
	require.NoError(t, f.measure(1, false))
	require.NoError(t, f.measure(1, true))
	name := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, f.write(name))
	read, err := readFile(name)
	require.NoError(t, err)
	require.Len(t, read.Runs[0].Rounds, 2)
	v, ok := read.Runs[0].median(p50)
	require.True(t, ok)
	require.Equal(t, 1.0, v)
	f.Runs[1].Command = "false"
	require.ErrorContains(t, f.measure(1, false), "false")
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0.0234: "0.023", 0.25: "0.25", 9.94: "9.9", 9.96: "10", 123.4: "123", 1234: "1,230", 1234567: "1,230,000", 999999: "1,000,000"} {
		require.Equal(t, want, number(v))
	}
}
