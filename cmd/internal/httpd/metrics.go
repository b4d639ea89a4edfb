package httpd

import (
	"net/http"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/moldcast/hist"
)

// metrics answers /metrics in a form that Prometheus reads. It is the status,
// said otherwise: the same snapshot, under other names.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	d, err := s.document(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(snapshot{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// snapshot is an answer as a Collector.
type snapshot struct{ d answer }

// Describe says nothing: what there is depends on the node.
func (snapshot) Describe(chan<- *prometheus.Desc) {}

// emit makes the metrics of one set of labels.
type emit struct {
	ch     chan<- prometheus.Metric
	names  []string
	values []string
}

// with is e with more labels, given as name, value, ….
func (e emit) with(labels ...string) emit {
	e.names, e.values = append([]string(nil), e.names...), append([]string(nil), e.values...)
	for i := 0; i < len(labels); i += 2 {
		e.names, e.values = append(e.names, labels[i]), append(e.values, strings.ToValidUTF8(labels[i+1], "?"))
	}
	return e
}

func (e emit) desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("moldtape_"+name, help, e.names, nil)
}

func (e emit) counter(name, help string, v float64) {
	e.ch <- prometheus.MustNewConstMetric(e.desc(name, help), prometheus.CounterValue, v, e.values...)
}

func (e emit) gauge(name, help string, v float64) {
	e.ch <- prometheus.MustNewConstMetric(e.desc(name, help), prometheus.GaugeValue, v, e.values...)
}

func (e emit) flag(name, help string, v bool) {
	n := 0.0
	if v {
		n = 1
	}
	e.gauge(name, help, n)
}

// histogram gives h with a bucket for each power of two from 2^from to 2^to;
// so many of h's values are one of the unit.
func (e emit) histogram(name, help string, h *hist.Histogram, from, to int, unit float64) {
	buckets := make(map[float64]uint64, to-from+1)
	h.Octaves(from, to+1, func(top int64, n uint64) { buckets[float64(top)/unit] = n })
	e.ch <- prometheus.MustNewConstHistogram(e.desc(name, help), h.Count(), float64(h.Sum())/unit, buckets, e.values...)
}

const perSecond = 1e9 // ns

// Collect gives the metrics.
func (s snapshot) Collect(ch chan<- prometheus.Metric) {
	e := emit{ch: ch}
	e.with("version", s.d.Version, "goversion", runtime.Version()).gauge("build_info", "What was built; always 1.", 1)
	e.gauge("start_time_seconds", "When the node began, in seconds since 1970.", sinceEpoch(s.d.Started))
	if s.d.Role == RoleRetransmit {
		e.flag("archive_up", "Whether the archive as a whole can be read.", s.d.Error == "")
	}
	if k := s.d.Disk; k != nil {
		e.gauge("disk_free_bytes", "Room on the archive's disk.", float64(k.FreeBytes))
		e.gauge("disk_size_bytes", "Size of the archive's disk.", float64(k.SizeBytes))
	}
	if q := s.d.Requests; q != nil {
		q.collect(e)
		collectClients(e, q.Top)
	}
	if k := s.d.Streams; k != nil {
		k.collect(e)
	}
	for i := range s.d.captured {
		c := &s.d.captured[i]
		channel(e.with("channel", c.Channel), c)
	}
	for i := range s.d.served {
		c := &s.d.served[i]
		c.collect(e.with("channel", c.Channel))
	}
}

func sinceEpoch(t time.Time) float64 { return float64(t.UnixNano()) / perSecond }

func (q *Requests) collect(e emit) {
	e.counter("requests_total", "Requests received.", float64(q.Received))
	e.counter("requests_answered_total", "Requests answered.", float64(q.Answered))
	e.counter("requests_cold_total", "Requests answered from the disk.", float64(q.Cold))
	e.counter("answer_messages_total", "Messages in answers.", float64(q.Messages))
	e.counter("answer_bytes_total", "Bytes of answers.", float64(q.Bytes))
	e.gauge("requests_pending", "Requests that wait for the disk.", float64(q.Pending))
	e.counter("requests_wanted_total", "Ranges that were lacking and asked for upstream.", float64(q.Wanted))
	e.counter("requests_arrived_total", "Requests that waited for what was asked for upstream, and were answered.", float64(q.Arrived))
	e.gauge("request_clients", "Clients that are remembered.", float64(q.Clients))
	for reason, n := range q.Refused {
		e.with("reason", reason).counter("requests_refused_total", "Requests without an answer, by reason.", float64(n))
	}
}

func (k *Streams) collect(e emit) {
	for state, n := range k.States {
		e.with("state", state).gauge("stream_readers", "Readers of recovery streams, by what they do.", float64(n))
	}
	var lag, queued float64
	for _, r := range k.List {
		lag, queued = max(lag, float64(r.Lag)), queued+float64(r.Queued)
	}
	e.gauge("stream_lag_messages", "How far behind the head the last of them is.", lag)
	e.gauge("stream_queued_bytes", "Bytes written to them that they have not taken.", queued)
	e.gauge("stream_waiting", "Reads for them that wait in line for the archive.", float64(k.Waiting))
	e.gauge("stream_cache_bytes", "Bytes of the streams kept in memory.", float64(k.CacheBytes))
	e.counter("stream_chunks_total", "Pieces of the streams sent.", float64(k.Chunks))
	e.counter("stream_chunks_encoded_total", "Pieces made, for all readers together.", float64(k.Encoded))
	e.counter("stream_reads_total", "Of these, those read from disk.", float64(k.Reads))
	e.counter("stream_connections_total", "Connections of readers.", float64(k.Connections))
	e.counter("stream_messages_total", "Messages sent to them.", float64(k.Messages))
	e.counter("stream_bytes_total", "Bytes of these, framing included.", float64(k.Bytes))
	for how, n := range k.Ended {
		e.with("how", how).counter("stream_ended_total", "Connections that ended, by how.", float64(n))
	}
}

