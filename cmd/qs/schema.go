package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

func (a *app) newSchema() *cobra.Command {
	var s schemaCommand
	c := &cobra.Command{
		Use: "schema ADDRESS|PACKAGE", Short: "Print the methods and error codes of a program as text to commit",
		Long: `Prints the methods of a program, in the order of their names: kind, codec and types, a field a line; then the error codes that it defines with qs.DefineCode, number and name. The text can be committed, and qstest.Compatible compares it with a program in a test.

With ADDRESS the methods are those that the running program serves; it must have set qs.Config.Inspect. With PACKAGE, an import path or a directory such as ./store, they are the package variables that qs.Define and its siblings return; the go command compiles the package, and its variables are initialized.`,
		Example: `  qs schema ./store > store/testdata/api.txt
  qs schema tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.printSchema(c.Context(), &s, args[0]) },
	}
	fs := c.Flags()
	s.network.peerFlags(fs)
	fs.DurationVarP(&s.timeout, "timeout", "t", 10*time.Second, "`time` to wait for the answer")
	return c
}

// A schemaCommand holds the flags of qs schema.
type schemaCommand struct {
	network network
	timeout time.Duration
}

// A schemaReport is the JSON form of a method or an error code. Types are in Go syntax.
type schemaReport struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`           // method, one-way, stream, upload or duplex; or code
	Code  uint8  `json:"code,omitempty"` // number of a code
	Codec string `json:"codec,omitempty"`
	In    string `json:"in,omitempty"`
	Up    string `json:"up,omitempty"`   // type of each item sent by the caller
	Down  string `json:"down,omitempty"` // type of each item sent by the server
	Out   string `json:"out,omitempty"`
}

func (a *app) printSchema(ctx context.Context, s *schemaCommand, of string) error {
	if ctx == nil {
		ctx = context.Background()
	}
	program, notes, err := readSchema(ctx, s, of)
	if err != nil {
		return err
	}
	reports := []schemaReport{}
	for _, m := range program.Methods {
		r := schemaReport{Name: m.Name, Kind: string(m.Kind), Codec: m.Codec, In: m.In.String()}
		if m.Up != nil {
			r.Up = m.Up.String()
		}
		switch m.Kind {
		case schema.Stream, schema.Duplex:
			r.Down = m.Out.String()
		case schema.Plain, schema.Upload:
			r.Out = m.Out.String()
		}
		reports = append(reports, r)
	}
	for _, code := range slices.Sorted(maps.Keys(program.Codes)) {
		reports = append(reports, schemaReport{Name: program.Codes[code], Kind: "code", Code: code})
	}
	for _, note := range notes {
		a.printNote("schema", note)
	}
	return a.printResult(reports, func(out io.Writer) {
		for line := range strings.Lines(schema.Format(program)) {
			text := strings.TrimLeft(strings.TrimSuffix(line, "\n"), "\t")
			fmt.Fprintf(out, "%s%s\n", line[:len(line)-len(strings.TrimLeft(line, "\t"))], show.Text(text))
		}
	})
}

// readSchema returns the schema of the running program or the package that of names.
func readSchema(ctx context.Context, s *schemaCommand, of string) (program schema.Program, notes []string, err error) {
	if isAddress(of) {
		return fetchSchema(ctx, s, of)
	}
	text, err := compileSchema(ctx, of)
	if err == nil {
		program, err = schema.ParseProgram(text)
	}
	if err == nil && len(program.Methods) == 0 {
		err = fmt.Errorf("no methods in the package variables of %s, want results of qs.Define, DefineStream, DefineUpload, DefineDuplex or DefineOneWay", of)
	}
	return program, nil, err
}

// fetchSchema returns the schema of the running program at address. The notes name the methods that the schema omits,
// because the program does not publish their types.
func fetchSchema(ctx context.Context, s *schemaCommand, address string) (program schema.Program, notes []string, err error) {
	c, err := dial(&s.network, strings.TrimSuffix(address, "/"))
	if err != nil {
		return program, nil, err
	}
	defer c.close()
	b, err := c.callReadOnly(ctx, s.timeout, "list its methods", inspect.RPCsRPC, nil, hg.Metadata{})
	if isNoMethod(err) {
		return program, nil, fmt.Errorf("%s does not publish its methods; set qs.Config.Inspect there, or hg.Config.Reflect: %w", c.peer, err)
	}
	if err != nil {
		return program, nil, c.adviseReadOnly(c.adviseError(inspect.RPCsRPC, err), "--timeout")
	}
	rpcs, err := inspect.DecodeRPCs(b)
	if err != nil {
		return program, nil, fmt.Errorf("list methods of %s: %w", c.peer, err)
	}
	if program.Codes, err = inspect.DecodeCodes(b); err != nil {
		return program, nil, fmt.Errorf("list error codes of %s: %w", c.peer, err)
	}
	for _, rpc := range rpcs {
		if inspect.IsBuiltIn(rpc.Name) {
			continue
		}
		signature, err := schema.ParseSignature(rpc.Shape)
		if err != nil || rpc.OneWay != (signature.Kind == schema.OneWay) {
			notes = append(notes, fmt.Sprintf("%s is left out: the program does not publish its types", show.Text(rpc.Name)))
			continue
		}
		program.Methods = append(program.Methods, schema.Method{Name: rpc.Name, Codec: rpc.Codec, Signature: signature})
	}
	return program, notes, nil
}

// generatedProgram is the source of a test file that is added to the package. It writes the schema to a file after the
// package variables have been initialized.
const generatedProgram = `package %s

import (
	osOfSchema "os"

	qsOfSchema "github.com/quicksilver-rpc/quicksilver/qs"
)

func init() {
	var methods []qsOfSchema.AnyMethod
	for _, v := range []any{%s} {
		if m, ok := v.(qsOfSchema.AnyMethod); ok {
			methods = append(methods, m)
		}
	}
	if err := osOfSchema.WriteFile(%q, []byte(qsOfSchema.Schema(methods...)), 0o666); err != nil {
		osOfSchema.Stderr.WriteString(err.Error())
		osOfSchema.Exit(1)
	}
	osOfSchema.Exit(0)
}
`

// compileSchema returns the text of qs.Schema for the package variables of the package that pattern names. It compiles
// and runs the package's tests together with generatedProgram, which it adds through the go command's overlay. The
// generated file exits the process before any test, or TestMain, runs.
func compileSchema(ctx context.Context, pattern string) (string, error) {
	listed, err := runProgram(ctx, "go", "list", "-json=Dir,Name,ImportPath,GoFiles,CgoFiles", "--", pattern)
	if err != nil {
		return "", fmt.Errorf("%s is neither an address nor a package: %w", pattern, err)
	}
	var pkg struct {
		Dir, Name, ImportPath string
		GoFiles, CgoFiles     []string
	}
	d := json.NewDecoder(bytes.NewReader(listed))
	if err := d.Decode(&pkg); err != nil {
		return "", fmt.Errorf("go list %s: %w", pattern, err)
	}
	if d.More() {
		return "", usageError{fmt.Sprintf("%s is more than one package; qs schema prints one", pattern)}
	}
	var names []string
	for _, file := range append(pkg.GoFiles, pkg.CgoFiles...) {
		found, err := packageVars(filepath.Join(pkg.Dir, file))
		if err != nil {
			return "", err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "qs-schema-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	result, source, overlay, binary := filepath.Join(dir, "api.txt"), filepath.Join(dir, "source"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "schema.exe")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(pkg.Dir, "qs_schema_generated_test.go"): source}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(source, fmt.Appendf(nil, generatedProgram, pkg.Name, strings.Join(names, ", "), result), 0o666); err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o666); err != nil {
		return "", err
	}
	if _, err := runProgram(ctx, "go", "test", "-c", "-overlay="+overlay, "-o", binary, pkg.ImportPath); err != nil {
		return "", fmt.Errorf("compile %s: %w", pkg.ImportPath, err)
	}
	if _, err := runProgram(ctx, binary); err != nil {
		return "", fmt.Errorf("initialize the variables of %s: %w", pkg.ImportPath, err)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return "", fmt.Errorf("%s exited before its variables were initialized: %w", pkg.ImportPath, err)
	}
	return string(text), nil
}

// packageVars returns the names of the package variables declared in a file.
func packageVars(file string) (names []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range f.Decls {
		vars, ok := decl.(*ast.GenDecl)
		if !ok || vars.Tok != token.VAR {
			continue
		}
		for _, spec := range vars.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if name.Name != "_" {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names, nil
}

// runProgram runs a program and returns its standard output. If the program fails, the error contains its standard
// error output.
func runProgram(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	b, err := cmd.Output()
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return b, err
}
