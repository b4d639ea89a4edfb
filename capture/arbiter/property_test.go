package arbiter

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// body is message q in the properties: its length varies with q, 0 too.
func body(q moldcast.Seq) string {
	n := int(q*2654435761>>7) % 97
	b := strings.Repeat("x", n)
	if n >= 8 {
		b = string(binary.BigEndian.AppendUint64(nil, uint64(q))) + b[8:]
	}
	return b
}

func bodies(s moldcast.Session, r moldcast.Range) []byte {
	d := moldcast.AppendHeader(nil, s, r.First, uint16(r.Len()))
	for q := r.First; q < r.Next; q++ {
		d = moldcast.AppendMessage(d, []byte(body(q)))
	}
	return d
}

// starts are where sequence logic tends to be wrong.
var starts = rapid.OneOf(
	rapid.Just(moldcast.Seq(1)),
	rapid.Just(moldcast.Seq(484311999)),
	rapid.Just(moldcast.Seq(1<<63-50)),
	rapid.Just(^moldcast.Seq(0)-400),
)

// feed is one line's version of a session: framed its own way, then lossy,
// repeated and out of order.
func feed(t *rapid.T, all moldcast.Range, loss int, label string) []moldcast.Range {
	var out []moldcast.Range
	for at := all.First; at < all.Next; {
		n := moldcast.Seq(rapid.IntRange(1, 12).Draw(t, label+" packet"))
		r := moldcast.Range{First: at, Next: min(all.Next, at+n)}
		at = r.Next
		switch k := rapid.IntRange(0, 99).Draw(t, label+" fate"); {
		case k < loss:
			continue
		case k > 96:
			out = append(out, r, r)
		default:
			out = append(out, r)
		}
	}
	for i := range out {
		if rapid.IntRange(0, 9).Draw(t, label+" late") == 0 {
			j := min(len(out)-1, i+rapid.IntRange(1, 6).Draw(t, label+" by"))
			r := out[i]
			copy(out[i:j], out[i+1:j+1])
			out[j] = r
		}
	}
	return out
}

// sim drives an arbiter with two lines and a server in virtual time, and
// knows by brute force what must be held and when it was heard.
type sim struct {
	t       *rapid.T
	a       *Arbiter
	rec     *recorder
	now     moldcast.Instant
	name    moldcast.Session
	all     moldcast.Range
	offered uint64
	heard   gap.Set                         // what lines brought
	live    map[moldcast.Seq]moldcast.Stamp // the time of what is held
	first   []func()                        // what the first, held packet brought
	server  func(gap.Request)
}

func (s *sim) stamp() moldcast.Stamp { return epoch + moldcast.Stamp(s.now) }

func (s *sim) session() *Session { return s.a.sessions[s.name] }

func (s *sim) line(line int, r moldcast.Range) {
	s.heard.Add(r)
	stamp := s.stamp()
	var fresh []moldcast.Seq
	ss := s.session()
	for q := r.First; q < r.Next; q++ {
		if ss == nil || !ss.holds(q) {
			fresh = append(fresh, q)
		}
	}
	took := func() {
		for _, q := range fresh {
			if _, known := s.live[q]; !known && s.session().holds(q) {
				s.live[q] = stamp
			}
		}
	}
	s.offered++
	s.a.Offer(s.now, stamp, line, sender, bodies(s.name, r))
	s.first = append(s.first, took)
	s.took()
	s.poll()
}

// took takes note of what the packets since the last time brought: those that
// were held too, once the session is taken up.
func (s *sim) took() {
	if s.session() != nil {
		for _, f := range s.first {
			f()
		}
		s.first = nil
	}
}

func (s *sim) mark(kind uint16) {
	s.offered++
	s.a.Offer(s.now, s.stamp(), 0, sender, moldcast.AppendHeader(nil, s.name, s.all.Next, kind))
	s.took()
	s.poll()
}

func (s *sim) poll() {
	for {
		name, q, ok := s.a.Poll(s.now)
		if !ok {
			break
		}
		if name != s.name {
			s.t.Fatalf("asked for session %v", name)
		}
		s.server(q)
	}
	checkLaws(s.t, s.a, s.offered)
	s.neighbours()
}

// neighbours checks the times around each gap by brute force.
func (s *sim) neighbours() {
	ss := s.session()
	if ss == nil {
		return
	}
	for i := range ss.missing.gaps {
		g := &ss.missing.gaps[i]
		lo, hi := s.around(g.Range)
		if !near(lo, g.lo) || !near(hi, g.hi) {
			s.t.Fatalf("%v lies between %v and %v, the ledger says %v and %v", g.Range, lo, hi, g.lo, g.hi)
		}
	}
}

