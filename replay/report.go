package replay

import (
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/hist"
)

// Report sums a replay up.
type Report struct {
	Packets  uint64 `json:"packets"`  // data packets that were sent
	Messages uint64 `json:"messages"` // in them
	Bytes    uint64 `json:"bytes"`    // of message data, without framing

	Elapsed     float64 `json:"elapsed_seconds"`   // from the first packet to the last, as they went
	Scheduled   float64 `json:"scheduled_seconds"` // the same, as they were due
	PacingError Errors  `json:"pacing_error_seconds"`

	// Drift is how much later packets went in the last tenth of the time than
	// in the first, in the mean, in seconds. 0 where nothing paced.
	Drift float64 `json:"drift_seconds"`

	PacketRate  float64  `json:"packets_per_second"`  // over Elapsed; 0 where that is 0
	MessageRate float64  `json:"messages_per_second"` // the same
	Busiest     []Window `json:"busiest_windows"`     // of 1, 10, 100 and 1000 ms

	Holes          uint64 `json:"holes"`           // missing ranges met and not filled
	RequestsServed uint64 `json:"requests_served"` // of the retransmit server; the caller's to fill in
	Heartbeats     uint64 `json:"heartbeats"`      // sent in silence
	SendErrors     uint64 `json:"send_errors"`     // failed sends, each tried again
	TX             string `json:"tx"`              // how packets were sent; the caller's to fill in
	Starved        uint64 `json:"starved"`         // times that the clock ran and nothing had been read

	Timeline []Span  `json:"-"` // at most 512 spans of equal length, from the first due packet on
	Lateness []Share `json:"-"` // how many packets were how late, in steps of a factor of 2
}

// Errors is by how much packets went after they were due, in seconds; the
// quantiles are right to 3 %. All 0 where nothing paced.
type Errors struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// Window is most packets in any window of a length. Windows begin at steps of
// a sixteenth of it.
type Window struct {
	Length    float64 `json:"seconds"`
	Scheduled uint64  `json:"packets_scheduled"` // the recording's, at the speed of the replay; 0 where nothing paced
	Sent      uint64  `json:"packets_sent"`
}

// Span is a part of a replay's time.
type Span struct {
	From, Length    time.Duration // from when the first packet was due
	Scheduled, Sent uint64        // packets due, and sent
	Mean, Max       time.Duration // lateness of those due
}

// Share says that so many packets were not more than Most late.
type Share struct {
	Most    time.Duration
	Packets uint64
}

// recorder measures the sending of packets, each against its due time, in
// memory of fixed size. The sender owns it.
type recorder struct {
	paced   bool
	late    hist.Fine
	windows [4]struct{ due, sent window }
	line    timeline
}

// lengths of the windows.
var lengths = [4]time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

func newRecorder(paced bool) recorder {
	r := recorder{paced: paced}
	for i, d := range lengths {
		r.windows[i].due.step = moldcast.Instant(d / windowSteps)
		r.windows[i].sent.step = moldcast.Instant(d / windowSteps)
	}
	return r
}

// add takes in a packet. Neither due nor sent falls from one to the next by
// more than what a seek brings about.
func (r *recorder) add(due, sent moldcast.Instant) {
	for i := range r.windows {
		w := &r.windows[i]
		w.sent.add(sent)
		if r.paced {
			w.due.add(due)
		}
	}
	if !r.paced {
		due = sent
	} else {
		r.late.Add(int64(sent - due))
	}
	r.line.add(due, sent)
}

// fill puts what was measured into a report.
func (r *recorder) fill(rep *Report) {
	q := func(q float64) float64 { return time.Duration(r.late.Quantile(q)).Seconds() }
	rep.PacingError = Errors{P50: q(0.5), P99: q(0.99), P999: q(0.999), Max: time.Duration(r.late.Max()).Seconds()}
	if rep.Elapsed > 0 {
		rep.PacketRate = float64(rep.Packets) / rep.Elapsed
		rep.MessageRate = float64(rep.Messages) / rep.Elapsed
	}
	rep.Busiest = make([]Window, len(lengths))
	for i := range lengths {
		rep.Busiest[i] = Window{Length: lengths[i].Seconds(), Scheduled: r.windows[i].due.most, Sent: r.windows[i].sent.most}
	}
	rep.Timeline = r.line.spans()
	rep.Drift = drift(rep.Timeline)
	if r.late.Count() > 0 {
		r.late.Octaves(0, 40, func(top int64, n uint64) {
			rep.Lateness = append(rep.Lateness, Share{Most: time.Duration(top), Packets: n})
		})
	}
}

