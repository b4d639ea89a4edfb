package moldcast

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

var (
	ackFrom = netip.MustParseAddr("10.0.0.1")
	second  = Instant(time.Second)
)

// quorumRig is a sender of n messages, all sent, and a quorum beside it.
type quorumRig struct {
	t *testing.T
	s *Sender
	q *Quorum
	c *AckCodec
}

func quorumMessage(q Seq) []byte { return fmt.Appendf(nil, "message %d", q) }

func newQuorumRig(t *testing.T, n, ring int, c QuorumConfig) *quorumRig {
	t.Helper()
	s, err := NewSender(SenderConfig{Session: ackSession, First: c.First, Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	c.Session = ackSession
	q, err := NewQuorum(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &quorumRig{t, s, q, NewAckCodec(c.Key)}
	r.send(n)
	return r
}

func (r *quorumRig) send(n int) {
	r.t.Helper()
	for range n {
		if err := r.s.Publish(quorumMessage(r.s.Published())); err != nil {
			r.t.Fatal(err)
		}
		r.s.Flush()
		r.s.Next(1, nil)
	}
}

// ack is of node n, which holds [first, next) of the stream.
func ack(n byte, epoch, counter uint64, first, next Seq) Ack {
	a := Ack{Session: ackSession, Node: NodeID{n}, Epoch: epoch, Counter: counter, Held: Range{First: first, Next: next}}
	if next > first {
		a.Checked, a.Check = next-1, AckCheck(next-1, quorumMessage(next-1))
	}
	return a
}

func (r *quorumRig) offer(now Instant, a Ack, want AckVerdict) {
	r.t.Helper()
	if got := r.q.Offer(now, ackFrom, r.c.Append(nil, a), r.s); got != want {
		r.t.Fatalf("%+v: %v, want %v", a, got, want)
	}
}

func (r *quorumRig) seq(want Seq) {
	r.t.Helper()
	if got := r.q.Seq(r.s.Sent()); got != want {
		r.t.Fatalf("quorum at %d, want %d: %+v", got, want, r.q.Archives(0, nil))
	}
}

func (r *quorumRig) state(n byte, want ArchiveState) {
	r.t.Helper()
	for _, a := range r.q.Archives(0, nil) {
		if a.Node == (NodeID{n}) {
			if a.State != want {
				r.t.Fatalf("archive %d is %v, want %v", n, a.State, want)
			}
			return
		}
	}
	r.t.Fatalf("archive %d is not known", n)
}

func TestQuorumSeq(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 2})
	r.seq(1)
	r.offer(1, ack(1, 1, 1, 1, 50), AckTaken)
	r.seq(1) // of one alone
	r.offer(1, ack(2, 1, 1, 1, 30), AckTaken)
	r.seq(30)
	r.offer(1, ack(3, 1, 1, 1, 40), AckTaken)
	r.seq(40) // the second of three
	r.offer(1, ack(2, 1, 2, 1, 101), AckTaken)
	r.seq(50)
	r.offer(1, ack(1, 1, 2, 1, 101), AckTaken)
	r.seq(101) // everything
}

// Each sequence space: at 1, at a large first, and at its end.
func TestQuorumFirst(t *testing.T) {
	for _, first := range []Seq{1, 484_311_999, ^Seq(0) - 20} {
		r := newQuorumRig(t, 10, 0, QuorumConfig{K: 1, First: first})
		r.seq(first)
		r.offer(1, ack(1, 1, 1, first, first), AckTaken)
		r.seq(first)
		r.offer(1, ack(1, 1, 2, first, first+10), AckTaken)
		r.seq(first + 10)
	}
}

// One archive never counts twice, whoever speaks for it.
func TestQuorumOnce(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 2})
	r.offer(1, ack(1, 1, 1, 1, 101), AckTaken)
	r.offer(1, ack(1, 2, 1, 1, 101), AckTaken)
	if v := r.q.Offer(1, netip.MustParseAddr("10.0.0.2"), r.c.Append(nil, ack(1, 2, 2, 1, 101)), r.s); v != AckTaken {
		t.Fatal(v)
	}
	r.seq(1)
	if n := len(r.q.Archives(0, nil)); n != 1 {
		t.Errorf("%d archives", n)
	}
}

