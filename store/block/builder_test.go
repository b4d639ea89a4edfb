package block

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// bases are where sequences begin in the tests: the first, a late join, and
// just below the end of all sequences.
var bases = []moldcast.Seq{1, 484311999, 1<<64 - 1 - 3000}

// cutRandomly cuts [first, first+n) into pieces of 1 to most messages and
// leaves out some of them.
func cutRandomly(rnd *rand.Rand, first moldcast.Seq, n, most int, leave float64) (all []moldcast.Piece) {
	var stamp moldcast.Stamp = 1_700_000_000_000_000_000
	for at := 0; at < n; {
		k := min(1+rnd.IntN(most), n-at)
		stamp += moldcast.Stamp(rnd.IntN(5000))
		if rnd.Float64() >= leave {
			var msgs []string
			for i := range k {
				msgs = append(msgs, message(first+moldcast.Seq(at+i)))
			}
			p := piece(first+moldcast.Seq(at), stamp, msgs...)
			p.Line = uint8(rnd.IntN(2))
			all = append(all, p)
		}
		at += k
	}
	return all
}

// message is the test's message of a sequence: 0 to 29 bytes.
func message(s moldcast.Seq) string {
	return fmt.Sprintf("%020d:padding", uint64(s))[:uint64(s)*7%30%29]
}

func ranges(pieces []moldcast.Piece) (runs []moldcast.Range) {
	for _, p := range pieces {
		if k := len(runs); k > 0 && runs[k-1].Next == p.First {
			runs[k-1].Next = p.Range().Next
			continue
		}
		runs = append(runs, p.Range())
	}
	return runs
}

func flattenAll(pieces []moldcast.Piece) (all []flat) {
	for _, p := range pieces {
		all = append(all, flatten(p))
	}
	return all
}

var orders = map[string]func(rnd *rand.Rand, n int) []int{
	"inorder": func(_ *rand.Rand, n int) []int {
		o := make([]int, n)
		for i := range o {
			o[i] = i
		}
		return o
	},
	"reverse": func(_ *rand.Rand, n int) []int {
		o := make([]int, n)
		for i := range o {
			o[i] = n - 1 - i
		}
		return o
	},
	"random": func(rnd *rand.Rand, n int) []int { return rnd.Perm(n) },
	"fills": func(rnd *rand.Rand, n int) (o []int) { // every fifth comes after all others
		for _, late := range []bool{false, true} {
			for i := range n {
				if (i%5 == 2) == late {
					o = append(o, i)
				}
			}
		}
		return o
	},
}

// holder is what Builder and Block have in common.
type holder interface {
	Messages(first moldcast.Seq, count, size int) (moldcast.Messages, bool)
	PiecesFrom(first moldcast.Seq, fn func(moldcast.Piece) bool)
	SeqAt(t moldcast.Stamp) (moldcast.Seq, bool)
	Runs() []moldcast.Range
}

