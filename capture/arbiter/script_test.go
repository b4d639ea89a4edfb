package arbiter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// epoch is the wall clock at instant 0 of a script.
const epoch moldcast.Stamp = 1_500_000_000_000_000_000

// script runs one testdata file:
//
//	new [lines=N] [servers=N] [start=live|beginning] [stall] [sessions=S,…]
//	    [increments=…] [restart=…] [heartbeats=…] [reorder-wait=DUR] [reorder-bytes=N] [NAME=… of the limits]
//	archive S first=N head=N [holes=A..B[@BEFORE/AFTER],…] [end=N] [headtime=DUR]
//	    what Output.Open will find
//	run
//	TIME LINE data A..B [S] [alt] [at=DUR]   LINE is A, B, C, of the sender there,
//	                                    A/x of sender x; srv0 is an answer
//	TIME LINE hb N [S]
//	TIME LINE end N [S]
//	TIME LINE raw HEX
//	TIME poll
//	TIME flush
//	TIME busy | ready                   the store refuses, takes again
//	TIME fail | mend                    Open and Fork fail, work again
//	TIME compare | copy                 answers the comparisons asked for, makes the copies
//	TIME stored TAKE                    what was stored of a take of S: the bytes' variants
//	TIME count                          the counters that are not 0
//	TIME state                          what is missing, waits, is held
//
// Timers that fall due before a line of the script run at their time. A line
// of the output is what the arbiter did, at the time before it.
type script struct {
	t       *testing.T
	a       *Arbiter
	rec     *recorder
	now     moldcast.Instant
	offered uint64
	out     strings.Builder
	lastAt  moldcast.Instant
}

func (s *script) printf(format string, args ...any) {
	at := ""
	if s.now != s.lastAt {
		at = dur(int64(s.now))
		s.lastAt = s.now
	}
	fmt.Fprintf(&s.out, "%-8s %s\n", at, fmt.Sprintf(format, args...))
}

func dur(ns int64) string { return time.Duration(ns).String() }

func stampStr(t moldcast.Stamp) string {
	if t == 0 {
		return "-"
	}
	return dur(int64(t - epoch))
}

// recorder is the Output of tests: it logs, keeps what was stored, and fails
// the test when a message is stored twice or with other bytes than sent.
type recorder struct {
	heard  []moldcast.Heard
	t      tester
	logf   func(format string, args ...any)
	sent   func(s moldcast.Session, q moldcast.Seq, data string) bool // whether those are the bytes of q
	held   map[moldcast.Session]moldcast.Held
	busy   func(moldcast.Piece) bool
	fail   bool
	stored map[moldcast.Session]*archived   // the latest takes
	takes  map[moldcast.Session][]*archived // all

	forgets     bool // a session that is closed: Open tells nothing of it
	compare     bool // comparisons are taken
	comparisons []*Comparison
	copies      []copying
}

type archived struct {
	set   gap.Set
	bytes map[moldcast.Seq]string
	ended bool
}

type copying struct {
	was    *archived
	next   *Session
	ranges []moldcast.Range
}

// String is the ranges of a, each with whose messages they are.
func (a *archived) String() string {
	var parts []string
	for _, r := range a.set.Ranges() {
		for q := r.First; q < r.Next; {
			alt := strings.HasPrefix(a.bytes[q], "other")
			n := q
			for n < r.Next && strings.HasPrefix(a.bytes[n], "other") == alt {
				n++
			}
			parts = append(parts, fmt.Sprintf("%v%s", moldcast.Range{First: q, Next: n}, map[bool]string{true: " alt"}[alt]))
			q = n
		}
	}
	return strings.Join(parts, ", ")
}

// tester is what tests and properties have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

func newRecorder(t tester) *recorder {
	return &recorder{
		t: t, logf: func(string, ...any) {},
		held: map[moldcast.Session]moldcast.Held{}, stored: map[moldcast.Session]*archived{}, takes: map[moldcast.Session][]*archived{}, compare: true,
		busy: func(moldcast.Piece) bool { return false },
		sent: func(s moldcast.Session, q moldcast.Seq, data string) bool {
			return data == "" || data == payload(s, q, false) || data == payload(s, q, true)
		},
	}
}

