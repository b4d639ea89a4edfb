package importer

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// texts are the messages of a range in one of several variants.
func texts(variant string, first, last int) []string {
	var out []string
	for i := first; i <= last; i++ {
		out = append(out, fmt.Sprint(variant, i))
	}
	return out
}

// feed adds pieces as "LINE VARIANT FIRST..LAST"; "file" begins a file of
// messages, "packets" one of packets. It returns the conflicts.
func feed(t *testing.T, im *Importer, steps string) (conflicts []moldcast.Seq) {
	t.Helper()
	s, err := im.Session("C", name("S"))
	if err != nil {
		t.Fatal(err)
	}
	stamp := moldcast.Stamp(1000)
	for _, step := range strings.Split(strings.TrimSpace(steps), "\n") {
		step = strings.TrimSpace(step)
		if step == "file" || step == "packets" {
			for _, c := range s.Unconfirmed(true) {
				conflicts = append(conflicts, c.Seq)
			}
			im.File(step == "packets")
			continue
		}
		if f := strings.Fields(step); len(f) == 3 && f[1] == "end" { // "LINE end NEXT"
			stamp++
			next, err := strconv.Atoi(f[2])
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Mark(moldcast.Mark{Kind: moldcast.End, Next: moldcast.Seq(next), Stamp: stamp, Line: f[0][0] - 'A'}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d, err := time.ParseDuration(step); err == nil {
			stamp += moldcast.Stamp(d)
			continue
		}
		var line, variant string
		var first, last int
		if _, err := fmt.Sscanf(step, "%1s %1s %d..%d", &line, &variant, &first, &last); err != nil {
			t.Fatalf("%q: %v", step, err)
		}
		stamp++
		p := piece(first, stamp, texts(variant, first, last)...)
		p.Line = line[0] - 'A'
		err := s.Add(p, Place{File: step})
		if c, is := err.(*Conflict); is {
			conflicts = append(conflicts, c.Seq)
		} else if err != nil {
			t.Fatal(err)
		}
		clear(p.Msgs.Framed()) // must not have been kept
		for _, c := range s.Unconfirmed(false) {
			conflicts = append(conflicts, c.Seq)
		}
	}
	for _, c := range s.Unconfirmed(true) {
		conflicts = append(conflicts, c.Seq)
	}
	return conflicts
}

// takes reads an archive: each take as runs "VARIANT FIRST..LAST".
func takes(t *testing.T, dir string) string {
	t.Helper()
	a, err := store.Open(dir, store.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	infos, err := a.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range infos {
		v, err := a.View(i.Ref())
		if err != nil {
			t.Fatal(err)
		}
		var runs []string
		var variant string
		var first, next moldcast.Seq
		end := func() {
			if next > first {
				runs = append(runs, fmt.Sprintf("%s%d..%d", variant, first, next-1))
			}
		}
		for _, r := range v.Coverage() {
			for q := r.First; q < r.Next; q++ {
				b, n, err := v.Append(nil, q, 1, 1<<16, true)
				if err != nil || n != 1 {
					t.Fatal(q, n, err)
				}
				text := string(b[moldcast.LengthSize:])
				if text != fmt.Sprint(text[:1], q) {
					t.Fatalf("message %d is %q", q, text)
				}
				if text[:1] != variant || q != next {
					end()
					variant, first = text[:1], q
				}
				next = q + 1
			}
		}
		end()
		out = append(out, strings.Join(runs, " "))
	}
	return strings.Join(out, " | ")
}

func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		name      string
		steps     string
		want      string
		conflicts string
	}{
		{"a file of messages goes back", "file\nA a 1..5\nA a 6..9\nA b 1..3\nA b 4..12", "a1..9 | b1..12", "[]"},
		{"with an identical prefix, which is copied", "file\nA a 1..5\nA a 6..9\nA a 1..2\nA a 3..4\nA b 5..7\nA b 8..12", "a1..9 | a1..4 b5..12", "[]"},
		{"to its middle", "file\nA a 1..5\nA a 6..9\nA b 5..7", "a1..9 | b5..7", "[]"},
		{"twice", "file\nA a 1..5\nA b 1..5\nA c 1..5", "a1..5 | b1..5 | c1..5", "[]"},
		{"the same again adds nothing", "file\nA a 1..5\nA b 1..7\nfile\nA a 1..5\nA b 1..7\nfile\nA b 1..7\nfile\nA a 1..5", "a1..5 | b1..7", "[]"},
		{"of what another file holds it is no restart", "file\nA a 1..5\nfile\nA b 1..3\nA b 4..6", "a1..5 b6..6", "[1 4]"},
		{"what is new goes to the take that the line is at", "file\nA a 1..5\nA b 1..7\nfile\nA a 4..5\nA a 6..9\nA b 7..8", "a1..9 | b1..8", "[]"},
		{"packets: two in conflict", "packets\nA a 1..5\nA a 6..9\nA b 1..3\nA b 4..12\nA b 13..14", "a1..9 | b1..14", "[]"},
		{"packets: one is forged", "packets\nA a 1..5\nA a 6..9\nA b 1..3\nA a 10..12", "a1..12", "[1]"},
		{"packets: the last one", "packets\nA a 1..5\nA a 6..9\nA b 1..3", "a1..9", "[1]"},
		{"packets: of two, one agrees between", "packets\nA a 1..5\nA a 6..9\nA b 1..3\nA a 6..9\nA b 4..5\nA a 10..10", "a1..10", "[1 4]"},
		{"packets: a prefix, with a held packet", "packets\nA a 1..5\nA a 6..9\nA a 1..2\nA b 3..4\nA b 5..12", "a1..9 | a1..2 b3..12", "[]"},
		{"packets: two lines", "packets\nA a 1..5\nB a 1..5\nA a 6..9\nB a 6..9\nA b 1..3\nB b 1..3\nA b 4..6\nB b 4..6\nA b 7..12\nB b 7..12", "a1..9 | b1..12", "[]"},
		{"packets: a line that differs never went back", "packets\nA a 1..5\nB b 1..5\nA a 6..9\nB b 6..9", "a1..9", "[1 6]"},
		{"data beyond an end that was told twice", "packets\nA a 1..5\nA end 6\nA end 6\nA a 6..9\nA a 10..11", "a1..5 | a6..11", "[]"},
		{"or once, and then silence", "packets\nA a 1..5\nA end 6\n3s\nA a 6..9", "a1..5 | a6..9", "[]"},
		{"one packet's word is no end", "packets\nA a 1..5\nA end 6\nA a 6..9", "a1..9", "[]"},
		{"nor what is below what is held", "packets\nA a 1..5\nA end 4\nA end 4\nA a 6..9", "a1..9", "[]"},
		{"of a restart with the same beginning", "packets\nA a 1..5\nA end 6\nA end 6\nA a 1..3\nA a 4..5\nA a 6..9\nA end 10\nA end 10", "a1..5 | a1..9", "[]"},
		{"with a piece across the end", "packets\nA a 1..5\nA end 6\nA end 6\nA a 1..3\nA a 4..7\nA a 8..9", "a1..5 | a1..9", "[]"},
		{"on two lines", "packets\nA a 1..5\nB a 1..5\nA end 6\nB end 6\nA a 1..5\nA a 6..7\nB a 1..5\nB a 6..7\nB a 8..9\nA a 8..9", "a1..5 | a1..9", "[]"},
		{"on two lines, the second ahead", "packets\nA a 1..5\nB a 1..5\nA end 6\nB end 6\nA a 1..5\nA a 6..7\nB a 1..5\nB a 8..9\nA a 8..9", "a1..5 | a1..9", "[]"},
		{"an end of another file is none", "packets\nA a 1..5\nA end 6\nA end 6\npackets\nA a 6..9", "a1..9", "[]"},
		{"twice ended", "packets\nA a 1..2\nA end 3\nA end 3\nA a 3..4\nA end 5\nA end 5\nA a 5..6", "a1..2 | a3..4 | a5..6", "[]"},
		{"what comes again after the end is no restart", "packets\nA a 1..5\nA end 6\nA end 6\nA a 2..5\nA end 6", "a1..5", "[]"},
		{"packets: repeated and late ones are none", "packets\nA a 1..2\nA a 5..6\nA a 3..4\nA a 5..6\nA a 7..9", "a1..9", "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "archive")
			im := New(opener(dir), time.Now)
			got := feed(t, im, c.steps)
			finish(t, im)
			if fmt.Sprint(got) != c.conflicts {
				t.Errorf("conflicts %v, want %s", got, c.conflicts)
			}
			if got := takes(t, dir); got != c.want {
				t.Errorf("archive %s, want %s", got, c.want)
			}
			// All of it again, in another process: it adds nothing.
			again := New(opener(dir), time.Now)
			if got := feed(t, again, c.steps); fmt.Sprint(got) != c.conflicts {
				t.Errorf("again: conflicts %v, want %s", got, c.conflicts)
			}
			for _, r := range finish(t, again) {
				if r.Messages != 0 {
					t.Errorf("again: %+v", r)
				}
			}
			if got := takes(t, dir); got != c.want {
				t.Errorf("again: archive %s, want %s", got, c.want)
			}
		})
	}
}
