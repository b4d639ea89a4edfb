package capture

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/hist"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// Status is a snapshot of a channel: an element of `channels` in /status and
// in the stopped event.
type Status struct {
	Channel          string          `json:"channel"`
	Feed             moldcast.Feed   `json:"feed"`            // what the sender does, as configured
	State            string          `json:"state"`           // StateOK …
	Error            string          `json:"error,omitempty"` // of StateFailed
	Since            *time.Time      `json:"since,omitempty"` // of StateDegraded
	Reasons          []Degradation   `json:"reasons"`         // of the same
	Open             *OpenGaps       `json:"open,omitempty"`  // where ReasonGap is one
	Degraded         []Degraded      `json:"degraded"`        // for each of Reasons: how often and long so far
	Rate             Rate            `json:"rate_per_second"`
	Verdicts         Verdicts        `json:"verdicts"`
	Lines            []LineStatus    `json:"lines"`
	Wait             Seconds         `json:"wait_seconds"`   // how long packets that came early waited in memory
	Repair           Seconds         `json:"repair_seconds"` // how long gaps that were recovered had been missing
	Sockets          []SocketStatus  `json:"sockets"`
	Recovering       []Recovering    `json:"recovering"` // ranges that recovery streams bring
	arbiter.Counters                 // behind the lines': who looks for the last of a name finds the channel's
	Storage          Storage         `json:"storage"`
	Acks             *AckStatus      `json:"acks,omitempty"` // where any are sent
	Sessions         []SessionStatus `json:"sessions"`

	// Measured is what Lines, Wait and Repair are made of.
	Measured *arbiter.SessionStats `json:"-"`
}

// Verdicts is what became of messages, each counted once in one of the first
// six; WrongSession counts datagrams.
type Verdicts struct {
	InOrder      uint64 `json:"in_order"`
	Early        uint64 `json:"early"` // beyond something missing: waited, or stored as an island
	Fill         uint64 `json:"fill"`  // of something missing
	Stale        uint64 `json:"stale"`
	Duplicate    uint64 `json:"duplicate"`
	Conflict     uint64 `json:"conflict"`
	Overflow     uint64 `json:"overflow"` // no room
	WrongSession uint64 `json:"wrong_session"`
}

// LineStatus is what one line brought since the capture started, or, on
// record, in one run of a session.
type LineStatus struct {
	Line       string     `json:"line"`
	Addr       string     `json:"addr"`
	State      string     `json:"state,omitempty"` // live or silent
	LastHeard  *time.Time `json:"last_heard,omitempty"`
	Packets    uint64     `json:"packets"`
	Heartbeats uint64     `json:"heartbeats"`
	Messages   uint64     `json:"messages"`
	Bytes      uint64     `json:"bytes"`
	Taken      uint64     `json:"taken"`
	Repeated   uint64     `json:"repeated"`
	Lost       uint64     `json:"lost"`
	Missing    uint64     `json:"missing"`
	Compared   uint64     `json:"compared"`
	First      uint64     `json:"first"`
	Skew       Seconds    `json:"skew_seconds"`
	Disorder   Messages   `json:"disorder_messages"`
}

// The states of a line.
const (
	LineLive   = "live"
	LineSilent = "silent" // nothing for three heartbeats
)