var errDisk = errors.New("disk trouble")

func (r *recorder) Open(s *Session) (moldcast.Held, error) {
	if r.fail {
		r.logf("open %v fails", s.Name())
		return moldcast.Held{}, errDisk
	}
	k := r.stored[s.Name()]
	if k == nil {
		k = &archived{bytes: map[moldcast.Seq]string{}}
		r.stored[s.Name()] = k
		r.takes[s.Name()] = append(r.takes[s.Name()], k)
	}
	s.Ref = k
	h := r.held[s.Name()]
	r.logf("open %v", s.Name())
	return h, nil
}

func (r *recorder) Append(s *Session, p moldcast.Piece) bool {
	k := s.Ref.(*archived)
	if r.busy(p) {
		r.logf("append %v %v refused", s.Name(), p.Range())
		return false
	}
	if p.Msgs.Len() == 0 {
		r.t.Errorf("append %v %d: no messages", s.Name(), p.First)
	}
	for m, q := p.Msgs, p.First; m.Len() > 0; q++ {
		got := string(m.Next())
		if !r.sent(s.Name(), q, got) {
			r.t.Errorf("append %v %d: bytes %q", s.Name(), q, got)
		}
		k.bytes[q] = got
	}
	if part, held := k.set.Cut(p.Range()); held || part != p.Range() {
		r.t.Errorf("append %v %v: stored before", s.Name(), p.Range())
	}
	k.set.Add(p.Range())
	what := lineName(int(p.Line))
	if p.Flags&moldcast.Repaired != 0 {
		what += " repaired"
	}
	if p.Time != p.Heard || p.Flags != 0 {
		what += " heard " + stampStr(p.Heard)
	}
	r.logf("append %v %v %s time %s", s.Name(), p.Range(), what, stampStr(p.Time))
	return true
}

func (r *recorder) Room(*Session) bool { return !r.busy(moldcast.Piece{}) }

func (r *recorder) Covers(s *Session, q moldcast.Range) (moldcast.Range, bool) {
	return s.Ref.(*archived).set.Cut(q)
}

func (r *recorder) Mark(s *Session, m moldcast.Mark) {
	r.logf("mark %v %v %d %s time %s", s.Name(), m.Kind, m.Next, lineName(int(m.Line)), stampStr(m.Stamp))
}

func (r *recorder) Heard(s *Session, h moldcast.Heard) { r.heard = append(r.heard, h) }

func (r *recorder) Hole(s *Session, h moldcast.Hole) {
	r.logf("hole %v %v %s time %s between %s and %s", s.Name(), h.Range, h.Reason, stampStr(h.Time), stampStr(h.Before), stampStr(h.After))
}

func (r *recorder) Ended(s *Session) {
	s.Ref.(*archived).ended = true
	end, _ := s.End()
	r.logf("ended %v %d", s.Name(), end)
}

func (r *recorder) Withdrawn(s *Session) {
	s.Ref.(*archived).ended = false
	r.logf("withdrawn the end of %v", s.Name())
}

func (r *recorder) Superseded(was, by *Session) {
	if was.Name() != by.Name() { // a take is told by Fork
		r.logf("superseded %v by %v", was.Name(), by.Name())
	}
}

func (r *recorder) Conflict(s *Session, at moldcast.Seq, line int) {
	r.logf("conflict %v %d %s", s.Name(), at, lineName(line))
}

func (r *recorder) Compare(c *Comparison) bool {
	if r.compare {
		r.comparisons = append(r.comparisons, c)
	}
	return r.compare
}

