package qstest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/schema"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// UpdateEnv is the environment variable that makes Compatible write its file, if it is not empty: QUICKSILVER_UPDATE=1 go test ./...
const UpdateEnv = "QUICKSILVER_UPDATE"

// Compatible fails the test when methods, or the error codes that the process has defined (qs.DefineCode), differ from those in the file. The
// file is a text of qs.Schema, or of the tool qs schema, for the last release, or for another state that peers may run.
//
// The failure names each change that old clients or old servers would see, which of them see it, and the effect on them; docs/EVOLUTION.md has
// the rules. A change that breaks nothing fails the test, too, so that the file is written again and the change is reviewed. With UpdateEnv the
// file is written, and the test only logs the changes that break something.
func Compatible(t testing.TB, file string, methods ...qs.AnyMethod) {
	t.Helper()
	now := qs.Schema(methods...)
	update := os.Getenv(UpdateEnv) != ""
	committed, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !update:
		t.Fatalf("qstest: %s does not exist; create it with %s=1 go test, and commit it", file, UpdateEnv)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		t.Fatalf("qstest: %v", err)
	}
	committed = bytes.ReplaceAll(committed, []byte("\r\n"), []byte("\n")) // a checkout on Windows may have these line ends
	breaks, err := compareTexts(string(committed), now)
	if err != nil {
		t.Fatalf("qstest: %s: %v; recreate it with %s=1 go test", file, err, UpdateEnv)
	}
	report := t.Errorf
	if update {
		report = t.Logf
	}
	for _, b := range breaks {
		report("qstest: incompatible with the methods of %s:\n%v", file, b)
	}
	switch {
	case update:
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatalf("qstest: %v", err)
		}
		if err := os.WriteFile(file, []byte(now), 0o666); err != nil {
			t.Fatalf("qstest: %v", err)
		}
	case len(breaks) > 0:
		t.Logf("qstest: revert the change, or serve both under a new method name or error code. If no old peer is left: %s=1 go test", UpdateEnv)
	case now != string(committed):
		t.Errorf("qstest: the methods differ from %s, compatibly; update it with %s=1 go test, and commit it", file, UpdateEnv)
	}
}

// compareTexts compares two texts of qs.Schema.
func compareTexts(before, after string) ([]schema.Break, error) {
	old, err := schema.ParseProgram(before)
	if err != nil {
		return nil, err
	}
	now, err := schema.ParseProgram(after)
	if err != nil {
		return nil, err
	}
	return schema.Compare(old, now), nil
}
