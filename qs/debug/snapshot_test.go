package debug_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

var update = flag.Bool("update", false, "write the shape of the JSON into docs/MONITORING.md")

const shapePage = "../../docs/MONITORING.md"

// TestDocumentedShape checks that docs/MONITORING.md describes the JSON as the comments of the
// structs do.
func TestDocumentedShape(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(shapePage)
	require.NoError(t, err)
	const begin, end = "<!-- shape -->\n", "<!-- end of shape -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	was, tail, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := shapeOf(t)
	if *update {
		require.NoError(t, os.WriteFile(shapePage, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	require.Equal(t, want, was, "go test ./qs/debug -run TestDocumentedShape -update writes it anew")
}

// shapeOf describes the structs of the JSON in Markdown, from their comments.
func shapeOf(t *testing.T) string {
	types := map[string]*ast.TypeSpec{}
	docs := map[string]string{}
	for _, name := range []string{"snapshot.go", "query.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				s := d.Specs[0].(*ast.TypeSpec)
				types[s.Name.Name], docs[s.Name.Name] = s, d.Doc.Text()
			}
		}
	}
	var b strings.Builder
	order := []string{"Snapshot"}
	for i := 0; i < len(order); i++ {
		s := types[order[i]]
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n|field|type|meaning|\n|---|---|---|\n", s.Name.Name, oneLine(docs[s.Name.Name]))
		fields := jsonFields(t, types, s)
		rename := func(text string) string {
			for _, f := range fields {
				text = regexp.MustCompile("(^|[^.`\\w])"+f.goName+`\b`).ReplaceAllString(text, "${1}`"+f.name+"`")
			}
			return text
		}
		for j := 0; j < len(fields); j++ {
			names, kinds, doc := "`"+fields[j].name+"`", fields[j].kind, fields[j].doc
			for j+1 < len(fields) && fields[j+1].doc == "" {
				j++
				names += "<br>`" + fields[j].name + "`"
				kinds += "<br>" + fields[j].kind
			}
			fmt.Fprintf(&b, "|%s|%s|%s|\n", names, kinds, strings.ReplaceAll(rename(oneLine(doc)), "|", `\|`))
		}
		for _, f := range fields {
			for _, name := range regexp.MustCompile(`[A-Z]\w+`).FindAllString(f.kind, -1) {
				if types[name] != nil && !contains(order, name) {
					order = append(order, name)
				}
			}
		}
	}
	return b.String() + "\n"
}

func contains(all []string, name string) bool {
	for _, n := range all {
		if n == name {
			return true
		}
	}
	return false
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

type jsonField struct{ goName, name, kind, doc string }

// jsonFields returns the fields of a struct, with those of embedded ones.
func jsonFields(t *testing.T, types map[string]*ast.TypeSpec, s *ast.TypeSpec) (all []jsonField) {
	for _, f := range s.Type.(*ast.StructType).Fields.List {
		doc := f.Doc.Text() + f.Comment.Text()
		if len(f.Names) == 0 {
			all = append(all, jsonFields(t, types, types[f.Type.(*ast.Ident).Name])...)
			continue
		}
		for _, n := range f.Names {
			if !n.IsExported() {
				continue
			}
			name, options, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			kind := contentTypeOf(t, f.Type)
			if options == "omitempty" {
				kind += ", may be missing"
			}
			all = append(all, jsonField{n.Name, name, kind, doc})
		}
	}
	return all
}

// contentTypeOf returns the JSON type of a field.
func contentTypeOf(t *testing.T, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		switch e.Name {
		case "string":
			return "text"
		case "bool":
			return "boolean"
		case "int", "int64", "uint64", "uint32", "float64":
			return "number"
		}
		return "[" + e.Name + "](#" + strings.ToLower(e.Name) + ")"
	case *ast.StarExpr:
		return contentTypeOf(t, e.X)
	case *ast.ArrayType:
		return "list of " + contentTypeOf(t, e.Elt)
	case *ast.IndexExpr:
		return "rows of " + contentTypeOf(t, e.Index)
	case *ast.SelectorExpr:
		if e.Sel.Name == "Time" {
			return "time, RFC 3339"
		}
		return "number"
	}
	require.Fail(t, "unknown type", "%T", e)
	return ""
}

// TestShape checks that the JSON of a page with something in each list has every field that is
// documented, with its type, and no other.
func TestShape(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	rows := qs.DefineStream[int, int]("shop/rows")
	rows.Handle(s.node, func(ctx context.Context, _ int, send func(int) error) error {
		if err := send(1); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	_, err := fail.Call(context.Background(), s.peer, "x")
	require.Error(t, err)
	for _, err := range rows.Call(context.Background(), s.peer, 1) {
		require.NoError(t, err)
		s.page.StalledAfter = time.Nanosecond // so that there is a cause
		waitUntil(t, func() bool { return s.page.Snapshot(debug.Query{}).Errors.Total > 0 })
		_, body := getPage(t, s.page, "GET", "/?format=json", "")
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &v))
		checkShape(t, "", reflect.TypeFor[debug.Snapshot](), v)
		for _, name := range []string{"calls", "streams", "methods", "errors", "peers"} {
			require.NotEmpty(t, v[name].(map[string]any)["rows"], name)
		}
		require.NotEmpty(t, v["causes"])
		break
	}
}

// checkShape compares a JSON value with the type that describes it.
func checkShape(t *testing.T, at string, typ reflect.Type, v any) {
	switch {
	case typ == reflect.TypeFor[time.Time]():
		_, err := time.Parse(time.RFC3339Nano, v.(string))
		require.NoError(t, err, at)
	case typ.Kind() == reflect.Pointer:
		checkShape(t, at, typ.Elem(), v)
	case typ.Kind() == reflect.Slice:
		require.IsType(t, []any{}, v, "%s: an empty list is [], not null", at)
		for _, e := range v.([]any) {
			checkShape(t, at+"[]", typ.Elem(), e)
		}
	case typ.Kind() == reflect.Struct:
		require.IsType(t, map[string]any{}, v, at)
		have := v.(map[string]any)
		n := 0
		for _, f := range reflect.VisibleFields(typ) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous || !f.IsExported() {
				continue
			}
			require.NotEmpty(t, name, "%s.%s has no name in JSON", at, f.Name)
			value, ok := have[name]
			require.True(t, ok || options == "omitempty", "%s.%s is missing", at, name)
			if ok {
				n++
				checkShape(t, at+"."+name, f.Type, value)
			}
		}
		require.Len(t, have, n, "%s has fields that are not documented", at)
	case typ.Kind() == reflect.String:
		require.IsType(t, "", v, at)
	case typ.Kind() == reflect.Bool:
		require.IsType(t, true, v, at)
	default:
		require.IsType(t, 1.0, v, at)
	}
}