// around is what is held next to r.
func (s *sim) around(r moldcast.Range) (lo, hi point) {
	for q := r.First; q > s.all.First && lo.seq == 0; q-- {
		if t, ok := s.live[q-1]; ok {
			lo = point{q - 1, t}
		}
	}
	for q := r.Next; q < s.all.Next && hi.seq == 0; q++ {
		if t, ok := s.live[q]; ok {
			hi = point{q, t}
		}
	}
	return lo, hi
}

// near allows for what is interpolated in steps, and rounded in each.
func near(x, y point) bool {
	d := x.time - y.time
	return x.seq == y.seq && -50 < d && d < 50
}

// answer takes note of what an answer brings, of which nothing is held: it
// lies between what is held around it.
func (s *sim) answer(server int, r moldcast.Range) {
	s.offered++
	stamp := s.stamp()
	fresh := map[moldcast.Seq]moldcast.Stamp{}
	for i := range s.session().missing.gaps {
		g := s.session().missing.gaps[i]
		g.lo, g.hi = s.around(g.Range)
		in := g.Intersect(r)
		for q := in.First; q < in.Next; q++ {
			fresh[q] = g.at(q, stamp)
		}
	}
	s.a.OfferAnswer(s.now, stamp, server, bodies(s.name, r))
	for q, t := range fresh {
		if s.session().holds(q) {
			s.live[q] = t
		}
	}
	s.poll()
}

func (s *sim) advance(d time.Duration) {
	to := s.now + moldcast.Instant(d)
	for range 1_000_000 {
		at := s.a.Deadline()
		if at > to {
			s.now = to
			return
		}
		s.now = max(s.now, at)
		s.poll()
	}
	s.t.Fatalf("the deadline stays at %v", s.now)
}

// TestTwoLines: under loss, repetition, disorder and any framing on two
// lines, with any wait, a store that refuses now and then, and a server that
// answers or none, what is stored is exactly what came, each message once with
// its bytes; with a server everything; and the counters add up.
func TestTwoLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := starts.Draw(t, "first")
		count := moldcast.Seq(rapid.IntRange(2, 250).Draw(t, "messages"))
		s := &sim{t: t, name: session("SIM"), live: map[moldcast.Seq]moldcast.Stamp{}}
		s.all = moldcast.Range{First: first, Next: first + count}
		s.rec = newRecorder(t)
		s.rec.sent = func(_ moldcast.Session, q moldcast.Seq, data string) bool { return data == body(q) }
		servers := rapid.IntRange(0, 2).Draw(t, "servers")
		cfg := Config{
			Lines: 2, Servers: servers, Start: Live,
			ReorderWait:  time.Duration(rapid.SampledFrom([]int{-1, 1, 50_000, 2_000_000, 1e9}).Draw(t, "wait")),
			ReorderBytes: MinReorderBytes,
			Gap: gap.Config{
				Seed: 1, Budget: time.Second, RequestsPerSecond: 1e6,
				Outstanding: rapid.SampledFrom([]int{1, 64}).Draw(t, "outstanding"),
			},
		}
		// A small bound, which Validate forbids since it does not hold the
		// largest datagram, makes overflows frequent.
		small := rapid.Bool().Draw(t, "small")
		a, err := New(cfg, s.rec)
		if err != nil {
			t.Fatal(err)
		}
		if small {
			a.cfg.ReorderBytes = 4000
		}
		s.a = a
		refusals := rapid.SampledFrom([]int{0, 0, 20}).Draw(t, "refusals")
		random := uint64(1)
		chance := func(percent int) bool {
			random = random*6364136223846793005 + 1442695040888963407
			return int(random>>33%100) < percent
		}
		// Not at the take-up, where the test could not tell which packet was
		// refused.
		s.rec.busy = func(moldcast.Piece) bool { return len(s.first) == 0 && chance(refusals) }
		type answer struct {
			r      moldcast.Range
			server int
		}
		var answers []answer
		s.server = func(q gap.Request) {
			if q.Server >= servers {
				t.Fatalf("request %+v to a server that is not there", q)
			}
			if !chance(20) {
				n := moldcast.Seq(1 + random>>40%9)
				answers = append(answers, answer{moldcast.Range{First: q.Range.First, Next: min(q.Range.Next, q.Range.First+n)}, q.Server})
			}
		}
		flush := func() {
			for _, x := range slices.Clone(answers) {
				answers = answers[1:]
				s.answer(x.server, x.r)
			}
		}

		loss := rapid.SampledFrom([]int{0, 3, 30}).Draw(t, "loss")
		lines := [2][]moldcast.Range{feed(t, s.all, loss, "A"), feed(t, s.all, loss, "B")}
		for len(lines[0])+len(lines[1]) > 0 {
			l := rapid.IntRange(0, 1).Draw(t, "line")
			if len(lines[l]) == 0 {
				l = 1 - l
			}
			s.line(l, lines[l][0])
			lines[l] = lines[l][1:]
			s.advance(time.Duration(rapid.SampledFrom([]int{0, 1000, 300_000, 3_000_000}).Draw(t, "pause")))
			if len(answers) > 0 && rapid.Bool().Draw(t, "answer") {
				flush()
			}
		}
		for i := 0; !a.Done(); i++ {
			if i > 5000 {
				t.Fatalf("not done: %+v, missing %v", a.Counters(), s.session().missing.gaps)
			}
			s.mark(moldcast.EndCount)
			s.advance(5 * time.Millisecond)
			flush()
		}
		for i := 0; !a.Flush(s.now) && i < 1000; i++ {
		}

		got := s.rec.stored[s.name].set
		c := a.Counters()
		want := s.heard
		if servers > 0 && c.MessagesLost == 0 {
			want = gap.Set{}
			want.Add(moldcast.Range{First: s.session().First(), Next: s.all.Next})
		}
		if servers == 0 && refusals == 0 && !small || servers > 0 && c.MessagesLost == 0 {
			if !slices.Equal(got.Ranges(), want.Ranges()) {
				t.Fatalf("stored %v, want %v; %+v", got.Ranges(), want.Ranges(), c)
			}
		}
		if servers == 0 && c.NaksSent > 0 {
			t.Fatalf("%d requests to nobody", c.NaksSent)
		}
		if refusals == 0 && !small && c.QueueDropped > 0 {
			t.Fatalf("dropped %d", c.QueueDropped)
		}
		if got.Count() != c.Messages {
			t.Fatalf("stored %d messages, counted %d", got.Count(), c.Messages)
		}
	})
}