// checkHolder compares what h answers with what pieces, in order, say.
func checkHolder(t testing.TB, h holder, pieces []moldcast.Piece, whole bool, rnd *rand.Rand, tries int) {
	t.Helper()
	runs := ranges(pieces)
	if diff := cmp.Diff(runs, h.Runs()); diff != "" {
		t.Fatalf("runs: %s", diff)
	}
	held := func(s moldcast.Seq) (run moldcast.Range, ok bool) {
		for _, r := range runs {
			if r.Contains(s) {
				return r, true
			}
		}
		return run, false
	}
	if len(runs) == 0 {
		return
	}
	low, high := runs[0].First, runs[len(runs)-1].Next
	for range tries {
		first := low - 1 + moldcast.Seq(rnd.Uint64N(uint64(high-low)+2))
		count, size := rnd.IntN(70)-1, rnd.IntN(1500)
		got, ok := h.Messages(first, count, size)
		run, want := held(first)
		if ok != want {
			t.Fatalf("Messages(%d): held %v, want %v", first, ok, want)
		}
		at, used := first, 0
		for got.Len() > 0 {
			if !run.Contains(at) {
				t.Fatalf("Messages(%d): goes on at %d, beyond %v", first, at, run)
			}
			d := string(got.Next())
			if d != message(at) {
				t.Fatalf("Messages(%d): message %d is %q, want %q", first, at, d, message(at))
			}
			at++
			used += 2 + len(d)
		}
		if n := int(at - first); n > max(count, 0) || used > size {
			t.Fatalf("Messages(%d, %d, %d): %d messages, %d bytes", first, count, size, n, used)
		}
		if ok && at == first && count > 0 && 2+len(message(first)) <= size {
			t.Fatalf("Messages(%d, %d, %d): none", first, count, size)
		}
		if whole && ok && at != run.Next && int(at-first) < count && used+2+len(message(at)) <= size {
			t.Fatalf("Messages(%d, %d, %d): stops at %d for no reason", first, count, size, at)
		}
	}
	for range 20 {
		first := low - 1 + moldcast.Seq(rnd.Uint64N(uint64(high-low)+2))
		var want []flat
		for _, p := range pieces {
			if p.Range().Next <= first {
				continue
			}
			if p.First < first {
				_, p.Msgs = p.Msgs.Split(int(first - p.First))
				p.First = first
			}
			want = append(want, flatten(p))
			if len(want) == 3 {
				break
			}
		}
		var got []flat
		h.PiecesFrom(first, func(p moldcast.Piece) bool { got = append(got, flatten(p)); return len(got) < 3 })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("PiecesFrom(%d): %s", first, diff)
		}
	}
	for range 20 {
		at := pieces[rnd.IntN(len(pieces))].Time + moldcast.Stamp(rnd.IntN(3)-1)
		want, ok := moldcast.Seq(0), false
		for _, p := range pieces {
			if p.Time >= at {
				want, ok = p.First, true
				break
			}
		}
		if got, gotOK := h.SeqAt(at); got != want || gotOK != ok {
			t.Fatalf("SeqAt(%d) = %d, %v, want %d, %v", at, got, gotOK, want, ok)
		}
	}
}

func TestBuilderInAnyOrder(t *testing.T) {
	for name, order := range orders {
		for _, base := range bases {
			t.Run(fmt.Sprintf("%s/%d", name, base), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(1, uint64(base)))
				pieces := cutRandomly(rnd, base, 3000, 3, 0.1)
				b := NewBuilder(testSession)
				for range 2 { // the second time in memory that is used again
					b.Reset(testSession)
					for k, i := range order(rnd, len(pieces)) {
						mustAppend(t, b, pieces[i])
						if k%100 == 0 {
							if err := b.Append(pieces[i]); !errors.Is(err, ErrOverlap) {
								t.Fatalf("the same piece again: %v", err)
							}
						}
					}
					if diff := cmp.Diff(flattenAll(pieces), builderPieces(b)); diff != "" {
						t.Fatal(diff)
					}
					if b.Pieces() != len(pieces) || b.Bounds() != (moldcast.Range{First: pieces[0].First, Next: pieces[len(pieces)-1].Range().Next}) {
						t.Errorf("%d pieces of %v, want %d", b.Pieces(), b.Bounds(), len(pieces))
					}
					checkHolder(t, b, pieces, name == "inorder", rnd, 500)
				}
			})
		}
	}
}

// Any piece that overlaps one that is held is refused and changes nothing;
// any other is taken.
func TestBuilderOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBuilder(testSession)
		base := rapid.SampledFrom([]moldcast.Seq{1, 1<<64 - 1 - 60}).Draw(t, "base")
		held := map[moldcast.Seq]bool{}
		for range rapid.IntRange(0, 40).Draw(t, "pieces") {
			first := base + moldcast.Seq(rapid.IntRange(0, 50).Draw(t, "first"))
			n := rapid.IntRange(1, 9).Draw(t, "n")
			msgs, free := make([]string, n), true
			for i := range n {
				msgs[i] = message(first + moldcast.Seq(i))
				free = free && !held[first+moldcast.Seq(i)]
			}
			size, pieces := b.RawSize(), b.Pieces()
			switch err := b.Append(piece(first, 1, msgs...)); {
			case free && err != nil:
				t.Fatalf("%d messages at %d refused: %v", n, first, err)
			case !free && !errors.Is(err, ErrOverlap):
				t.Fatalf("%d messages at %d: %v, want ErrOverlap", n, first, err)
			case !free && (b.RawSize() != size || b.Pieces() != pieces):
				t.Fatal("a refused piece left something behind")
			case free:
				for i := range n {
					held[first+moldcast.Seq(i)] = true
				}
			}
		}
		if b.Count() != len(held) {
			t.Fatalf("%d messages, want %d", b.Count(), len(held))
		}
	})
}

