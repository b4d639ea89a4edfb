package gap

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the timelines of testdata/script. A script begins with
//
//	machine [first=N] [Field=value …]        a new machine; fields of Config
//
// and goes on with
//
//	timeline      one event a line, at a time; what falls due in between is done
//	              at its own time, as a shell with one timer does it
//	  T A 11..20          a packet of line A (B, C …)
//	  T A heartbeat 21    the next sequence is 21
//	  T S0 11..20         an answer of server 0; S? of an unknown one
//	  T extend 5
//	  T reserve 11..20    and release; renew
//	  T                   nothing
//	resume first=N head=N [missing=(a..b,…)]
//	gaps          what is missing, and its state
//	stats         the counters that are not zero
//
// The output has a line for each verdict, request and loss. Times are those of
// a stopwatch.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		var s script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.out = t, strings.Builder{}
			switch d.Cmd {
			case "machine":
				s.machine(d)
			case "resume":
				s.resume(d)
			case "timeline":
				for _, l := range strings.Split(d.Input, "\n") {
					if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
						s.event(strings.Fields(l))
					}
				}
			case "gaps":
				s.m.Gaps(func(g Gap) bool {
					fmt.Fprintf(&s.out, "%v", g.Range)
					for _, f := range []struct {
						on   bool
						name string
					}{{g.Settled, "settled"}, {g.Lost, "lost"}, {g.Background, "background"}, {g.InFlight, "asked"}, {g.Reserved, "reserved"}} {
						if f.on {
							s.out.WriteString(" " + f.name)
						}
					}
					if g.Tries > 0 {
						fmt.Fprintf(&s.out, " tries=%d", g.Tries)
					}
					s.out.WriteString("\n")
					return true
				})
			case "stats":
				v := reflect.ValueOf(s.m.Stats())
				for i := range v.NumField() {
					name := v.Type().Field(i).Name
					if !v.Field(i).IsZero() && name != "Settle" && name != "RoundTrip" && name != "Rate" {
						fmt.Fprintf(&s.out, "%s=%v\n", name, v.Field(i))
					}
				}
			case "settle":
				fmt.Fprintln(&s.out, s.m.Stats().Settle)
			case "place":
				fmt.Fprintf(&s.out, "first=%d next=%d head=%d\n", s.m.First(), s.m.Next(), s.m.Head())
			default:
				d.Fatalf(t, "unknown command")
			}
			if s.m != nil {
				if err := s.m.check(); err != nil {
					t.Fatal(err)
				}
			}
			return s.out.String()
		})
	})
}

type script struct {
	t   *testing.T
	m   *Machine
	now Instant
	out strings.Builder
}

func (s *script) machine(d *datadriven.TestData) {
	var c Config
	first := Seq(0)
	for _, a := range d.CmdArgs {
		if a.Key == "first" {
			first = s.seq(a.Vals[0])
			continue
		}
		f := reflect.ValueOf(&c).Elem().FieldByName(a.Key)
		switch {
		case !f.IsValid():
			d.Fatalf(s.t, "no field %s", a.Key)
		case f.Type() == reflect.TypeFor[time.Duration]():
			f.SetInt(int64(s.time(a.Vals[0])))
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.Uint64:
			f.SetUint(uint64(s.seq(a.Vals[0])))
		default:
			f.SetInt(int64(s.seq(a.Vals[0])))
		}
	}
	s.m = New(c)
	if first > 0 {
		s.m.Start(first)
	}
	s.now = 0
}

func (s *script) resume(d *datadriven.TestData) {
	var first, head Seq
	var missing []Range
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "first":
			first = s.seq(a.Vals[0])
		case "head":
			head = s.seq(a.Vals[0])
		case "missing":
			for _, v := range a.Vals {
				missing = append(missing, s.rng(v))
			}
		}
	}
	s.m.Resume(first, head, missing)
}

func (s *script) event(w []string) {
	at := Instant(s.time(w[0]))
	s.until(at - 1)
	s.now = at
	if len(w) > 1 {
		s.packet(w[1:])
	}
	s.until(at)
}

func (s *script) packet(w []string) {
	switch {
	case w[0] == "reserve":
		s.m.Reserve(s.now, s.rng(w[1]))
	case w[0] == "release":
		s.m.Release(s.now, s.rng(w[1]))
	case w[0] == "renew":
		s.m.Renew(s.now)
	case w[0] == "extend":
		s.m.Extend(s.seq(w[1]))
	case w[0][0] == 'S':
		server := -1
		if w[0] != "S?" {
			server = int(s.seq(w[0][1:]))
		}
		r := s.rng(w[1])
		s.m.Answered(s.now, server, r)
		s.offer(w[0], answerLine, r)
	default:
		line := int(w[0][0] - 'A')
		if w[1] == "heartbeat" || w[1] == "end" {
			q := s.seq(w[2])
			s.m.Passed(s.now, line, Range{q, q})
			s.m.Reveal(s.now, line, q)
			return
		}
		r := s.rng(w[1])
		s.m.Passed(s.now, line, r)
		s.offer(w[0], line, r)
	}
}

func (s *script) offer(who string, line int, r Range) {
	for !r.Empty() {
		sub, v := s.m.Classify(r)
		s.say("%s %v %v", who, sub, v)
		if v != Duplicate && v != Below && !s.m.Accept(s.now, line, sub) {
			s.out.WriteString(": no room")
		}
		s.out.WriteString("\n")
		r.First = sub.Next
	}
}

// until does what falls due up to at, at its own time.
func (s *script) until(at Instant) {
	for n := 0; ; n++ {
		if n > 100000 {
			s.t.Fatal("the deadline does not move on")
		}
		d := s.m.Deadline()
		if d > at {
			return
		}
		s.now = max(s.now, d)
		for {
			r, ok := s.m.Poll(s.now)
			if !ok {
				break
			}
			s.say("ask %d for %v", r.Server, r.Range)
			if r.Try > 1 {
				fmt.Fprintf(&s.out, ", try %d", r.Try)
			}
			s.out.WriteString("\n")
		}
		for r, ok := s.m.Lost(); ok; r, ok = s.m.Lost() {
			s.say("lost %v\n", r)
		}
	}
}

func (s *script) say(format string, args ...any) {
	fmt.Fprintf(&s.out, "%10s  ", time.Duration(s.now))
	fmt.Fprintf(&s.out, format, args...)
}

func (s *script) time(v string) time.Duration {
	if v == "forever" {
		return Forever
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// seq reads a sequence; "-5" is 2^64-5.
func (s *script) seq(v string) Seq {
	if n, ok := strings.CutPrefix(v, "-"); ok {
		return -s.seq(n)
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return Seq(n)
}

// rng reads an inclusive range, "7" being 7..7.
func (s *script) rng(v string) Range {
	a, b, ok := strings.Cut(v, "..")
	if !ok {
		b = a
	}
	return Range{s.seq(a), s.seq(b) + 1}
}