// TestMessagesAreConserved: whatever comes, each message of a packet that
// counts is stored, a duplicate, a conflict, dropped, not asked for, or waits.
func TestMessagesAreConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := newRecorder(t)
		rec.forgets = true
		rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
		a, err := New(Config{
			Lines: 2, Servers: 1,
			Start: rapid.SampledFrom([]Start{Beginning, Live}).Draw(t, "start"),
			Gap:   gap.Config{MaxGaps: rapid.SampledFrom([]int{2, 8, 1000}).Draw(t, "max gaps"), Budget: 10 * time.Second},
			Limits: Limits{
				NewSessions: 3, Sessions: 3, HeldPackets: 4, Jump: 50,
				Compared: rapid.SampledFrom([]int{1, 8192}).Draw(t, "compared"),
			},
		}, rec)
		if err != nil {
			t.Fatal(err)
		}
		a.cfg.ReorderBytes = rapid.SampledFrom([]int{300, 2000, MinReorderBytes}).Draw(t, "reorder bytes")
		names := []moldcast.Session{session("A"), session("B"), session("C"), session("D"), session("E")}
		var now moldcast.Instant
		var offered uint64
		var requests []moldcast.Request
		var messages uint64 // of all datagrams that parse
		seqs := rapid.OneOf(
			rapid.Uint64Range(1, 60),
			rapid.Uint64Range(100, 200),
			rapid.Uint64Range(1<<63, 1<<63+30),
			rapid.Uint64Range(1<<64-40, 1<<64-2),
		)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += moldcast.Instant(rapid.SampledFrom([]int64{0, 1000, 1e6, 5e6, 1e9, 4e12}).Draw(t, "pause"))
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 10, 11:
				if len(a.Sessions()) == 0 {
					break
				}
				s := a.Sessions()[rapid.IntRange(0, len(a.Sessions())-1).Draw(t, "session")]
				if rapid.Bool().Draw(t, "reserve") {
					s.Reserve(now, moldcast.Range{First: s.First(), Next: s.Head()})
				} else {
					s.Release(now, moldcast.Range{First: s.First(), Next: s.Head()})
				}
				var framed []byte
				for i := range 20 {
					framed = moldcast.AppendMessage(framed, []byte{byte(i % 2)})
				}
				before, head := a.Counters(), s.Head()
				from := max(1, s.Next()-moldcast.Seq(rapid.IntRange(0, 5).Draw(t, "back")))
				out := a.OfferStream(now, epoch+moldcast.Stamp(now), s, from, moldcast.MessagesOf(framed, 20))
				c := a.Counters()
				if out.Gone || s.Head() != head || out.Taken < 20 && out.Conflicts == 0 && !rec.busy(moldcast.Piece{}) && before.Messages+1 < c.Messages {
					t.Fatalf("%+v, head %d, was %d", out, s.Head(), head)
				}
				if out.Conflicts != c.Conflicts-before.Conflicts || c.QueueDropped != before.QueueDropped {
					t.Fatalf("%+v: %+v, before %+v", out, c, before)
				}
			case 0:
				rec.busy = func(moldcast.Piece) bool { return true }
			case 1:
				rec.busy = func(moldcast.Piece) bool { return false }
			case 2:
				rec.fail = !rec.fail
			case 3:
				a.Flush(now)
			case 4, 5:
				if len(requests) == 0 {
					break
				}
				q := requests[rapid.IntRange(0, len(requests)-1).Draw(t, "request")]
				d := moldcast.AppendHeader(nil, q.Session, q.First, 2)
				d = moldcast.AppendMessage(moldcast.AppendMessage(d, []byte("x")), []byte("y"))
				offered++
				if p, err := moldcast.Parse(d); err == nil {
					messages += uint64(p.Msgs.Len())
				}
				a.OfferAnswer(now, epoch+moldcast.Stamp(now), 0, d)
			default:
				n := rapid.SampledFrom([]int{0, 1, 1, 3, 40, moldcast.EndCount}).Draw(t, "count")
				d := moldcast.AppendHeader(nil, names[rapid.IntRange(0, len(names)-1).Draw(t, "name")], moldcast.Seq(seqs.Draw(t, "seq")), uint16(n))
				for i := range n % moldcast.EndCount {
					d = moldcast.AppendMessage(d, []byte{byte(i % 2)})
				}
				if rapid.IntRange(0, 19).Draw(t, "cut") == 0 {
					d = d[:rapid.IntRange(0, len(d)).Draw(t, "to")]
				}
				offered++
				if p, err := moldcast.Parse(d); err == nil {
					messages += uint64(p.Msgs.Len())
				}
				a.Offer(now, epoch+moldcast.Stamp(now), rapid.IntRange(0, 1).Draw(t, "line"), sender, d)
			}
			if rapid.Bool().Draw(t, "poll") {
				for name, q, ok := a.Poll(now); ok; name, q, ok = a.Poll(now) {
					requests = append(requests, moldcast.Request{Session: name, First: q.Range.First})
				}
			}
			checkLaws(t, a, offered)
			c := a.Counters()
			waits, _ := a.Waiting()
			sum := c.Messages + c.Duplicates + c.Conflicts + c.QueueDropped + c.Unasked + waits - c.Retaken - c.Copied - c.Streamed
			if sum > messages || c.Malformed+c.Implausible+c.WrongSession+uint64(a.HeldPackets()) == 0 && sum != messages {
				t.Fatalf("%d messages offered, %d accounted for: %+v, %d wait", messages, sum, c, waits)
			}
			if len(a.Sessions()) > 3 || len(a.held) > 4 || len(a.names) > 3 || len(a.failing) > 3 {
				t.Fatalf("%d sessions, %d held, %d names, %d failing", len(a.Sessions()), len(a.held), len(a.names), len(a.failing))
			}
		}
	})
}

