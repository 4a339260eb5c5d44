//go:build ignore

// Command types type-checks all packages of the module, including their tests, for the system that GOOS and GOARCH
// specify. It uses the files that are built for that system. It type-checks imported packages from source, because
// compiling the standard library for another system takes minutes.
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

// A listed package is the part of go list's output that describes one package. It follows the packages that it imports.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct {
		Main      bool
		GoVersion string
	}
}

// known maps import paths to the packages that have been checked.
type known map[string]*types.Package

// An importer resolves import paths as they appear in a package's source. The map names contains the paths that refer
// to a package with another path, as in ImportMap.
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
		if filepath.Ext(p.ImportPath) == ".test" || p.ImportPath == "unsafe" { // go test generates the main package of a test
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

// check type-checks the package p and adds it to k. If ours is true, it returns the errors that it finds. Otherwise it
// checks only declarations and ignores errors.
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