// answer gives what came of the comparisons so far.
func (r *recorder) answer(a *Arbiter, now moldcast.Instant) {
	for len(r.comparisons) > 0 {
		c := r.comparisons[0]
		r.comparisons = r.comparisons[1:]
		k, res := c.Session.Ref.(*archived), Compared{}
		for m, q := c.Msgs, c.First; m.Len() > 0; q++ {
			if got := string(m.Next()); k.set.Contains(q) && k.bytes[q] != got {
				if res.Differ++; res.Differ == 1 {
					res.At = q
				}
			}
		}
		r.logf("compared %v %v: %d differ", c.Session.Name(), moldcast.Range{First: c.First, Next: c.First + moldcast.Seq(c.Msgs.Len())}, res.Differ)
		a.Compared(now, c, res)
	}
}

func (r *recorder) Fork(was, next *Session, f Fork) error {
	if r.fail {
		r.logf("fork %v fails", was.Name())
		return errDisk
	}
	k := &archived{bytes: map[moldcast.Seq]string{}}
	next.Ref = k
	r.stored[was.Name()] = k
	r.takes[was.Name()] = append(r.takes[was.Name()], k)
	r.logf("take %d of %v from %d: %v at %d, %s", len(r.takes[was.Name()]), was.Name(), f.First, f.Cause, f.At, lineName(f.Line))
	return nil
}

func (r *recorder) Copy(was, next *Session, ranges []moldcast.Range) {
	r.logf("copy %v %v", was.Name(), ranges)
	r.copies = append(r.copies, copying{was.Ref.(*archived), next, ranges})
}

// copy makes the copies asked for so far.
func (r *recorder) copy(a *Arbiter, now moldcast.Instant, stamp moldcast.Stamp) {
	for len(r.copies) > 0 {
		c := r.copies[0]
		r.copies = r.copies[1:]
		for _, g := range c.ranges {
			for q := g.First; q < g.Next; q++ {
				if c.was.set.Contains(q) {
					b := moldcast.AppendMessage(nil, []byte(c.was.bytes[q]))
					a.Copied(now, stamp, c.next, q, moldcast.MessagesOf(b, 1))
				}
			}
		}
	}
}

func (r *recorder) Close(s *Session) {
	r.logf("close %v", s.Name())
	if r.forgets && r.stored[s.Name()] == s.Ref.(*archived) {
		delete(r.stored, s.Name())
	}
}

func lineName(l int) string {
	if l == moldcast.AnswerLine {
		return "answer"
	}
	return string(rune('A' + l))
}

// payload is the message q of session s. alt is what a restarted sender would
// have sent there.
func payload(s moldcast.Session, q moldcast.Seq, alt bool) string {
	if alt {
		return fmt.Sprintf("other %v/%d", s, q)
	}
	return fmt.Sprintf("%v/%d", s, q)
}

func session(name string) moldcast.Session {
	s, err := moldcast.ParseSession(name)
	if err != nil {
		panic(err)
	}
	return s
}

func packet(s moldcast.Session, r moldcast.Range, alt bool) []byte {
	d := moldcast.AppendHeader(nil, s, r.First, uint16(r.Len()))
	for q := r.First; q < r.Next; q++ {
		d = moldcast.AppendMessage(d, []byte(payload(s, q, alt)))
	}
	return d
}

// advance runs the timers up to t.
func (s *script) advance(t moldcast.Instant) {
	for range 100_000 {
		at := s.a.Deadline()
		if at > t {
			s.now = t
			return
		}
		s.now = max(s.now, at)
		s.poll()
	}
	s.t.Fatalf("the deadline stays at %v", s.a.Deadline())
}

func (s *script) poll() {
	for range 10_000 {
		name, q, ok := s.a.Poll(s.now)
		if !ok {
			s.check()
			return
		}
		s.printf("ask %v %v srv%d try %d", name, q.Range, q.Server, q.Try)
	}
	s.t.Fatal("Poll never says false")
}

// check checks the laws of conservation.
func (s *script) check() {
	s.t.Helper()
	checkLaws(s.t, s.a, s.offered)
}