func TestBuilderRefuses(t *testing.T) {
	b := NewBuilder(testSession)
	for _, c := range []struct {
		name string
		p    moldcast.Piece
		want error
	}{
		{"no messages", moldcast.Piece{First: 1}, ErrSeq},
		{"sequence 0", piece(0, 1, "a"), ErrSeq},
		{"beyond the last sequence", piece(1<<64-2, 1, "a", "b"), ErrSeq},
		{"the last sequence is only an end", piece(1<<64-1, 1, "a"), ErrSeq},
		{"the highest message", piece(1<<64-2, 1, "a"), nil},
		{"longer than a block", moldcast.Piece{First: 5, Msgs: moldcast.MessagesOf(make([]byte, MaxRaw), MaxRaw/2)}, ErrFull},
	} {
		if err := b.Append(c.p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, c := range []struct {
		name string
		m    moldcast.Mark
		want error
	}{
		{"data is no mark", moldcast.Mark{Kind: moldcast.Data, Next: 1}, ErrKind},
		{"sequence 0", moldcast.Mark{Kind: moldcast.End}, ErrSeq},
		{"an end", moldcast.Mark{Kind: moldcast.End, Next: 1<<64 - 1}, nil},
	} {
		if err := b.Mark(c.m); !errors.Is(err, c.want) {
			t.Errorf("mark: %s: %v, want %v", c.name, err, c.want)
		}
	}
	if b.Pieces() != 1 || len(b.Marks()) != 1 {
		t.Errorf("%d pieces, %d marks", b.Pieces(), len(b.Marks()))
	}
}

// The largest piece always fits a block that is cut at MaxTarget.
func TestBuilderLargestPiece(t *testing.T) {
	b := NewBuilder(testSession)
	big := piece(1, 1, string(make([]byte, 65535)))
	for b.RawSize() < MaxTarget {
		mustAppend(t, b, big)
		big.First++
	}
	if b.RawSize() > MaxRaw {
		t.Errorf("%d bytes", b.RawSize())
	}
}

// What a reader took under the lock stays as it was while the writer goes on.
func TestBuilderReadersBesideWriter(t *testing.T) {
	b := NewBuilder(testSession)
	var mu sync.RWMutex
	var wg sync.WaitGroup
	const n = 4000
	mustAppend(t, b, piece(1, 1, message(1)))
	for r := range 2 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(r), 1))
			for {
				mu.RLock()
				high := b.Bounds().Next
				first := 1 + moldcast.Seq(rnd.Uint64N(uint64(high-1)))
				m, ok := b.Messages(first, 10, 1400)
				mu.RUnlock()
				if !ok {
					t.Errorf("message %d is not there", first)
					return
				}
				for at := first; m.Len() > 0; at++ {
					if d := string(m.Next()); d != message(at) {
						t.Errorf("message %d is %q", at, d)
						return
					}
				}
				if high == n {
					return
				}
			}
		})
	}
	for s := moldcast.Seq(3); s < n; s += 2 { // odd ones first, even ones behind
		mu.Lock()
		mustAppend(t, b, piece(s, 1, message(s)))
		mustAppend(t, b, piece(s-1, 1, message(s-1)))
		mu.Unlock()
	}
	wg.Wait()
}

// Room that was made is not made again, and what is held stays as it is.
func TestGrow(t *testing.T) {
	b, pieces := filled(4<<10, 4, 0)
	before := string(b.arena)
	b.Grow(64 << 10)
	if string(b.arena) != before || cap(b.arena) < 64<<10 {
		t.Fatalf("%d bytes of %d, want %d of at least %d", len(b.arena), cap(b.arena), len(before), 64<<10)
	}
	b.Grow(1)
	b.Grow(0)
	at := &b.arena[0]
	for b.RawSize() < 60<<10 {
		p := pieces[0]
		p.First = b.Bounds().Next
		if err := b.Append(p); err != nil {
			t.Fatal(err)
		}
	}
	if &b.arena[0] != at {
		t.Error("it grew all the same")
	}
}
