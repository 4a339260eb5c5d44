//go:build ignore

// Command types checks the types of all packages of the module and of their tests for another system, GOOS and GOARCH, with the
// files that this system would have. It reads what they import as source: compiling the standard library for a system takes
// minutes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// A listed package is what go list says about one; those that it imports come before it.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
}

// known are the packages that have been checked, by path.
type known map[string]*types.Package

// An importer knows a package's imports by what the package calls them.
type importer struct {
	known
	names map[string]string
}

func (i importer) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if actual, ok := i.names[path]; ok {
		path = actual
	}
	if p := i.known[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("go list does not name %s", path)
}

func main() {
	list := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./...")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err == nil {
		err = list.Start()
	}
	checked, bad := 0, 0
	for all, d := (known{}), json.NewDecoder(out); err == nil; {
		var p listed
		if err = d.Decode(&p); err != nil {
			break
		}
		ours := p.Module != nil && p.Module.Main
		if filepath.Ext(p.ImportPath) == ".test" || p.ImportPath == "unsafe" { // the main package of a test is made by go test
			continue
		}
		for _, wrong := range all.check(p, ours) {
			bad++
			fmt.Fprintln(os.Stderr, wrong)
		}
		if ours {
			checked++
		}
	}
	if errors.Is(err, io.EOF) {
		err = list.Wait()
	}
	if err != nil || bad > 0 || checked == 0 {
		fmt.Fprintf(os.Stderr, "%d packages checked, %d errors, %v\n", checked, bad, err)
		os.Exit(1)
	}
}

// check adds a package, and returns what is wrong with one of ours. Of others only the declarations are read.
func (k known) check(p listed, ours bool) (wrong []error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return []error{err}
		}
		files = append(files, f)
	}
	cfg := types.Config{
		Importer:         importer{k, p.ImportMap},
		IgnoreFuncBodies: !ours,
		FakeImportC:      true,
		Sizes:            types.SizesFor("gc", env("GOARCH", runtime.GOARCH)),
		Error: func(err error) {
			if ours {
				wrong = append(wrong, err)
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		cfg.GoVersion = "go" + p.Module.GoVersion
	}
	k[p.ImportPath], _ = cfg.Check(p.ImportPath, fset, files, nil)
	return wrong
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