func checkLaws(t tester, a *Arbiter, offered uint64) {
	t.Helper()
	c := a.Counters()
	if sum := c.Packets + c.Malformed + c.Implausible + c.WrongSession + uint64(a.HeldPackets()); sum != offered {
		t.Fatalf("%d datagrams offered, %d accounted for: %+v, %d held", offered, sum, c, a.HeldPackets())
	}
	checkLineLaws(t, a)
	var waits uint64
	var bytes int
	for _, s := range a.Sessions() {
		at := s.First()
		i := 0
		s.m.Gaps(func(g gap.Gap) bool {
			// The ledger has the same ranges, those that adjoin joined.
			for i < len(s.missing.gaps) && s.missing.gaps[i].Next <= g.First {
				i++
			}
			if i == len(s.missing.gaps) || g.Intersect(s.missing.gaps[i].Range) != g.Range {
				t.Fatalf("gap %v of %v is not on the ledger %v", g.Range, s.Name(), s.missing.gaps)
			}
			at = g.Next
			return true
		})
		if got, want := countMissing(s), s.m.Stats().MessagesMissing; got < want || got > want && s.m.Stats().Evicted == 0 {
			t.Fatalf("%d messages on the ledger of %v, %d missing", got, s.Name(), want)
		}
		if at > s.Head() {
			t.Fatalf("gap of %v up to %d, beyond head %d", s.Name(), at, s.Head())
		}
		for i := range s.missing.gaps {
			g := &s.missing.gaps[i]
			if g.Empty() || g.Next > s.Head() || g.First < s.First() ||
				g.lo.seq >= g.First || g.hi.seq != 0 && g.hi.seq < g.Next || i > 0 && g.First <= s.missing.gaps[i-1].Next {
				t.Fatalf("ledger of %v at %d: %+v, %v", s.Name(), i, g, s.missing.gaps)
			}
		}
		for _, r := range s.asked.Ranges() {
			if i := s.missing.find(r.First); i == len(s.missing.gaps) || s.missing.gaps[i].Intersect(r) != r {
				t.Fatalf("asked for %v of %v, which is not missing", r, s.Name())
			}
		}
		old := 0
		for e := s.wait.oldest; e != nil; e = e.newer {
			old++
		}
		if old != len(s.wait.bySeq) {
			t.Fatalf("%d pieces of %v by arrival, %d by sequence", old, s.Name(), len(s.wait.bySeq))
		}
		for i, e := range s.wait.bySeq {
			waits += e.Range().Len()
			bytes += e.size()
			if i > 0 && e.First < s.wait.bySeq[i-1].next() {
				t.Fatalf("pieces of %v wait out of order", s.Name())
			}
		}
	}
	if n, b := a.Waiting(); n != waits || b != bytes || b > a.cfg.ReorderBytes {
		t.Fatalf("%d messages, %d bytes wait; counted %d, %d", waits, bytes, n, b)
	}
}

func countMissing(s *Session) (n uint64) {
	for i := range s.missing.gaps {
		n += s.missing.gaps[i].Len()
	}
	return n
}

func (s *script) line(text string) {
	f := strings.Fields(text)
	at, err := time.ParseDuration(f[0])
	if err != nil {
		s.t.Fatalf("%q: %v", text, err)
	}
	s.advance(moldcast.Instant(at))
	switch f[1] {
	case "poll":
	case "flush":
		if !s.a.Flush(s.now) {
			s.printf("flush refused")
		}
	case "busy":
		s.rec.busy = func(moldcast.Piece) bool { return true }
	case "ready":
		s.rec.busy = func(moldcast.Piece) bool { return false }
	case "fail":
		s.rec.fail = true
	case "mend":
		s.rec.fail = false
	case "compare":
		s.rec.answer(s.a, s.now)
	case "copy":
		s.rec.copy(s.a, s.now, epoch+moldcast.Stamp(s.now))
	case "stored":
		n, _ := strconv.Atoi(f[2])
		if takes := s.rec.takes[session("S")]; n <= len(takes) {
			s.printf("take %d: %s", n, takes[n-1])
		} else {
			s.printf("no take %d", n)
		}
		return
	case "count":
		s.count()
		return
	case "state":
		s.state()
		return
	default:
		s.datagram(f[1], f[2], f[3:])
	}
	s.poll()
}