// FuzzOffer feeds anything at all, as datagrams of lines and servers.
func FuzzOffer(f *testing.F) {
	one := packet(session("S"), moldcast.Range{First: 1, Next: 4}, false)
	two := packet(session("S"), moldcast.Range{First: 5, Next: 7}, false)
	var seed []byte
	for i, d := range [][]byte{one, two, two, one, moldcast.AppendHeader(nil, session("S"), 9, moldcast.EndCount)} {
		seed = append(append(seed, byte(i), byte(len(d))), d...)
	}
	f.Add(seed)
	f.Add([]byte{0, 0, 1, 20, 2, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		rec := newRecorder(t)
		rec.sent = func(moldcast.Session, moldcast.Seq, string) bool { return true }
		a, err := New(Config{Lines: 2, Servers: 1, Limits: Limits{HeldPackets: 4, NewSessions: 4}}, rec)
		if err != nil {
			t.Fatal(err)
		}
		var now moldcast.Instant
		var offered uint64
		for len(in) > 2 {
			how, n := in[0], min(int(in[1]), len(in)-2)
			d := slices.Clone(in[2 : 2+n])
			in = in[2+n:]
			offered++
			now += moldcast.Instant(how>>3) * 1e6
			if how&3 == 3 {
				a.OfferAnswer(now, epoch, 0, d)
			} else {
				a.Offer(now, epoch, int(how&1), sender, d)
			}
			for _, _, ok := a.Poll(now); ok; _, _, ok = a.Poll(now) {
			}
			checkLaws(t, a, offered)
		}
	})
}