const windowSteps = 16

// window finds the most events in any window of windowSteps steps.
type window struct {
	step  moldcast.Instant
	end   moldcast.Instant // of the present step
	at    int              // the present step
	count [windowSteps]uint64
	sum   uint64
	most  uint64
}

// add counts an event at t. What is before the present step counts in it.
func (w *window) add(t moldcast.Instant) {
	if t >= w.end {
		w.turn(t)
	}
	w.count[w.at]++
	w.sum++
	w.most = max(w.most, w.sum)
}

func (w *window) turn(t moldcast.Instant) {
	if w.end == 0 || t-w.end >= windowSteps*w.step {
		w.count, w.sum = [windowSteps]uint64{}, 0
		w.end = t - t%w.step + w.step
		return
	}
	for t >= w.end {
		w.end += w.step
		w.at = (w.at + 1) % windowSteps
		w.sum -= w.count[w.at]
		w.count[w.at] = 0
	}
}

const (
	maxSpans  = 512
	firstSpan = 20 // logarithm of the length of a span at first: 1 ms
)

// timeline keeps a replay's course in at most maxSpans spans, which grow with
// it.
type timeline struct {
	any    bool
	origin moldcast.Instant
	shift  int // a span is 1<<shift ns
	used   int
	cells  [maxSpans]cell
}

type cell struct {
	due, sent uint64
	late      uint64 // ns, sum
	worst     int64  // ns
}

func (l *timeline) add(due, sent moldcast.Instant) {
	if !l.any {
		l.any, l.origin, l.shift = true, due, firstSpan
	}
	late := max(sent-due, 0)
	c := l.cell(due)
	c.due++
	c.late += uint64(late)
	c.worst = max(c.worst, int64(late))
	l.cell(sent).sent++
}

// cell is the one that t lies in; what is before the first, in the first.
func (l *timeline) cell(t moldcast.Instant) *cell {
	d := uint64(max(t-l.origin, 0))
	for d>>l.shift >= maxSpans {
		for i := range maxSpans / 2 {
			a, b := &l.cells[2*i], &l.cells[2*i+1]
			l.cells[i] = cell{due: a.due + b.due, sent: a.sent + b.sent, late: a.late + b.late, worst: max(a.worst, b.worst)}
		}
		clear(l.cells[maxSpans/2:])
		l.shift++
		l.used = (l.used + 1) / 2
	}
	i := int(d >> l.shift)
	l.used = max(l.used, i+1)
	return &l.cells[i]
}

func (l *timeline) spans() []Span {
	var out []Span
	for i, c := range l.cells[:l.used] {
		s := Span{From: time.Duration(i) << l.shift, Length: 1 << l.shift, Scheduled: c.due, Sent: c.sent, Max: time.Duration(c.worst)}
		if c.due > 0 {
			s.Mean = time.Duration(c.late / c.due)
		}
		out = append(out, s)
	}
	return out
}

// drift is the mean lateness in the last tenth of the spans less that in the
// first, in seconds.
func drift(spans []Span) float64 {
	tenth := (len(spans) + 9) / 10
	if tenth == 0 || len(spans) < 2 {
		return 0
	}
	mean := func(part []Span) float64 {
		sum, n := 0.0, 0.0
		for _, s := range part {
			sum += s.Mean.Seconds() * float64(s.Scheduled)
			n += float64(s.Scheduled)
		}
		return sum / max(n, 1)
	}
	return mean(spans[len(spans)-tenth:]) - mean(spans[:tenth])
}