func TestQuorumOld(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
	r.offer(1, ack(1, 2, 5, 1, 50), AckTaken)
	for _, old := range []Ack{ack(1, 2, 5, 1, 60), ack(1, 2, 4, 1, 40), ack(1, 1, 9, 1, 90)} {
		r.offer(1, old, AckOld)
		r.seq(50)
	}
	r.offer(1, ack(1, 3, 1, 1, 60), AckTaken)
	r.seq(60)
}

// An archive that comes to hold less counts for no more: within a start, after
// a start, and for its beginning.
func TestQuorumLowered(t *testing.T) {
	for name, less := range map[string]Ack{
		"take":    ack(1, 1, 2, 1, 20),
		"restart": ack(1, 2, 1, 1, 20),
		"empty":   ack(1, 2, 1, 1, 1),
		"begins":  ack(1, 2, 1, 15, 101),
	} {
		t.Run(name, func(t *testing.T) {
			r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
			r.offer(1, ack(1, 1, 1, 1, 80), AckTaken)
			r.seq(80)
			r.offer(1, less, AckTaken)
			want := less.Held.Next
			if less.Held.First > 1 {
				want = 1
				r.state(1, ArchiveLate)
			}
			r.seq(want)
			if n := r.q.Stats().Lowered; n != 1 {
				t.Errorf("lowered %d times", n)
			}
			r.offer(1, ack(1, 2, 2, 1, 101), AckTaken) // it has caught up
			r.seq(101)
		})
	}
}

// An archive that took the place of one that is gone ends its vote.
func TestQuorumReplaced(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
	at := func(a Ack, place uint64) Ack { a.Place = place; return a }
	r.offer(1, at(ack(1, 1, 1, 1, 80), 7), AckTaken)
	r.offer(1, at(ack(2, 1, 1, 1, 1), 8), AckTaken) // elsewhere
	r.seq(80)
	if v := r.q.Offer(1, netip.MustParseAddr("10.0.0.2"), r.c.Append(nil, at(ack(3, 1, 1, 1, 1), 7)), r.s); v != AckTaken {
		t.Fatal(v)
	}
	r.seq(80) // another machine
	r.offer(1, at(ack(4, 1, 1, 1, 10), 7), AckTaken)
	r.seq(10)
	if n := r.q.Stats().Replaced; n != 1 {
		t.Errorf("replaced %d", n)
	}
}

func TestQuorumLate(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
	r.offer(1, ack(1, 1, 1, 2, 101), AckTaken)
	r.state(1, ArchiveLate)
	r.seq(1)
	r.offer(1, ack(1, 1, 2, 1, 101), AckTaken) // its beginning was filled
	r.seq(101)
}

// No acknowledgement counts for more than was sent.
func TestQuorumAhead(t *testing.T) {
	r := newQuorumRig(t, 10, 0, QuorumConfig{K: 1})
	r.offer(1, ack(1, 1, 1, 1, 1000), AckTaken)
	r.state(1, ArchiveUnproven)
	r.seq(1)
	r.send(1000) // what it held is not of this stream only because its number was sent
	r.state(1, ArchiveUnproven)
	r.seq(1)
	r.offer(1, ack(1, 1, 2, 1, 1000), AckTaken) // now its message 999 can be compared
	r.state(1, ArchiveWhole)
	r.seq(1000)
	r.offer(1, ack(1, 1, 3, 1, 5000), AckTaken) // of the stream, and from elsewhere
	r.state(1, ArchiveWhole)
	r.seq(1011)
}

// An archive that recorded another stream under the same name counts for
// nothing of this one, until it records this one.
func TestQuorumOther(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
	a := ack(1, 1, 1, 1, 80)
	a.Check++
	r.offer(1, a, AckTaken)
	r.state(1, ArchiveOther)
	r.seq(1)
	a.Counter = 2
	r.offer(1, a, AckTaken)
	r.state(1, ArchiveOther)
	r.offer(1, ack(1, 1, 3, 1, 3), AckTaken) // the next take
	r.state(1, ArchiveWhole)
	r.seq(3)
}

