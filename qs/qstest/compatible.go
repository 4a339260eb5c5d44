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

// UpdateEnv is the name of an environment variable. If it is set to a non-empty value, Compatible
// writes its file, as in QUICKSILVER_UPDATE=1 go test ./...
const UpdateEnv = "QUICKSILVER_UPDATE"

// Compatible fails the test if the methods, or the error codes defined by the process with
// qs.DefineCode, differ from those in the file. The file contains the output of qs.Schema, or of
// the command "qs schema", for the last release or any other version that peers may run.
//
// For each incompatible change, the failure message states whether old clients or old servers are
// affected, and how. See docs/EVOLUTION.md for the rules. A compatible change also fails the test,
// so that the file is updated and the change is reviewed. If UpdateEnv is set, Compatible writes
// the file and only logs incompatible changes.
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
	committed = bytes.ReplaceAll(committed, []byte("\r\n"), []byte("\n")) // a checkout on Windows may have CRLF line endings
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

// compareTexts returns the incompatible changes from before to after, which are outputs of
// qs.Schema.
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