func (s *script) datagram(who, kind string, args []string) {
	name, alt := session("S"), false
	stamp := epoch + moldcast.Stamp(s.now)
	for _, arg := range args[1:] {
		switch v, is := strings.CutPrefix(arg, "at="); {
		case is:
			d, err := time.ParseDuration(v)
			if err != nil {
				s.t.Fatal(err)
			}
			stamp = epoch + moldcast.Stamp(d)
		case arg == "alt":
			alt = true
		default:
			name = session(arg)
		}
	}
	var d []byte
	switch kind {
	case "data":
		d = packet(name, parseRange(s.t, args[0]), alt)
	case "hb":
		d = moldcast.AppendHeader(nil, name, parseSeq(s.t, args[0]), 0)
	case "end":
		d = moldcast.AppendHeader(nil, name, parseSeq(s.t, args[0]), moldcast.EndCount)
	case "raw":
		d, _ = hex.DecodeString(strings.TrimPrefix(args[0], "0x"))
	default:
		s.t.Fatalf("what is %q", kind)
	}
	s.offered++
	if n, is := strings.CutPrefix(who, "srv"); is {
		server, _ := strconv.Atoi(n)
		s.a.OfferAnswer(s.now, stamp, server, d)
	} else {
		src := byte(who[0])
		if _, name, other := strings.Cut(who, "/"); other {
			src = name[0]
		}
		s.a.Offer(s.now, stamp, int(who[0]-'A'), netip.AddrFrom4([4]byte{127, 0, 0, src}), d)
	}
	// The arbiter must not have kept the datagram.
	for i := range d {
		d[i] = 0xEE
	}
}

func parseSeq(t *testing.T, text string) moldcast.Seq {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return moldcast.Seq(n)
}

func parseRange(t *testing.T, text string) moldcast.Range {
	a, b, two := strings.Cut(text, "..")
	if !two {
		b = a
	}
	return moldcast.Range{First: parseSeq(t, a), Next: parseSeq(t, b) + 1}
}

func (s *script) count() {
	counters := s.a.Counters()
	counters.InOrder, counters.Early, counters.Filled = 0, 0, 0 // what append says anyway
	c := reflect.ValueOf(counters)
	var parts []string
	for i := range c.NumField() {
		if n := c.Field(i).Uint(); n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", c.Type().Field(i).Name, n))
		}
	}
	s.printf("%s", strings.Join(parts, ", "))
}

func (s *script) state() {
	for _, ss := range s.a.Sessions() {
		var parts []string
		for i := range ss.missing.gaps {
			g := &ss.missing.gaps[i]
			parts = append(parts, fmt.Sprintf("missing %v (%s)", g.Range, neighbours(g)))
		}
		for _, e := range ss.wait.bySeq {
			parts = append(parts, fmt.Sprintf("waiting %v", e.Range()))
		}
		s.printf("%v %v first %d next %d head %d stored %v %s", ss.Name(), ss.State(), ss.First(), ss.Next(), ss.Head(),
			ss.Ref.(*archived).set.Ranges(), strings.Join(parts, ", "))
	}
	s.printf("held packets %d, done %v", s.a.HeldPackets(), s.a.Done())
}

func neighbours(g *missing) string {
	p := func(x point) string {
		if x.seq == 0 {
			return "-"
		}
		return fmt.Sprintf("%d at %s", x.seq, stampStr(x.time))
	}
	return p(g.lo) + ", " + p(g.hi)
}

