package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/cli"
	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts drive the built binary: testscript re-executes the test binary
// as `moldtape`.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"moldtape": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("MOLDTAPE_CORPUS", os.Getenv("MOLDTAPE_CORPUS"))
			e.Setenv("MOLDTAPE_LONG", os.Getenv("MOLDTAPE_LONG"))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "corpus": // real capture files are at hand
				return os.Getenv("MOLDTAPE_CORPUS") != "", nil
			case "long":
				return os.Getenv("MOLDTAPE_LONG") != "", nil
			case "netns": // a pair of interfaces can be made, in a namespace of its own
				return exec.Command("unshare", "-n", "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfor": waitFor,
			"json":    jsonField,
			"same":    same,
			"code":    exitCode,
			"soup":    soupPull,
			"flip":    flipBit,
			"http":    httpCall,
		},
	})
}

// waitFor FILE REGEXP [VAR...] waits until the file, written by a background
// command, has a line that matches, and sets each VAR to a group of the match.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: waitfor FILE REGEXP [VAR...]")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	path := ts.MkAbs(args[0])
	deadline := time.Now().Add(hang)
	for {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			ts.Check(err)
		}
		if m := re.FindSubmatch(b); m != nil {
			for i, v := range args[2:] {
				ts.Setenv(v, string(m[i+1]))
			}
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waitfor: no match for %q in %s:\n%s", args[1], args[0], b)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// jsonField FILE KEY WANT checks a number, string or boolean at top level of
// the last JSON object of FILE that has the key.
func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE KEY REGEXP")
	}
	re := regexp.MustCompile(`"` + regexp.QuoteMeta(args[1]) + `":\s*("(?:[^"\\]|\\.)*"|[^,}\]\s]+)`)
	all := re.FindAllStringSubmatch(ts.ReadFile(args[0]), -1)
	if all == nil {
		ts.Fatalf("json: no key %q in %s", args[1], args[0])
	}
	got := strings.Trim(all[len(all)-1][1], `"`)
	if regexp.MustCompile("^(?:"+args[2]+")$").MatchString(got) == neg {
		ts.Fatalf("json: %s is %s, want match of %s: %v", args[1], got, args[2], !neg)
	}
}

// same A B compares two files byte by byte without printing them.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: same A B")
	}
	a, b := []byte(ts.ReadFile(args[0])), []byte(ts.ReadFile(args[1]))
	if bytes.Equal(a, b) == neg {
		ts.Fatalf("%s (%d bytes, %x) and %s (%d bytes, %x): same is %v", args[0], len(a), sha256.Sum256(a), args[1], len(b), sha256.Sum256(b), !neg == false)
	}
}

// exitCode N COMMAND... runs moldtape with arguments and checks its code.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var x *exec.ExitError
	if errors.As(err, &x) {
		got = x.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
