package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/load"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/soak"
)

var update = flag.Bool("update", false, "write docs/qs.schema.json and testdata/transcript-*.txt anew")

// schemaFile is the schema for users: a JSON Schema of the output of each command, by its name in
// $defs.
const schemaFile = "../../docs/qs.schema.json"

// outputs are the types of the output with -json. Types that are printed repeatedly use one line
// each time.
var outputs = map[string]any{
	"bench": load.Result{},
	"cp":    copyResult{}, "error": struct {
		Error errorReport `json:"error"`
	}{},
	"ger": guaranteeReport{}, "health": healthReport{}, "ger-address": []contextReport{}, "mercury-ping": mercuryPing{}, "mercury-rate": mercuryResult{},
	"mercury-serve": mercuryListening{}, "perf": []bench.Result{}, "perf-idle": bench.IdleResult{}, "perf-mixed": bench.MixedResult{}, "perf-cores": []bench.CoresResult{},
	"perf-table": bench.Table{}, "ping": pingStats{}, "rendezvous": rendezvousReport{}, "rpcs": []rpcReport{}, "schema": []schemaReport{}, "run": lineReport{}, "note": noteReport{},
	"serve": serveReport{}, "soak": soak.Report{}, "top": topReport{}, "version": buildReport{},
}

// buildSchema returns the schema of all outputs, from their types.
func buildSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	all := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", Title: "What the commands of qs print with --json",
		Defs: map[string]*jsonschema.Schema{},
	}
	// The output of call is that of the method.
	any := &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[any](): {}}}
	for name, value := range outputs {
		s, err := jsonschema.ForType(reflect.TypeOf(value), any)
		require.NoError(t, err)
		all.Defs[name] = s
	}
	facts := &jsonschema.Schema{Types: []string{"null", "boolean", "integer", "string", "array"}}
	all.Defs["info"] = &jsonschema.Schema{Type: "object", AdditionalProperties: facts}
	return all
}

// TestSchema checks that the schema in the repository matches the types.
func TestSchema(t *testing.T) {
	want, err := json.MarshalIndent(buildSchema(t), "", "  ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, want, 0o666))
	}
	got, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "go test ./cmd/qs -run TestSchema -update writes it anew")
}

// TestJSONTopic checks that "qs help json" and docs/OPERATIONS.md name every command that prints
// JSON, and every part of the schema once.
func TestJSONTopic(t *testing.T) {
	page := readFile(t, "../../docs/OPERATIONS.md")
	listed, defs := map[string]bool{}, map[string]bool{}
	for _, o := range jsonOutputs {
		listed[o.command] = true
		require.Contains(t, page, fmt.Sprintf("|`%s`|%s|%s|\n", o.command, o.what, strings.Join(o.defs, ", ")))
		for _, name := range o.defs {
			require.False(t, defs[name], name)
			defs[name] = true
		}
	}
	for _, c := range (&app{}).newRoot().Commands() {
		require.Equal(t, !c.Hidden && c.Name() != "help" && c.Name() != "completion", listed[c.Name()], c.Name())
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(buildSchema(t).Defs)), slices.Collect(maps.Keys(defs)))
}

// requireSchema wants every line of an output to be of the schema of a command.
func requireSchema(t *testing.T, name string, output []byte) {
	t.Helper()
	b, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	var all jsonschema.Schema
	require.NoError(t, json.Unmarshal(b, &all))
	require.NotNil(t, all.Defs[name], name)
	schema, err := all.Defs[name].Resolve(nil)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(output))
	lines := 0
	for ; ; lines++ {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			break
		} else {
			require.NoError(t, err, "%s", output)
		}
		require.NoError(t, schema.Validate(v), "%s: %s", name, output)
		requireSnakeCase(t, name, v)
	}
	require.Positive(t, lines, "%s", name)
}

// dataKeys are objects whose keys are data.
var dataKeys = []string{"rate_per_s", "faults", "kinds", "outcomes", "withdraws", "broken"}

func requireSnakeCase(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			requireSnakeCase(t, where, element)
		}
	case map[string]any:
		for key, value := range v {
			require.Regexp(t, `^[a-z][a-z0-9_]*$`, key, where)
			if !slices.Contains(dataKeys, key) {
				requireSnakeCase(t, key, value)
			}
		}
	}
}

// TestJSONOfCommands checks that the output of each command with -json matches the schema, also for
// errors.
func TestJSONOfCommands(t *testing.T) {
	t.Parallel()
	s := serveFiles(t, "")
	file := filepath.Join(t.TempDir(), "f")
	writeFile(t, file, noise(5000))
	quick := "-time 1ms -inflight 2"
	for name, lines := range map[string][]string{
		"cp":          {"cp " + file + " %/f", "cp %/f " + file + ".back"},
		"ger":         {"ger"},
		"ger-address": {"ger %"},
		"health":      {"health %"},
		"info":        {"info", "info %"},
		"perf":        {"perf -bulk 1000 " + quick, "perf -target % -bulk 0 " + quick},
		"perf-cores":  {"perf -op cores -bulk 0 " + quick},
		"perf-idle":   {"perf -op idle -peers 2 -time 1ms"},
		"perf-mixed":  {"perf -op mixed -bulk 1000 " + quick},
		"perf-table":  {"perf -op lat -bulk 64 " + quick},
		"ping":        {"ping -count 2 -interval 0 %"},
		"schema":      {"schema %"},
		"rpcs":        {"rpcs -all %", "rpcs " + startTypedTarget(t, true), "rpcs %"},
		"top":         {"top -count 2 -interval 1ms %", "top -once -interval 10ms -all %"},
		"version":     {"version"},
	} {
		for _, line := range lines {
			requireSchema(t, name, run(t, 0, strings.Fields(strings.ReplaceAll("-json "+line, "%", s.addr))...).out.Bytes())
		}
	}
	q := newQS(t, "serve", "-child", "-json", "-debug", "127.0.0.1:0")
	q.cmd.Stdin = strings.NewReader("")
	requireSchema(t, "serve", q.start().wait(0).out.Bytes())
	for line, code := range map[string]int{
		"pign": exitUsage, "ping -cuont 1": exitUsage, "ping": exitUsage, "call here x": exitUsage, "serve -write": exitUsage,
		"call tcp://127.0.0.1:1 x": exitNotRun, "call % nosuch": exitUsage, "call % qs/file/open {\"Path\":\"nosuch\"}": exitHandler,
		"ping -count 1 tcp://127.0.0.1:1": exitNotRun, "serve -root no-such-folder": exitFailed,
	} {
		q := run(t, code, strings.Fields(strings.ReplaceAll("-json "+line, "%", s.addr))...)
		requireSchema(t, "error", q.errors.Bytes())
		var e struct{ Error errorReport }
		require.NoError(t, json.Unmarshal(q.errors.Bytes(), &e))
		require.Equal(t, code, e.Error.ExitCode, line)
		require.Equal(t, errorKinds[code], e.Error.Kind, line)
	}
}