// Seconds is a distribution of times. A quantile is at most an eighth above
// the true one; the maximum is exact.
type Seconds struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func secondsOf(h *hist.Histogram) Seconds {
	return Seconds{h.Count(), seconds(h.Quantile(0.5)), seconds(h.Quantile(0.99)), seconds(h.Max())}
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// Messages is a distribution of depths, likewise.
type Messages struct {
	Count uint64 `json:"count"`
	P50   int64  `json:"p50"`
	P99   int64  `json:"p99"`
	Max   int64  `json:"max"`
}

func messagesOf(h *hist.Histogram) Messages {
	return Messages{h.Count(), h.Quantile(0.5), h.Quantile(0.99), h.Max()}
}

// SocketStatus is a socket that one or more lines, or answers, are received
// on, and the ring between its thread and the engine.
type SocketStatus struct {
	Addr          string   `json:"addr"`  // of the first line
	Lines         []string `json:"lines"` // none: of answers
	RX            string   `json:"rx"`    // udp, or ring: a receive ring
	Received      uint64   `json:"received"`
	QueueDropped  uint64   `json:"queue_dropped"`
	KernelDropped uint64   `json:"kernel_dropped"`
	RingDepth     int      `json:"ring_depth"` // datagrams that wait now
	RingHigh      int      `json:"ring_high"`  // most that the engine found waiting
	RingSlots     int      `json:"ring_slots"`
}

// SessionStatus is a session that the channel captured since it started.
type SessionStatus struct {
	Session    moldcast.Session `json:"session"`
	Take       int              `json:"take"`
	State      string           `json:"state"` // live or ended: by an End of Session, or its sender goes on as another take or session
	FirstSeq   moldcast.Seq     `json:"first_seq"`
	NextSeq    moldcast.Seq     `json:"next_seq"`    // exclusive
	DurableSeq moldcast.Seq     `json:"durable_seq"` // exclusive
	HeadSeq    moldcast.Seq     `json:"head_seq"`    // exclusive
	Holes      int              `json:"holes"`       // missing ranges below head, and up to the end where that is known
	Segments   int              `json:"segments"`
	Lag        uint64           `json:"lag"`         // head - durable, in messages: what is not durable, or lies beyond a hole
	LagSeconds float64          `json:"lag_seconds"` // for how long
	Timing     *Timing          `json:"timing,omitempty"`
}

// Timing is what the schedule of requests has measured of a session that is
// open, and what it makes of it.
type Timing struct {
	SkewP99   float64 `json:"skew_p99_seconds"`   // between the lines, as the engine saw them lately; 0: one line
	Settle    float64 `json:"settle_seconds"`     // how long something missing may be mere disorder now
	RoundTrip float64 `json:"round_trip_seconds"` // of requests, smoothed; 0: not known
	Serves    uint64  `json:"server_window"`      // how many of the newest messages a request server surely still has; 0: not known
}

// Holes is the number of holes over all sessions.
func (s Status) Holes() int {
	n := 0
	for _, x := range s.Sessions {
		n += x.Holes
	}
	return n
}

func verdicts(c *arbiter.Counters) Verdicts {
	return Verdicts{
		InOrder: c.InOrder, Early: c.Early, Fill: c.Filled, Stale: c.Stale, Duplicate: c.Duplicates,
		Conflict: c.Conflicts, Overflow: c.QueueDropped, WrongSession: c.WrongSession,
	}
}

// status is the snapshot. Owner: the engine.
func (c *Channel) status() Status {
	st := Status{Channel: c.cfg.Channel, Feed: c.cfg.Feed, Counters: c.arb.Counters(), Measured: c.arb.LineStats(c.clock.Now())}
	st.Verdicts = verdicts(&st.Counters) // before datagrams are added that never came this far
	st.Lines = lineStatus(st.Measured, c.Lines())
	c.heard(st.Lines)
	st.Rate = c.rate.value(ratePoint{c.clock.Now(), st.Packets, st.Messages, st.Bytes})
	st.Recovering = c.recovering()
	st.Wait, st.Repair = secondsOf(&st.Measured.Wait), secondsOf(&st.Measured.Repair)
	c.mu.Lock()
	st.Sessions = append(make([]SessionStatus, 0, len(c.mu.recent)+4), c.mu.recent...)
	c.mu.Unlock()
	for _, t := range c.lines {
		own := t.own()
		st.addSocket(t.rx, t.Addr(own[0]+t.base), t.Backend(), t.high, own)
	}
	if c.asks != nil {
		st.addSocket(c.asks, c.asks.Socket().LocalAddr(), mcast.UDPBackend, c.asksHigh, nil)
	}
	st.WrongSession += c.foreign
	st.Storage = c.storage()
	st.Acks = c.acks.status()
	for _, s := range c.arb.Sessions() {
		if x, ok := s.Ref.(*session); ok {
			ss := sessionStatus(s, x)
			ss.LagSeconds = x.lag.behind(c.clock.Now(), ss.DurableSeq).Seconds()
			g := s.Stats()
			ss.Timing = &Timing{g.Skew.Seconds(), g.Settle.Seconds(), g.RoundTrip.Seconds(), s.Serves(c.clock.Now(), servesFor)}
			st.Sessions = append(st.Sessions, ss)
		}
	}
	c.degraded(&st)
	return st
}

// addSocket takes up what a socket and its ring count.
func (s *Status) addSocket(rx receiver, addr netip.AddrPort, backend mcast.Backend, high int, lines []int) {
	n := rx.Counters()
	s.QueueDropped += n.QueueDropped
	s.KernelDropped += n.KernelDropped
	s.Malformed += n.Truncated + n.Invalid
	names := make([]string, len(lines))
	for i, l := range lines {
		names[i] = mcast.LineName(l)
	}
	s.Sockets = append(s.Sockets, SocketStatus{
		Addr: addr.String(), Lines: names, RX: backend.String(),
		Received: n.Received, QueueDropped: n.QueueDropped, KernelDropped: n.KernelDropped,
		RingDepth: rx.Ring().Len(), RingHigh: high, RingSlots: rx.Ring().Cap(),
	})
}

func lineStatus(st *arbiter.SessionStats, addrs []string) []LineStatus {
	out := make([]LineStatus, len(st.Lines))
	for i := range st.Lines {
		l := &st.Lines[i]
		out[i] = LineStatus{
			Line: mcast.LineName(i), Addr: addrs[i],
			Packets: l.Packets, Heartbeats: l.Heartbeats, Messages: l.Messages, Bytes: l.Bytes,
			Taken: l.Taken, Repeated: l.Repeated, Lost: l.Lost, Missing: l.Missing,
			Compared: l.Compared, First: l.First, Skew: secondsOf(&l.Skew), Disorder: messagesOf(&l.Disorder),
		}
	}
	return out
}

// heard says of each line when it was heard, and whether it still is.
func (c *Channel) heard(lines []LineStatus) {
	for i := range lines {
		lines[i].State = LineSilent
		if c.live(c.clock.Now(), i) {
			lines[i].State = LineLive
		}
		if _, stamp, ever := c.arb.Heard(i); ever {
			t := stamp.Time()
			lines[i].LastHeard = &t
		}
	}
}

func sessionStatus(s *arbiter.Session, x *session) SessionStatus {
	st := SessionStatus{Session: s.Name(), Take: x.sink.Take(), State: s.State().String(), FirstSeq: s.First(), Holes: x.sink.Holes(), Segments: x.sink.Segments()}
	if x.over {
		st.State = arbiter.StateEnded.String()
	}
	st.watermarks(x)
	return st
}

func (s *SessionStatus) watermarks(x *session) {
	s.NextSeq, s.DurableSeq, s.HeadSeq = x.sink.Watermarks()
	s.Lag = uint64(max(s.HeadSeq, s.DurableSeq) - s.DurableSeq)
}

// count is n of something, in words.
func count(n uint64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// CaptureStats is what is put on record of a session: what this capture
// measured of it.
type CaptureStats struct {
	Lines  []LineStatus `json:"lines"`
	Wait   Seconds      `json:"wait_seconds"`
	Repair Seconds      `json:"repair_seconds"`
}

// recordEvery is how often what is measured is put on record, so that a
// capture that is killed loses no more of it.
const recordEvery = moldcast.Instant(time.Minute)

// record puts on record what was measured of s, unless nothing came since; over
// says that it is closed.
func (c *Channel) record(s *arbiter.Session, x *session, over bool) {
	now := c.clock.Now()
	st := s.LineStats(now, over)
	var packets uint64
	for i := range st.Lines {
		packets += st.Lines[i].Packets
	}
	if packets == x.recorded && !over {
		return
	}
	x.recorded = packets
	b, err := json.Marshal(CaptureStats{lineStatus(st, c.Lines()), secondsOf(&st.Wait), secondsOf(&st.Repair)})
	if err != nil {
		return // it has no member that cannot be marshalled
	}
	x.sink.Captured(x.began, c.clock.Wall(), b)
}

// recordDue does so for all sessions now and then.
func (c *Channel) recordDue(now moldcast.Instant) {
	if now < c.nextRecord {
		return
	}
	c.nextRecord = now + recordEvery
	for _, s := range c.arb.Sessions() {
		if x, ok := s.Ref.(*session); ok {
			c.record(s, x, false)
		}
	}
}
