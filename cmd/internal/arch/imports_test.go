package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/moldtape/moldtape"

// allowed is every arrow between moldtape's packages. A package that is not
// listed here may not exist; an arrow that is not listed fails the test.
var allowed = map[string][]string{
	"moldcast":         {"moldcast/gap"},
	"moldcast/hist":    {},
	"moldcast/gap":     {"moldcast/hist"},
	"moldcast/mcast":   {"moldcast", "moldcast/gap", "moldcast/rejoin"},
	"moldcast/rejoin":  {"moldcast", "moldcast/gap", "moldcast/soup"},
	"moldcast/soup":    {"moldcast", "moldcast/gap"},
	"capture":          {"moldcast", "moldcast/gap", "moldcast/hist", "moldcast/mcast", "moldcast/soup", "capture/arbiter"},
	"capture/arbiter":  {"moldcast", "moldcast/gap", "moldcast/hist"},
	"capture/capfile":  {"moldcast"},
	"store":            {"moldcast", "moldcast/gap", "store/block"},
	"store/block":      {"moldcast", "moldcast/gap"},
	"retransmit":       {"moldcast", "moldcast/mcast", "moldcast/soup", "retransmit/admit"},
	"retransmit/admit": {"moldcast"},
	"replay":           {"moldcast", "moldcast/gap", "moldcast/hist", "moldcast/mcast", "replay/burst", "replay/impair", "replay/pace"},
	"replay/burst":     {"moldcast"},
	"replay/impair":    {"moldcast", "moldcast/gap"},
	"replay/pace":      {"moldcast", "moldcast/gap"},
}

// fenced third-party modules: only the packages named may import them.
var fenced = map[string][]string{
	"github.com/cockroachdb/pebble": {"store"},
	"github.com/google/gopacket":    {"capture/capfile"},
	"github.com/spf13/cobra":        {"cmd"},
}

// pure packages may not reach for sockets, files, clocks' goroutines or locks.
var pure = []string{"moldcast", "moldcast/hist", "moldcast/gap", "moldcast/soup", "moldcast/rejoin", "capture/arbiter", "store/block", "retransmit/admit", "replay/burst", "replay/impair", "replay/pace"}

var impure = []string{"net", "os", "os/signal", "sync", "syscall", "context", "golang.org/x/sys/unix", "golang.org/x/net/ipv4", "net/http"}

func TestImportRule(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == "testdata" || strings.HasPrefix(n, ".") && path != root {
				return filepath.SkipDir
			}
			if path != root {
				if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
					return filepath.SkipDir // a nested module has its own rules
				}
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(rel)
		seen[pkg] = true
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			check(t, pkg, filepath.Base(path), imp)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range allowed {
		if !seen[pkg] {
			t.Errorf("package %s is in the rule but not in the tree", pkg)
		}
	}
}

func check(t *testing.T, pkg, file, imp string) {
	inCmd := pkg == "cmd" || strings.HasPrefix(pkg, "cmd/")
	for mod, who := range fenced {
		if imp != mod && !strings.HasPrefix(imp, mod+"/") {
			continue
		}
		if !slices.Contains(who, pkg) && !(inCmd && slices.Contains(who, "cmd")) {
			t.Errorf("%s/%s imports %s; only %v may", pkg, file, imp, who)
		}
	}
	if slices.Contains(pure, pkg) && slices.Contains(impure, imp) {
		t.Errorf("%s/%s is pure and must not import %s", pkg, file, imp)
	}
	to, ours := strings.CutPrefix(imp, module+"/")
	if !ours || inCmd {
		return
	}
	arrows, listed := allowed[pkg]
	switch {
	case !listed:
		t.Errorf("package %s is not in the import rule", pkg)
	case strings.HasPrefix(to, "cmd/"):
		t.Errorf("%s/%s imports %s; nothing outside cmd may", pkg, file, to)
	case !slices.Contains(arrows, to):
		t.Errorf("%s/%s imports %s; allowed are %v", pkg, file, to, arrows)
	}
}
