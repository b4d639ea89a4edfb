package capture

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// testClock is set by the test.
type testClock struct{ now moldcast.Instant }

var (
	testSender = netip.MustParseAddr("10.0.0.1")
	errTest    = errors.New("the disk is in pieces")
)

const testEpoch = moldcast.Stamp(1_700_000_000_000_000_000)

func (c *testClock) Now() moldcast.Instant { return c.now }
func (c *testClock) Wall() moldcast.Stamp  { return testEpoch + moldcast.Stamp(c.now) }

// patient is a channel without sockets, in time that the test gives.
type patient struct {
	*Channel
	t     *testing.T
	clock *testClock
	sink  *memSink
	log   lockedBuffer
}

func newPatient(t *testing.T, lines, servers int) *patient {
	t.Helper()
	p := &patient{t: t, clock: &testClock{now: moldcast.Instant(time.Hour)}, sink: &memSink{}}
	cfg := Config{Channel: "c", Lines: make([]Line, lines), Clock: p.clock, Log: slog.New(slog.NewTextHandler(&p.log, nil))}
	p.Channel = &Channel{cfg: cfg, sink: p.sink, clock: p.clock, cold: newCold(), health: newHealth(lines, p.clock.now)}
	var err error
	p.arb, err = arbiter.New(arbiter.Config{Lines: lines, Servers: servers, Start: arbiter.Live, Gap: gap.Config{Budget: 20 * time.Second, Seed: 1}}, output{p.Channel})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// at goes on in steps as the engine does, to d after the start.
func (p *patient) at(d time.Duration) {
	p.t.Helper()
	to := moldcast.Instant(time.Hour + d)
	for p.clock.now < to {
		p.clock.now = min(to, p.clock.now+moldcast.Instant(100*time.Millisecond))
		for _, _, ok := p.arb.Poll(p.clock.now); ok; _, _, ok = p.arb.Poll(p.clock.now) {
		}
		p.watchGaps(p.clock.now)
		if p.clock.now%moldcast.Instant(lookEvery) == 0 {
			p.look(p.storage())
			p.watch(p.clock.now)
		}
	}
}

func (p *patient) offer(line int, r moldcast.Range) {
	p.arb.Offer(p.clock.now, p.clock.Wall(), line, testSender, packet(r.First, r.Next))
	p.watchGaps(p.clock.now)
}

func (p *patient) end(line int, at moldcast.Seq) {
	p.arb.Offer(p.clock.now, p.clock.Wall(), line, testSender, moldcast.AppendHeader(nil, sess, at, moldcast.EndCount))
}

// reasons are those of the status, with the lines.
func (p *patient) reasons() string {
	p.t.Helper()
	st := p.snapshot()
	var out []string
	for _, r := range st.Reasons {
		out = append(out, r.Reason+r.Line)
		if since := r.Since; since.After(p.clock.Wall().Time()) || since.Before(testEpoch.Time()) {
			p.t.Fatalf("%+v", r)
		}
	}
	if (st.State == StateDegraded) != (len(out) > 0) || (st.Since != nil) != (len(out) > 0) {
		p.t.Fatalf("state %s since %v for %v", st.State, st.Since, out)
	}
	return strings.Join(append([]string{st.State}, out...), " ")
}

func (p *patient) snapshot() Status {
	st := Status{Storage: p.storage()}
	p.degraded(&st)
	return st
}

func (p *patient) want(state string) {
	p.t.Helper()
	if got := p.reasons(); got != state {
		p.t.Fatalf("at %v: %s, want %s", time.Duration(p.clock.now)-time.Hour, got, state)
	}
}

func (p *patient) logged(what string, n int) {
	p.t.Helper()
	if got := p.log.count(what); got != n {
		p.t.Fatalf("at %v: %q is logged %d times, want %d\n%s", time.Duration(p.clock.now)-time.Hour, what, got, n, p.log.b.String())
	}
}

const sec = time.Second

func TestGapDegrades(t *testing.T) {
	p := newPatient(t, 1, 1)
	p.offer(0, moldcast.Range{First: 1, Next: 5})
	p.offer(0, moldcast.Range{First: 5, Next: 10})
	p.want("ok")
	p.at(sec)
	p.offer(0, moldcast.Range{First: 20, Next: 25})
	p.want("ok") // it may be disorder
	p.at(1100 * time.Millisecond)
	p.want("degraded gap")
	p.offer(0, moldcast.Range{First: 30, Next: 35})
	p.at(1900 * time.Millisecond)
	p.logged("degraded", 0) // it may be answered
	p.at(2 * sec)
	p.logged("degraded: a gap stays open", 1)
	p.logged("gaps=2 messages=15 times=1", 1)
	st := p.snapshot()
	if o := st.Open; o.Gaps != 2 || o.Messages != 15 || len(o.Ranges) != 2 || o.Ranges[0].FirstSeq != 10 || o.Ranges[0].LastSeq != 19 ||
		o.Ranges[0].Take != 1 || o.Ranges[0].Tries < 2 || o.NextTry == nil || o.NextTry.Before(p.clock.Wall().Time()) ||
		!o.Ranges[0].Since.Equal((testEpoch + moldcast.Stamp(time.Hour+sec)).Time()) {
		t.Fatalf("open: %+v", o)
	}
	if !st.Since.Equal((testEpoch + moldcast.Stamp(time.Hour+sec)).Time()) {
		t.Fatalf("since %v", st.Since)
	}
	p.offer(0, moldcast.Range{First: 10, Next: 20})
	p.want("degraded gap")
	p.offer(0, moldcast.Range{First: 25, Next: 30})
	p.want("ok")
	p.logged("no gap is open any more", 1)
	p.logged("after=1s", 1)

	// One that comes and goes is not said each time.
	for i := range 5 {
		p.at(time.Duration(3+i) * sec)
		q := moldcast.Seq(40 + 10*i)
		p.offer(0, moldcast.Range{First: q, Next: q + 5})
		p.at(time.Duration(3+i)*sec + 900*time.Millisecond)
		p.offer(0, moldcast.Range{First: q - 5, Next: q})
		p.want("ok")
	}
	p.logged("degraded", 1)
	p.at(10 * sec)
	p.offer(0, moldcast.Range{First: 100, Next: 105})
	p.at(12100 * time.Millisecond)
	p.logged("degraded: a gap", 2)
	p.logged("times=6", 1)
	if d := p.snapshot().Degraded[0]; d.Reason != ReasonGap || d.Times != 7 || !d.Now || d.Seconds < 7.6 || d.Seconds > 7.7 {
		t.Fatalf("%+v", d)
	}

	// Given up, it is a hole on record, and no longer open.
	for i := range 20 {
		p.offer(0, moldcast.Range{First: moldcast.Seq(105 + i), Next: moldcast.Seq(106 + i)})
		p.at(time.Duration(13+i) * sec)
	}
	p.want("ok")
	p.logged("no gap is open", 2)
	p.logged("messages_lost=15", 1)
}

func TestSilenceDegrades(t *testing.T) {
	p := newPatient(t, 2, 0)
	p.at(3 * sec)
	p.want("ok")
	p.at(3500 * time.Millisecond)
	p.want("degraded no_packets")
	p.logged("degraded: no packets", 1)
	p.offer(0, moldcast.Range{First: 1, Next: 5})
	p.offer(0, moldcast.Range{First: 5, Next: 10})
	p.at(4 * sec)
	p.want("degraded line_silentB")
	p.logged("recovered: packets come again", 1)
	p.logged("degraded: line is silent", 1)
	p.offer(1, moldcast.Range{First: 5, Next: 10})
	p.at(4500 * time.Millisecond)
	p.want("ok")
	p.logged("recovered: line is heard again", 1)
	p.logged("after=4.5s", 1)
	p.at(7500 * time.Millisecond)
	p.offer(1, moldcast.Range{First: 10, Next: 11})
	p.at(8 * sec)
	p.want("degraded line_silentA")
	if d := p.snapshot().Degraded[2]; d.Reason != ReasonLineSilent || d.Times != 2 || !d.Now {
		t.Fatalf("%+v", d)
	}
	// After the end of every session silence is no fault.
	p.end(1, 11)
	p.end(1, 11)
	p.at(60 * sec)
	p.want("ended")
	p.logged("recovered: line is heard again", 1) // of B: A was not, to the end
	p.logged("degraded: no packets", 1)
}

// A feed without heartbeats is not heard while it is idle; a line that is not
// while another is, is silent all the same.
func TestSilenceWithoutHeartbeats(t *testing.T) {
	p := newPatient(t, 2, 0)
	p.cfg.Feed.Heartbeats = moldcast.HeartbeatNone
	p.at(10 * sec)
	p.want("ok")
	p.offer(0, moldcast.Range{First: 1, Next: 5})
	p.offer(0, moldcast.Range{First: 5, Next: 10})
	p.at(11 * sec)
	p.want("degraded line_silentB")
}

func TestStorageDegrades(t *testing.T) {
	p := newPatient(t, 1, 0)
	p.offer(0, moldcast.Range{First: 1, Next: 5})
	p.offer(0, moldcast.Range{First: 5, Next: 10})
	p.at(sec)
	p.sink.trouble.Store(&Trouble{Err: errTest, Since: p.clock.Wall().Time().Add(-sec)})
	p.at(2 * sec)
	p.want("degraded storage")
	if r := p.snapshot().Reasons[0]; r.Text != errTest.Error() || !r.Since.Equal(testEpoch.Time().Add(time.Hour)) {
		t.Fatalf("%+v", r)
	}
	p.sink.trouble.Store(nil)
	p.at(3 * sec)
	p.want("ok")
	p.logged("archive fails", 1)
	p.logged("archive works again", 1)
}

func TestLag(t *testing.T) {
	var l lag
	ms := func(n int) moldcast.Instant { return moldcast.Instant(n) * moldcast.Instant(time.Millisecond) }
	durable := func(n int) moldcast.Seq { return moldcast.Seq(max(1, min(10*n-500, 100_000))) }
	for n := 1; n < 10_000; n++ { // one is 50 ms behind
		l.note(ms(n), durable(n), moldcast.Seq(10*n))
		if d := l.behind(ms(n), durable(n)); n > 100 && (d > 50*time.Millisecond || d < 30*time.Millisecond) {
			t.Fatalf("at %d ms: %v behind", n, d)
		}
	}
	for n := 10_050; n < 1_000_000; n++ { // it stands still
		l.note(ms(n), 100_000, moldcast.Seq(10*n))
		if len(l.at) > lagPoints {
			t.Fatalf("%d points", len(l.at))
		}
	}
	d := l.behind(ms(1_000_000), 100_000)
	if want := 990 * time.Second; d > want || d < want*9/10 {
		t.Fatalf("%v behind, want %v", d, want)
	}
	l.note(ms(1_000_000), 10_000_000, 10_000_000)
	if d := l.behind(ms(1_000_000), 10_000_000); d != 0 {
		t.Fatalf("%v behind what is durable", d)
	}
	if n := testing.AllocsPerRun(100, func() { l.note(ms(1), 1, 5) }); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestRate(t *testing.T) {
	var r rate
	point := func(n int) ratePoint {
		return ratePoint{moldcast.Instant(n) * moldcast.Instant(lookEvery), uint64(10 * n), uint64(100 * n), uint64(n * n)}
	}
	if got := r.value(point(1)); got != (Rate{}) {
		t.Fatalf("%+v", got)
	}
	for n := range 100 {
		r.note(point(n))
	}
	got := r.value(point(100))
	if got.Packets != 20 || got.Messages != 200 || got.Bytes < 300 || got.Bytes > 400 {
		t.Fatalf("%+v", got)
	}
}

// What was measured of a session is put on record while it is captured, and
// when it is closed.
func TestMeasuredIsRecorded(t *testing.T) {
	p := newPatient(t, 2, 0)
	p.cfg.Lines = []Line{{Addr: netip.MustParseAddrPort("239.255.0.1:1")}, {Addr: netip.MustParseAddrPort("239.255.0.2:1")}}
	p.offer(0, moldcast.Range{First: 1, Next: 5})
	p.offer(1, moldcast.Range{First: 1, Next: 5})
	p.offer(0, moldcast.Range{First: 5, Next: 10})
	stats := func() (st CaptureStats) {
		t.Helper()
		if err := json.Unmarshal(p.sink.takes[0].stats, &st); err != nil || len(st.Lines) != 2 {
			t.Fatalf("%q: %v", p.sink.takes[0].stats, err)
		}
		return st
	}
	p.recordDue(p.clock.now)
	if l := stats().Lines; l[0].Messages != 9 || l[1].Messages != 4 || l[0].Line != "A" || l[0].First != 1 || l[0].State != "" || l[0].LastHeard != nil {
		t.Fatalf("%+v", l)
	}
	p.sink.takes[0].stats = nil
	p.recordDue(p.clock.now + recordEvery)
	if b := p.sink.takes[0].stats; b != nil {
		t.Fatalf("nothing came, recorded %s", b)
	}
	p.offer(1, moldcast.Range{First: 7, Next: 10})
	p.recordDue(p.clock.now + recordEvery + 1)
	if b := p.sink.takes[0].stats; b != nil {
		t.Fatalf("too early: %s", b)
	}
	p.recordDue(p.clock.now + 3*recordEvery)
	if l := stats().Lines; l[1].Missing != 2 || l[1].Lost != 0 {
		t.Fatalf("%+v", l)
	}
	// What a line went past a moment before the end never comes.
	p.release(p.arb.Sessions()[0])
	p.closing.Wait()
	if l := stats().Lines; l[1].Messages != 7 || l[1].Missing != 0 || l[1].Lost != 2 || p.sink.takes[0].closed != 1 {
		t.Fatalf("%+v", l)
	}
}