func channel(e emit, c *capture.Status) {
	counters(e, reflect.ValueOf(c.Counters))
	for name, n := range fields(reflect.ValueOf(c.Verdicts)) {
		e.with("verdict", name).counter("verdicts_total", "Messages by what became of them; of wrong_session, datagrams.", float64(n))
	}
	e.flag("up", "Whether the channel is ok, or has ended.", severity(c.State) < 2)
	for _, d := range c.Degraded {
		r := e.with("reason", d.Reason)
		r.flag("degraded", "Whether the channel is degraded now, by reason.", d.Now)
		r.counter("degradations_total", "How often it was.", float64(d.Times))
		r.counter("degraded_seconds_total", "For how long it was.", d.Seconds)
	}
	var open capture.OpenGaps
	if c.Open != nil {
		open = *c.Open
	}
	e.gauge("open_gaps", "Gaps that are asked or waited for.", float64(open.Gaps))
	e.gauge("open_gap_messages", "Messages missing in them.", float64(open.Messages))
	left := uint64(0)
	for _, r := range c.Recovering {
		left += uint64(r.LastSeq - r.FirstSeq + 1)
	}
	e.gauge("recovering_messages", "Messages that are being fetched from recovery streams.", float64(left))
	e.flag("storage_up", "Whether what is received is stored.", !c.Storage.Degraded())
	e.gauge("storage_waiting_bytes", "Bytes in memory on their way to the disk: blocks to be, and what a failing disk keeps.", float64(c.Storage.WaitingBytes))
	for i := range c.Lines {
		line(e.with("line", c.Lines[i].Line), c, i)
	}
	e.histogram("repair_seconds", "How long gaps that were recovered had been missing.", &c.Measured.Repair, 17, 36, perSecond)
	e.histogram("wait_seconds", "How long packets that came early waited in memory.", &c.Measured.Wait, 10, 34, perSecond)
	for _, k := range c.Sockets {
		x := e.with("socket", k.Addr, "lines", strings.Join(k.Lines, ","))
		x.counter("socket_received_total", "Datagrams received.", float64(k.Received))
		x.counter("socket_queue_dropped_total", "Datagrams for which the ring had no room.", float64(k.QueueDropped))
		x.counter("socket_kernel_dropped_total", "Datagrams for which the socket's buffer had no room.", float64(k.KernelDropped))
		x.gauge("ring_depth", "Datagrams that wait in the ring.", float64(k.RingDepth))
		x.gauge("ring_high", "Most that ever waited.", float64(k.RingHigh))
		x.gauge("ring_slots", "How many it holds.", float64(k.RingSlots))
	}
	for _, x := range c.Sessions {
		if x.Timing == nil {
			continue // closed
		}
		session(e.with("session", x.Session.String(), "take", strconv.Itoa(x.Take)), &x)
	}
}

// counters are named as everywhere.
func counters(e emit, v reflect.Value) {
	for name, n := range fields(v) {
		e.counter(name+"_total", "See the reference: "+name+".", float64(n))
	}
}

// fields are the numbers of a struct, by their names in JSON.
func fields(v reflect.Value) map[string]uint64 {
	out := map[string]uint64{}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("json"); name != "-" {
			out[name] = v.Field(i).Uint()
		}
	}
	return out
}

func line(e emit, c *capture.Status, i int) {
	l, m := &c.Lines[i], &c.Measured.Lines[i]
	e.flag("line_up", "Whether the line was heard within three heartbeats.", l.State == capture.LineLive)
	if l.LastHeard != nil {
		e.gauge("line_last_heard_seconds", "When it was heard last, in seconds since 1970.", sinceEpoch(*l.LastHeard))
	}
	e.counter("line_packets_total", "Packets of the line.", float64(l.Packets))
	e.counter("line_heartbeats_total", "Of these, without messages.", float64(l.Heartbeats))
	e.counter("line_messages_total", "Messages of the line.", float64(l.Messages))
	e.counter("line_bytes_total", "Their payload.", float64(l.Bytes))
	e.counter("line_taken_total", "Messages that nobody had brought before.", float64(l.Taken))
	e.counter("line_repeated_total", "Messages that the line had brought before.", float64(l.Repeated))
	e.counter("line_lost_total", "Messages that the line did not bring.", float64(l.Lost))
	e.gauge("line_missing", "Messages that it may still bring.", float64(l.Missing))
	e.counter("line_compared_total", "Packets compared with another line's.", float64(l.Compared))
	e.counter("line_first_total", "Of these, those that came first.", float64(l.First))
	e.histogram("line_skew_seconds", "How much later than another line's the others came.", &m.Skew, 8, 30, perSecond)
	e.histogram("line_disorder_messages", "How far behind its newest message the line brought what it had gone past.", &m.Disorder, 1, 20, 1)
}

func session(e emit, x *capture.SessionStatus) {
	watermarks(e, x.FirstSeq, x.NextSeq, x.DurableSeq, x.HeadSeq, x.Segments, x.Holes)
	e.gauge("watermark_lag_messages", "head - durable.", float64(x.Lag))
	e.gauge("watermark_lag_seconds", "For how long something is held that is not durable, or lies beyond a hole.", x.LagSeconds)
	e.gauge("settle_seconds", "How long something missing may be mere disorder.", x.Timing.Settle)
	e.gauge("round_trip_seconds", "Of requests, smoothed; 0: not known.", x.Timing.RoundTrip)
}
