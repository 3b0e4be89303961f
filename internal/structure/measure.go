package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/hapax-dev/hapax"

// figures are the measurements of one package.
type figures struct {
	name    string // relative to the module, "." for its root
	files   int
	circles [][]string // names of files, the largest circle first
	types   []methods  // the type with the most methods first
	embeds  []string   // as Type.Field: structs that a struct embeds
	uses    map[string]map[string][]string
}

type methods struct {
	name    string
	methods int
}

// circleSizes returns the sizes of the circles, as in 13+7+2.
func (p *figures) circleSizes() string {
	if len(p.circles) == 0 {
		return "-"
	}
	var sizes []string
	for _, circle := range p.circles {
		sizes = append(sizes, fmt.Sprint(len(circle)))
	}
	return strings.Join(sizes, "+")
}

// A listed is a package in the output of the go command.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
	Module                  *struct{ Path string }
}

// measure measures the packages that match the patterns, by default all of the module that contains
// the working directory.
func measure(patterns ...string) ([]figures, error) {
	if len(patterns) == 0 {
		patterns = []string{module + "/..."}
	}
	packages, err := list(patterns)
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s has no export data: does it build?", path)
		}
		return os.Open(exports[path])
	})
	var all []figures
	for _, p := range packages {
		if p.DepOnly || len(p.GoFiles) == 0 {
			continue
		}
		f, err := measurePackage(fset, imports, p)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// list lists packages and their imports, with the files of the compiler's export data.
func list(patterns []string) (packages []listed, err error) {
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly,Module"}, patterns...)
	cmd := exec.Command("go", args...)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, problems.String())
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

func measurePackage(fset *token.FileSet, imports types.Importer, p listed) (figures, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return figures{}, err
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: imports}
	pkg, err := conf.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return figures{}, err
	}
	f := figures{name: strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/"), files: len(files), types: countMethods(pkg), embeds: embedded(pkg)}
	f.name = cmp.Or(f.name, ".")
	f.uses = usesBetween(fset, pkg, info)
	f.circles = circles(p.GoFiles, f.uses)
	return f, nil
}

// countMethods counts the methods of each type. Unless the package is a helper, it also counts the
// methods of embedded structs.
func countMethods(pkg *types.Package) (all []methods) {
	p := strings.TrimPrefix(pkg.Path(), module+"/")
	for _, name := range pkg.Scope().Names() {
		t, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || t.IsAlias() {
			continue
		}
		named := t.Type().(*types.Named)
		n := named.NumMethods()
		if !isHelper(p) {
			n = len(borrowed(named, make(map[string]bool)))
		}
		if i, ok := named.Underlying().(*types.Interface); ok {
			n = i.NumMethods()
		}
		if n > 0 {
			all = append(all, methods{name, n})
		}
	}
	slices.SortStableFunc(all, func(a, b methods) int { return b.methods - a.methods })
	return all
}

// borrowed adds the methods of a type and of the structs that it embeds, and returns them.
func borrowed(t *types.Named, all map[string]bool) map[string]bool {
	for m := range t.Methods() {
		all[m.Name()] = true
	}
	for f := range embeddedStructs(t) {
		if other, ok := types.Unalias(pointed(f.Type())).(*types.Named); ok {
			borrowed(other, all)
		}
	}
	return all
}

// embedded names the structs that the package's structs embed.
func embedded(pkg *types.Package) (all []string) {
	for _, name := range pkg.Scope().Names() {
		if t, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			for f := range embeddedStructs(t.Type()) {
				all = append(all, name+"."+f.Name())
			}
		}
	}
	return all
}

func embeddedStructs(t types.Type) iter.Seq[*types.Var] {
	return func(yield func(*types.Var) bool) {
		s, ok := t.Underlying().(*types.Struct)
		if !ok {
			return
		}
		for f := range s.Fields() {
			if _, isStruct := pointed(f.Type()).Underlying().(*types.Struct); f.Embedded() && isStruct && !yield(f) {
				return
			}
		}
	}
}

func pointed(t types.Type) types.Type {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// usesBetween returns the used names, by the file that uses them and the file that declares them.
func usesBetween(fset *token.FileSet, pkg *types.Package, info *types.Info) map[string]map[string][]string {
	fileOf := func(at token.Pos) string { return filepath.Base(fset.Position(at).Filename) }
	uses := make(map[string]map[string][]string)
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !isShared(object) {
			continue
		}
		from, to := fileOf(ident.Pos()), fileOf(object.Pos())
		if uses[from] == nil {
			uses[from] = make(map[string][]string)
		}
		if from != to && !slices.Contains(uses[from][to], object.Name()) {
			uses[from][to] = append(uses[from][to], object.Name())
		}
	}
	for _, byFile := range uses {
		for _, names := range byFile {
			slices.Sort(names)
		}
	}
	return uses
}

// isShared reports whether an object is a package-level name or a method.
func isShared(object types.Object) bool {
	if f, ok := object.(*types.Func); ok && f.Signature().Recv() != nil {
		return true
	}
	return object.Parent() == object.Pkg().Scope()
}

// circles returns the strongly connected components of two or more files.
func circles(files []string, uses map[string]map[string][]string) (all [][]string) {
	reached := make(map[string]map[string]bool)
	var reach func(from, file string)
	reach = func(from, file string) {
		for next := range maps.Keys(uses[file]) {
			if !reached[from][next] {
				reached[from][next] = true
				reach(from, next)
			}
		}
	}
	for _, file := range files {
		reached[file] = make(map[string]bool)
		reach(file, file)
	}
	seen := make(map[string]bool)
	for _, file := range files {
		circle := []string{file}
		for _, other := range files {
			if other != file && reached[file][other] && reached[other][file] {
				circle = append(circle, other)
			}
		}
		if len(circle) > 1 && !seen[file] {
			all = append(all, circle)
		}
		for _, member := range circle {
			seen[member] = true
		}
	}
	slices.SortStableFunc(all, func(a, b []string) int { return len(b) - len(a) })
	return all
}
