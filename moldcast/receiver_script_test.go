package moldcast

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/moldtape/moldtape/moldcast/gap"
)

// TestReceiverScripts runs the timelines of testdata/receiver. A script begins
// with
//
//	receiver [unordered] [from=N] [session=NAME] [lines=N] [servers=N] [budget=D] [buffer=N] [gaps=N]
//
// and goes on with
//
//	timeline      one datagram a line, at a time
//	  T A 11..20          messages from line A (B, C …); T A/OTHER … of another session
//	  T A heartbeat 21
//	  T A end 21
//	  T A raw 0102        these bytes
//	  T S0 11..20         the same from server 0
//	  T                   nothing
//	stats         the totals that are not zero
//
// The output lists what the application sees, and the requests.
func TestReceiverScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/receiver", func(t *testing.T, path string) {
		var s receiverScript
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			s.out.Reset()
			switch d.Cmd {
			case "receiver":
				s.start(d)
			case "timeline":
				for _, l := range strings.Split(d.Input, "\n") {
					if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
						s.event(strings.Fields(l))
					}
				}
			case "stats":
				v := reflect.ValueOf(s.r.Stats())
				for i := range v.NumField() {
					if !v.Field(i).IsZero() {
						fmt.Fprintf(&s.out, "%s=%v\n", v.Type().Field(i).Name, v.Field(i))
					}
				}
			default:
				d.Fatalf(t, "unknown command")
			}
			return s.out.String()
		})
	})
}

type receiverScript struct {
	t       *testing.T
	r       *Receiver
	now     Instant
	out     strings.Builder
	pending Range // delivered in a row, not printed yet
}

func (s *receiverScript) start(d *datadriven.TestData) {
	c := ReceiverConfig{
		Ordered: true,
		Gap:     gap.Config{Budget: 20 * time.Millisecond, RetryMin: 8 * time.Millisecond},
		OnMessage: func(q Seq, data []byte) {
			if string(data) != string(body(q)) {
				s.t.Errorf("message %d has other bytes", q)
			}
			if s.pending.Next != q {
				s.flush()
				s.pending = Range{First: q, Next: q}
			}
			s.pending.Next++
		},
		OnLost: func(r Range) { s.say("lost %v", r) },
		OnEnd:  func(q Seq) { s.say("ended at %d", q) },
	}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "unordered":
			c.Ordered = false
		case "from":
			c.From = Seq(s.num(a.Vals[0]))
		case "session":
			name, err := ParseSession(a.Vals[0])
			if err != nil {
				s.t.Fatal(err)
			}
			c.Session = &name
		case "lines":
			c.Gap.Lines = int(s.num(a.Vals[0]))
		case "servers":
			c.Gap.Servers = int(s.num(a.Vals[0]))
		case "gaps":
			c.Gap.MaxGaps = int(s.num(a.Vals[0]))
		case "buffer":
			c.BufferBytes = int(s.num(a.Vals[0]))
		case "budget":
			c.Gap.Budget = s.time(a.Vals[0])
		default:
			d.Fatalf(s.t, "unknown %s", a.Key)
		}
	}
	r, err := NewReceiver(c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.r, s.now = r, 0
}

func (s *receiverScript) event(w []string) {
	at := Instant(s.time(w[0]))
	s.until(at - 1)
	s.now = at
	if len(w) > 1 {
		who, name, other := strings.Cut(w[1], "/")
		session := testSession
		if other {
			copy(session[:], name+"          ")
		}
		b := s.datagram(session, w[2:])
		if who[0] == 'S' {
			s.r.OfferAnswer(at, int(who[1]-'0'), b)
		} else {
			s.r.Offer(at, int(who[0]-'A'), b)
		}
		for i := range b {
			b[i] = 0xEE // the datagram is not the receiver's any more
		}
		s.flush()
	}
	s.until(at)
}

func (s *receiverScript) datagram(session Session, w []string) []byte {
	switch w[0] {
	case "heartbeat":
		return AppendHeader(nil, session, Seq(s.num(w[1])), 0)
	case "end":
		return AppendHeader(nil, session, Seq(s.num(w[1])), EndCount)
	case "raw":
		var b []byte
		if _, err := fmt.Sscanf(w[1], "%x", &b); err != nil {
			s.t.Fatal(err)
		}
		return b
	}
	a, b, ok := strings.Cut(w[0], "..")
	if !ok {
		b = a
	}
	return dataPacket(session, Range{First: Seq(s.num(a)), Next: Seq(s.num(b)) + 1})
}

func (s *receiverScript) until(at Instant) {
	for n := 0; s.r.Deadline() <= at; n++ {
		if n > 10000 {
			s.t.Fatal("the deadline does not move on")
		}
		s.now = max(s.now, s.r.Deadline())
		for {
			q, server, ok := s.r.Poll(s.now)
			s.flush()
			if !ok {
				break
			}
			if q.Session != testSession {
				s.t.Errorf("request for session %v", q.Session)
			}
			s.say("ask %d for %v", server, q.Range())
		}
	}
}

func (s *receiverScript) flush() {
	if r := s.pending; !r.Empty() {
		s.pending = Range{}
		s.say("message %v", r)
	}
}

func (s *receiverScript) say(format string, args ...any) {
	s.flush()
	fmt.Fprintf(&s.out, "%10s  ", time.Duration(s.now))
	fmt.Fprintf(&s.out, format+"\n", args...)
}

func (s *receiverScript) time(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *receiverScript) num(v string) uint64 {
	if n, ok := strings.CutPrefix(v, "-"); ok {
		return -s.num(n)
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
