package sdk_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented parses a package with its tests.
func documented(t *testing.T, dir, path string) (*doc.Package, []*ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	names, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	var files, tests []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if files = append(files, f); strings.HasPrefix(name, "example") {
			tests = append(tests, f)
		}
	}
	p, err := doc.NewFromFiles(fset, files, path)
	if err != nil {
		t.Fatal(err)
	}
	return p, tests
}

// used are the names that examples call or select.
func used(examples []*ast.File) map[string]bool {
	names := map[string]bool{}
	for _, f := range examples {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Example") {
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						names[s.Sel.Name] = true
					}
					return true
				})
			}
		}
	}
	return names
}

// Everything exported says what it is, functions have an example of their own, types have one, and methods are used in one.
func TestEverythingIsDocumented(t *testing.T) {
	for dir, path := range map[string]string{".": "github.com/edgemq/edgemq/sdk", "sdktest": "github.com/edgemq/edgemq/sdk/sdktest"} {
		p, examples := documented(t, dir, path)
		uses := used(examples)
		name := func(what, text string) {
			if strings.TrimSpace(text) == "" {
				t.Errorf("%s: %s has no documentation", p.Name, what)
			}
		}
		example := func(what string, list []*doc.Example) {
			if len(list) == 0 {
				t.Errorf("%s: %s has no example", p.Name, what)
			}
		}
		name("the package", p.Doc)
		example("the package", p.Examples)
		fun := func(f *doc.Func) {
			name(f.Name, f.Doc)
			example(f.Name, f.Examples)
		}
		for _, f := range p.Funcs {
			fun(f)
		}
		methods := promised(p)
		for _, ty := range p.Types {
			name(ty.Name, ty.Doc)
			examples := ty.Examples
			for _, f := range ty.Funcs {
				fun(f)
				examples = append(examples, f.Examples...)
			}
			for _, m := range ty.Methods {
				name(ty.Name+"."+m.Name, m.Doc)
				examples = append(examples, m.Examples...)
				if !uses[m.Name] && !slices.Contains(methods, m.Name) {
					t.Errorf("%s: no example uses %s.%s", p.Name, ty.Name, m.Name)
				}
			}
			if !uses[ty.Name] {
				example(ty.Name, examples) // its own, or of what makes or does something with it
			}
			for _, spec := range ty.Decl.Specs {
				members(spec.(*ast.TypeSpec), name)
			}
		}
		for _, v := range slices.Concat(p.Consts, p.Vars) {
			name(strings.Join(v.Names, ", "), v.Doc)
		}
		for _, ty := range p.Types {
			for _, v := range slices.Concat(ty.Consts, ty.Vars) {
				name(strings.Join(v.Names, ", "), v.Doc)
			}
		}
	}
}

// promised are the methods that are there for an interface: the library calls them, not the application.
func promised(p *doc.Package) []string {
	names := []string{"Error", "Unwrap", "Is", "String"}
	for _, ty := range p.Types {
		if i, ok := ty.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.InterfaceType); ok {
			for _, m := range i.Methods.List {
				for _, n := range m.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// members checks the exported fields of a struct and the methods of an interface. One comment may be for a row of fields.
func members(spec *ast.TypeSpec, name func(what, text string)) {
	var list []*ast.Field
	switch ty := spec.Type.(type) {
	case *ast.StructType:
		list = ty.Fields.List
	case *ast.InterfaceType:
		if len(ty.Methods.List) == 1 {
			return // the type's comment is for it
		}
		list = ty.Methods.List
	}
	row := ""
	for _, f := range list {
		text := f.Doc.Text() + f.Comment.Text()
		if text == "" {
			text = row
		}
		for _, n := range f.Names {
			if n.IsExported() && !obvious[spec.Name.Name+"."+n.Name] {
				name(spec.Name.Name+"."+n.Name, text)
			}
		}
		if row = f.Doc.Text(); row == "" {
			row = text
		}
	}
}

// obvious are fields whose names say all there is to say.
var obvious = map[string]bool{
	"Field.Name": true, "Field.Value": true, "FilterError.Filter": true, "State.ClientID": true, "State.Connected": true,
	"QueueInfo.Name": true,
}

// fences are the Go blocks of a page.
var fences = regexp.MustCompile("(?s)```go\n(.*?)```")