func (s *script) configure(d *datadriven.TestData) {
	cfg := Config{Channel: "test"}
	cfg.Gap.Seed = 1
	for _, arg := range d.CmdArgs {
		v := ""
		if len(arg.Vals) > 0 {
			v = arg.Vals[0]
		}
		duration := func() time.Duration {
			t, err := time.ParseDuration(v)
			if err != nil {
				d.Fatalf(s.t, "%v", err)
			}
			return t
		}
		number := func() int {
			n, err := strconv.Atoi(v)
			if err != nil {
				d.Fatalf(s.t, "%v", err)
			}
			return n
		}
		switch arg.Key {
		case "lines":
			cfg.Lines = number()
		case "servers":
			cfg.Servers = number()
		case "start":
			cfg.Start = map[string]Start{"live": Live, "beginning": Beginning}[v]
		case "stall":
			cfg.OnLoss = Stall
		case "sessions":
			for _, n := range arg.Vals {
				cfg.Sessions = append(cfg.Sessions, session(n))
			}
		case "reorder-wait":
			cfg.ReorderWait = duration()
		case "reorder-bytes":
			cfg.ReorderBytes = number()
		case "budget":
			cfg.Gap.Budget = duration()
		case "max-gaps":
			cfg.Gap.MaxGaps = number()
		case "takes":
			cfg.Limits.Takes = number()
		case "parked":
			cfg.Limits.ParkedPackets = number()
		case "new-sessions":
			cfg.Limits.NewSessions = number()
		case "open-sessions":
			cfg.Limits.Sessions = number()
		case "held-packets":
			cfg.Limits.HeldPackets = number()
		case "compared":
			cfg.Limits.Compared = number()
		case "back":
			cfg.Limits.Back = uint64(number())
		case "increments":
			cfg.Feed.Increments = moldcast.Increments(v)
		case "restart":
			cfg.Feed.Restart = moldcast.Restart(v)
		case "heartbeats":
			cfg.Feed.Heartbeats = moldcast.Heartbeats(v)
		default:
			d.Fatalf(s.t, "unknown argument %s", arg.Key)
		}
	}
	a, err := New(cfg, s.rec)
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	s.a = a
	s.now, s.lastAt, s.offered = 0, -1, 0
}

func (s *script) archive(d *datadriven.TestData) {
	name := session(d.CmdArgs[0].Key)
	k := &archived{bytes: map[moldcast.Seq]string{}}
	h := moldcast.Held{}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "first":
			h.First = parseSeq(s.t, arg.Vals[0])
			h.Next = h.First
		case "head":
			h.Head = parseSeq(s.t, arg.Vals[0])
			h.Next = h.Head
			k.set.Add(moldcast.Range{First: h.First, Next: h.Head})
		case "headtime":
			h.HeadTime = parseStamp(s.t, arg.Vals[0])
		case "end":
			h.Ended, h.End = true, parseSeq(s.t, arg.Vals[0])
		case "holes":
			for _, v := range arg.Vals {
				rng, times, timed := strings.Cut(v, "@")
				hole := moldcast.Hole{Range: parseRange(s.t, rng), Reason: moldcast.NotCaptured}
				if timed {
					before, after, _ := strings.Cut(times, "/")
					hole.Before, hole.After = parseStamp(s.t, before), parseStamp(s.t, after)
				}
				h.Holes = append(h.Holes, hole)
				h.Next = min(h.Next, hole.Range.First)
				k.set.Remove(hole.Range)
			}
		}
	}
	for _, r := range k.set.Ranges() {
		for q := r.First; q < r.Next; q++ {
			k.bytes[q] = payload(name, q, false)
		}
	}
	s.rec.held[name] = h
	s.rec.stored[name] = k
	s.rec.takes[name] = []*archived{k}
}

func parseStamp(t *testing.T, text string) moldcast.Stamp {
	if text == "-" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return epoch + moldcast.Stamp(d)
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			s.out.Reset()
			switch d.Cmd {
			case "new":
				s.rec = newRecorder(t)
				s.rec.logf = s.printf
				s.configure(d)
			case "archive":
				s.archive(d)
			case "run":
				s.rec.t = t
				s.lastAt = -1
				for _, l := range strings.Split(d.Input, "\n") {
					if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
						s.line(l)
					}
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return s.out.String()
		})
	})
}
