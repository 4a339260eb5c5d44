package pathcost

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A position is a line and a column of a file. Columns count bytes from 1.
type position struct{ line, col int }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.line, q.line), cmp.Compare(p.col, q.col))
}

// A function is a declared function or a function literal.
type function struct {
	name     string
	file     string   // import path of the package, and name of the file
	from, to position // its braces
	literals []*function
	sites    []callSite
}

// A callSite is a call of a function that a figure counts.
type callSite struct {
	figure string // locks, clockReads or systemCalls
	at     position
}

// A packageInfo is the answer of go list about a package.
type packageInfo struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Path string }
}

// loadCode returns the functions of all packages that the program in a folder is built of and that
// belong to its module, without those of the program itself.
func loadCode(folder string) ([]*function, error) {
	packages, err := listPackages(folder)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	program := packages[len(packages)-1] // the go command lists a package after those that it imports
	var all []*function
	for _, p := range packages {
		if p.Module == nil || p.Module.Path != program.Module.Path || p == program {
			continue
		}
		functions, err := p.load(fset, imports)
		if err != nil {
			return nil, err
		}
		all = append(all, functions...)
	}
	return all, nil
}

func listPackages(folder string) ([]*packageInfo, error) {
	out, err := runCommand(folder, "go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles,Module", ".")
	if err != nil {
		return nil, err
	}
	var packages []*packageInfo
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		p := &packageInfo{}
		if err := d.Decode(p); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

// load returns the functions of p. It checks the types, which distinguish calls of a mutex's Lock
// from other methods of that name.
func (p *packageInfo) load(fset *token.FileSet, imports types.Importer) ([]*function, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, info); err != nil {
		return nil, err
	}
	_, folder, _ := strings.Cut(p.ImportPath, p.Module.Path+"/")
	v := &visitor{fset: fset, info: info, path: p.ImportPath, folder: folder}
	for _, f := range files {
		for _, decl := range f.Decls {
			v.visit(decl)
		}
	}
	return v.functions, nil
}

// A visitor collects the functions of a package.
type visitor struct {
	fset      *token.FileSet
	info      *types.Info
	path      string // import path
	folder    string // of the package in the module
	within    string // the name of the declared function
	functions []*function
	variables int // function literals of package variables
}

// visit collects the functions of a declaration.
func (v *visitor) visit(decl ast.Decl) {
	fun, ok := decl.(*ast.FuncDecl)
	v.within = ""
	if !ok {
		v.visitInside(decl, nil)
		return
	}
	if fun.Body == nil {
		return
	}
	name := fun.Name.Name
	v.within = name
	if fun.Recv != nil {
		name = receiverName(fun.Recv.List[0].Type) + "." + name
	}
	v.visitBody(v.folder+"."+name, fun.Body)
}

// receiverName returns the name of the type of a method, without star and type parameters.
func receiverName(e ast.Expr) string {
	name := strings.TrimPrefix(types.ExprString(e), "*")
	name, _, _ = strings.Cut(name, "[")
	return name
}

// visitBody collects a function and the functions inside it.
func (v *visitor) visitBody(name string, body *ast.BlockStmt) *function {
	file := v.path + "/" + filepath.Base(v.fset.Position(body.Pos()).Filename)
	f := &function{name: name, file: file, from: v.position(body.Lbrace), to: v.position(body.Rbrace)}
	v.functions = append(v.functions, f)
	v.visitInside(body, f)
	return f
}

// visitInside collects the sites of f, if it is not nil, and the function literals in it.
func (v *visitor) visitInside(n ast.Node, f *function) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			if f == nil {
				v.variables++
				v.visitBody(fmt.Sprintf("%s.var.func%d", v.folder, v.variables), n.Body)
			} else {
				f.literals = append(f.literals, v.visitBody(fmt.Sprintf("%s.func%d", f.name, len(f.literals)+1), n.Body))
			}
			return false
		case *ast.CallExpr:
			if figure := v.figureOf(n); f != nil && figure != "" {
				f.sites = append(f.sites, callSite{figure, v.position(n.Pos())})
			}
		}
		return true
	})
}

func (v *visitor) position(p token.Pos) position {
	at := v.fset.Position(p)
	return position{at.Line, at.Column}
}

var (
	lockNames   = []string{"Lock", "RLock", "TryLock", "TryRLock"}
	clockNames  = []string{"Now", "now"}
	noSystemUse = []string{"ParseSocketControlMessage", "ParseUnixRights", "BytePtrFromString", "ByteSliceFromString"}
)

// figureOf returns the figure that a call in the declared function v.within adds to, or "". A
// method Lock that locks a mutex is the lock: it is counted where it is called. Reads of the clock
// are counted where they are made, which may be after a condition in the middle of a statement;
// callers of a function now are listed beside that.
func (v *visitor) figureOf(call *ast.CallExpr) string {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return ""
	}
	called := v.info.Uses[id] // a function, or a variable that has one
	if called == nil || called.Pkg() == nil {
		return ""
	}
	sig, ok := called.Type().Underlying().(*types.Signature)
	if !ok {
		return ""
	}
	name, pkg, last := called.Name(), called.Pkg().Path(), lastResult(sig)
	switch {
	case slices.Contains(lockNames, name) && sig.Params().Len() == 0 && (last == "" || last == "bool"):
		if !slices.Contains(lockNames, v.within) {
			return locks
		}
	case pkg == "time" && sig.Recv() == nil && (name == "Now" || name == "Since" || name == "Until"):
		return clockReads
	case slices.Contains(clockNames, name) && sig.Params().Len() == 0 && (last == "time.Time" || last == "time.Duration"):
		if !slices.Contains(clockNames, v.within) {
			return clockReaders
		}
	case last != "error" && last != "syscall.Errno": // a system call returns one
	case pkg == "syscall" || pkg == "golang.org/x/sys/unix":
		if sig.Recv() == nil && !slices.Contains(noSystemUse, name) {
			return systemCalls
		}
	case pkg == "net" || pkg == "os":
		if sig.Recv() != nil && (strings.HasPrefix(name, "Read") || strings.HasPrefix(name, "Write")) {
			return systemCalls
		}
	}
	return ""
}

// lastResult returns the type of the last result of a function, or "".
func lastResult(sig *types.Signature) string {
	if sig.Results().Len() == 0 {
		return ""
	}
	return sig.Results().At(sig.Results().Len() - 1).Type().String()
}
