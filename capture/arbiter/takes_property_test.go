package arbiter

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// forger is another sender than the true one.
var forger = netip.AddrFrom4([4]byte{10, 0, 0, 66})

// stage drives an arbiter for the properties of takes.
type stage struct {
	t       *rapid.T
	a       *Arbiter
	rec     *recorder
	name    moldcast.Session
	now     moldcast.Instant
	offered uint64
}

func newStage(t *rapid.T, lines int) *stage {
	s := &stage{t: t, rec: newRecorder(t), name: session("S")}
	s.begin(lines)
	return s
}

// begin starts an arbiter anew, over what the recorder holds.
func (s *stage) begin(lines int) {
	a, err := New(Config{
		Lines: lines, Start: Live, ReorderWait: -1,
		Limits: Limits{Takes: 1000},
	}, s.rec)
	if err != nil {
		s.t.Fatal(err)
	}
	s.a, s.offered = a, 0
}

func (s *stage) offer(line int, src netip.Addr, d []byte) {
	s.offered++
	s.a.Offer(s.now, epoch+moldcast.Stamp(s.now), line, src, d)
	s.poll()
}

func (s *stage) poll() {
	for _, _, ok := s.a.Poll(s.now); ok; _, _, ok = s.a.Poll(s.now) {
	}
	checkLaws(s.t, s.a, s.offered)
}

// settle answers what the output was asked for.
func (s *stage) settle() {
	s.rec.answer(s.a, s.now)
	s.rec.copy(s.a, s.now, epoch+moldcast.Stamp(s.now))
	s.poll()
}

func (s *stage) takes() []*archived { return s.rec.takes[s.name] }

// exactly checks that a take is all of r, those from alt on as the restarted
// sender sent them.
func (s *stage) exactly(take int, r moldcast.Range, alt moldcast.Seq) {
	s.t.Helper()
	k := s.takes()[take-1]
	if part, held := k.set.Cut(r); !held || part != r || k.set.Count() != r.Len() {
		s.t.Fatalf("take %d holds %v, want %v", take, k.set.Ranges(), r)
	}
	for q := r.First; q < r.Next; q++ {
		if k.bytes[q] != payload(s.name, q, q >= alt) {
			s.t.Fatalf("take %d, message %d is %q", take, q, k.bytes[q])
		}
	}
}

// TestForgedPacketsNeverFork: packets with other bytes, heartbeats that are
// low and an End, all forged, with a packet of the true sender after each, fork
// nothing and change nothing.
func TestForgedPacketsNeverFork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStage(t, 1)
		first := starts.Draw(t, "first")
		next, young := first, false
		send := func() {
			r := moldcast.Range{First: next, Next: next + moldcast.Seq(rapid.IntRange(1, 8).Draw(t, "messages"))}
			// What waits for a comparison is not held yet: then the sender only
			// goes on, so that what is forged is of what is held.
			if !young && next > first && rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				r.First -= min(next-first, moldcast.Seq(rapid.IntRange(1, 8).Draw(t, "back")))
			}
			next = max(next, r.Next)
			s.offer(0, sender, packet(s.name, r, false))
		}
		send()
		send()
		send()
		if rapid.Bool().Draw(t, "restarted process") {
			s.rec.held[s.name] = moldcast.Held{First: first, Next: next, Head: next}
			s.begin(1)
			young = true
			send()
			send()
			s.settle()
		}
		spoofed := rapid.SampledFrom([]netip.Addr{forger, sender}).Draw(t, "source")
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			pause := moldcast.Instant(rapid.SampledFrom([]int64{0, 1e3, 1e8, 15e8}).Draw(t, "pause"))
			s.now += pause
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				s.offer(0, spoofed, moldcast.AppendHeader(nil, s.name, next, moldcast.EndCount))
			case 1:
				s.offer(0, spoofed, moldcast.AppendHeader(nil, s.name, first, 0))
			default:
				at := moldcast.Seq(rapid.Uint64Range(uint64(first), uint64(next-1)).Draw(t, "at"))
				r := moldcast.Range{First: at, Next: at + moldcast.Seq(rapid.IntRange(1, 20).Draw(t, "forged"))}
				s.offer(0, spoofed, packet(s.name, r, true))
			}
			if rapid.Bool().Draw(t, "settle") {
				s.settle()
			}
			send()
		}
		s.settle()
		if n := len(s.takes()); n != 1 {
			t.Fatalf("%d takes", n)
		}
		s.exactly(1, moldcast.Range{First: first, Next: next}, ^moldcast.Seq(0))
	})
}

// TestRestartsForkOnce: a sender that begins anew, its beginning the same or
// not, forks once; both takes are complete and neither has a message of the
// other. One line or two, one behind the other; with packets that come twice;
// before or after a restart of the process.
func TestRestartsForkOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.IntRange(1, 2).Draw(t, "lines")
		s := newStage(t, lines)
		first := starts.Draw(t, "first")
		// Each line packs as it likes, and B comes after A by some packets.
		play := func(all moldcast.Range, alt moldcast.Seq) {
			var feeds [2][]moldcast.Range
			for l := range lines {
				for at := all.First; at < all.Next; {
					r := moldcast.Range{First: at, Next: min(all.Next, at+moldcast.Seq(rapid.IntRange(1, 8).Draw(t, "packet")))}
					feeds[l] = append(feeds[l], r)
					if rapid.IntRange(0, 19).Draw(t, "twice") == 0 && r.First < alt {
						feeds[l] = append(feeds[l], r)
					}
					at = r.Next
				}
			}
			lag := rapid.IntRange(0, 4).Draw(t, "lag")
			for i := 0; i < max(len(feeds[0]), len(feeds[1])+lag); i++ {
				for l := range lines {
					j := i - l*lag
					if j < 0 || j >= len(feeds[l]) {
						continue
					}
					r := feeds[l][j]
					d := moldcast.AppendHeader(nil, s.name, r.First, uint16(r.Len()))
					for q := r.First; q < r.Next; q++ {
						d = moldcast.AppendMessage(d, []byte(payload(s.name, q, q >= alt)))
					}
					s.offer(l, sender, d)
				}
				s.now += moldcast.Instant(rapid.SampledFrom([]int64{0, 1e4, 1e6}).Draw(t, "pause"))
				if rapid.IntRange(0, 3).Draw(t, "settle") == 0 {
					s.settle()
				}
			}
			s.settle()
		}
		same := moldcast.Seq(rapid.IntRange(0, 40).Draw(t, "the same"))
		old := moldcast.Range{First: first, Next: first + same + moldcast.Seq(rapid.IntRange(100, 160).Draw(t, "old"))}
		fresh := moldcast.Range{First: first, Next: first + same + moldcast.Seq(rapid.IntRange(80, 220).Draw(t, "new"))}
		play(old, ^moldcast.Seq(0))
		s.now += moldcast.Instant(rapid.SampledFrom([]time.Duration{5 * time.Millisecond, 5 * time.Second}).Draw(t, "away"))
		if rapid.Bool().Draw(t, "restarted process") {
			s.rec.held[s.name] = moldcast.Held{First: old.First, Next: old.Next, Head: old.Next}
			s.begin(lines)
		}
		play(fresh, first+same)
		if n := len(s.takes()); n != 2 {
			t.Fatalf("%d takes", n)
		}
		s.exactly(1, old, ^moldcast.Seq(0))
		s.exactly(2, fresh, first+same)
	})
}