// What has left the ring proves nothing, and what was proven stands.
func TestQuorumGone(t *testing.T) {
	r := newQuorumRig(t, 1000, 16, QuorumConfig{K: 1})
	a := ack(1, 1, 1, 1, 80)
	a.Check++
	r.offer(1, a, AckTaken)
	r.state(1, ArchiveWhole)
	r.offer(1, ack(1, 1, 2, 1, 1001), AckTaken)
	r.seq(1001)
	a = ack(1, 1, 3, 1, 1001)
	a.Check++
	r.offer(1, a, AckTaken)
	r.state(1, ArchiveOther)
}

// A silent archive counts for what it held, and is shown as silent.
func TestQuorumSilent(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1})
	r.offer(second, ack(1, 1, 1, 1, 80), AckTaken)
	for _, c := range []struct {
		now    Instant
		silent bool
	}{{second, false}, {4*second - 1, false}, {4 * second, true}, {4000 * second, true}} {
		a := r.q.Archives(c.now, nil)
		if len(a) != 1 || a[0].Silent != c.silent || a[0].State != ArchiveWhole {
			t.Errorf("at %d: %+v", c.now, a)
		}
		r.seq(80)
	}
}

func TestQuorumRefused(t *testing.T) {
	key := []byte("0123456789abcdef")
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1, Key: key, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	whole := r.c.Append(nil, ack(1, 1, 1, 1, 80))
	other := ack(1, 1, 1, 1, 80)
	other.Session[0]++
	for _, c := range []struct {
		from string
		b    []byte
		want AckVerdict
	}{
		{"10.0.1.1", whole, AckNotAllowed},
		{"10.0.0.1", whole[1:], AckMalformed},
		{"10.0.0.1", nil, AckMalformed},
		{"10.0.0.1", r.c.Append(nil, Ack{}), AckMalformed},
		{"10.0.0.1", NewAckCodec(nil).Append(nil, ack(1, 1, 1, 1, 80)), AckUnauthentic},
		{"10.0.0.1", r.c.Append(nil, other), AckOtherSession},
		{"::ffff:10.0.0.1", whole, AckTaken},
		{"10.0.0.1", whole, AckOld},
	} {
		r.seq(1)
		if got := r.q.Offer(1, netip.MustParseAddr(c.from), c.b, r.s); got != c.want {
			t.Fatalf("%s %x: %v, want %v", c.from, c.b, got, c.want)
		}
		if c.want == AckTaken {
			r.seq(80)
			break
		}
	}
	var sum uint64
	for _, n := range r.q.Stats().Verdicts {
		sum += n
	}
	if sum != 7 {
		t.Errorf("%d verdicts of 7", sum)
	}
}

// The table is bounded: a new archive gets the place of the silent one that
// counts least, or none.
func TestQuorumFull(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 1, Archives: 3})
	r.offer(1, ack(1, 1, 1, 1, 80), AckTaken)
	r.offer(1, ack(2, 1, 1, 1, 60), AckTaken)
	r.offer(2*second, ack(3, 1, 1, 1, 10), AckTaken)
	r.offer(2*second, ack(4, 1, 1, 1, 90), AckFull)
	r.seq(80)
	r.offer(4*second, ack(4, 1, 1, 1, 90), AckTaken)
	r.seq(90)
	nodes := []byte{}
	for _, a := range r.q.Archives(0, nil) {
		nodes = append(nodes, a.Node[0])
	}
	if !slices.Equal(nodes, []byte{1, 4, 3}) {
		t.Errorf("archives %v", nodes)
	}
}

func TestQuorumConfig(t *testing.T) {
	for _, c := range []QuorumConfig{{}, {K: -1}, {K: 65}, {K: 1, Archives: 5000}, {K: 1, Archives: -1}, {K: 1, Silent: -1}} {
		if _, err := NewQuorum(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// Neither a storm of acknowledgements nor asking allocates.
func TestQuorumAllocates(t *testing.T) {
	r := newQuorumRig(t, 100, 0, QuorumConfig{K: 2})
	a, b := ack(1, 1, 1, 1, 80), ack(2, 1, 1, 1, 90)
	r.offer(1, a, AckTaken)
	r.offer(1, b, AckTaken)
	buf := make([]byte, 0, 2*AckSize)
	if n := testing.AllocsPerRun(100, func() {
		a.Counter++
		r.q.Offer(1, ackFrom, r.c.Append(buf, a), r.s)
		r.q.Offer(1, ackFrom, r.c.Append(buf, b), r.s)
		r.q.Seq(r.s.Sent())
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
