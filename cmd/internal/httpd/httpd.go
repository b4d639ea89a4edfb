// Package httpd is the HTTP side of a node: its status, health and metrics.
//
// It cannot hold up a capture, whatever its clients do: a channel's engine is
// asked for its status at most every MaxAge for all of them together, each
// request has time-outs, and connections and headers are bounded.
//
// There is no authentication: whoever reaches the address reads all of it, and,
// where the node takes snapshots, stores some: they overwrite nothing, and are on
// record with their address.
package httpd

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
)

const (
	// MaxAge is how old a status that is served may be.
	MaxAge = 50 * time.Millisecond

	askTimeout = 5 * time.Second // how long an engine is waited for
	maxConns   = 64
	maxHeader  = 16 << 10
	readTime   = 5 * time.Second
	writeTime  = 20 * time.Second // an answer whose client does not read it is given up
	idleTime   = time.Minute
)

// Config is what a Server serves.
type Config struct {
	// Status asks every channel; an error says that one does not answer.
	Status func(context.Context) ([]capture.Status, error)
	// Served is, instead, what a node serves that does not capture.
	Served ServedFunc
	// Requests are the statistics of the request server; nil: there is none.
	Requests func() retransmit.Stats
	Clients  func(n int) []Clients         // who asks it, the n who ask most of each; nil: not told
	Streams  func() retransmit.StreamStats // of the recovery streams, likewise
	Readers  func() []retransmit.ReaderInfo
	Archive  string // the directory, for the room on its disk; empty: none
	Version  string
	Pprof    bool         // serve /debug/pprof/ too
	Log      *slog.Logger // default none

	Snapshots *Snapshots // nil: none are served
}

// Server serves a node.
type Server struct {
	cfg     Config
	started time.Time
	disk    *disk
	http    *http.Server

	turn chan struct{} // holds one token: who has it may read and write the rest
	last answer
	at   time.Time
}

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, started: time.Now(), disk: &disk{dir: cfg.Archive}, turn: make(chan struct{}, 1)}
	s.http = newServer(s.Handler(), cfg.Log)
	return s
}

// Serve serves l until ctx is done, which is no error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.cfg.Archive != "" {
		watch, stop := context.WithCancel(ctx)
		defer stop()
		go s.disk.watch(watch) // not waited for: the disk may hang
	}
	return serve(ctx, s.http, l)
}

// Handler is what Serve serves.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		d, err := s.document(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		WriteJSON(w, http.StatusOK, d.document())
	})
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /metrics", s.metrics)
	if s.cfg.Snapshots != nil {
		s.snapshots(mux, s.cfg.Snapshots)
	}
	if s.cfg.Pprof {
		// A profile takes as long as was asked for.
		slow := func(h http.HandlerFunc) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Minute))
				h(w, r)
			}
		}
		mux.HandleFunc("GET /debug/pprof/", slow(pprof.Index))
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", slow(pprof.Profile))
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", slow(pprof.Trace))
	}
	return mux
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// Node is what /status says of any node.
type Node struct {
	State    string    `json:"state"`           // capture.StateOK …: the worst of the channels'
	Error    string    `json:"error,omitempty"` // what is wrong with the node as a whole
	Version  string    `json:"version"`
	Role     string    `json:"role"` // RoleCapture or RoleRetransmit
	Started  time.Time `json:"started"`
	Time     time.Time `json:"time"` // when this was so
	Disk     *Disk     `json:"disk,omitempty"`
	Requests *Requests `json:"requests,omitempty"` // of the request server
	Streams  *Streams  `json:"streams,omitempty"`  // of the recovery streams that are served
}

// What a node does: it is named as the command.
const (
	RoleCapture    = "capture"
	RoleRetransmit = "retransmit"
)

// Document is the answer of /status of a node that captures.
type Document struct {
	Node
	Channels []capture.Status `json:"channels"`
}

// answer is what is known of a node: of its channels one list or the other.
type answer struct {
	Node
	captured []capture.Status
	served   []Served
}

func (a *answer) document() any {
	if a.Role == RoleRetransmit {
		return Serving{a.Node, a.served}
	}
	return Document{a.Node, a.captured}
}

// Disk is the room on the archive's disk.
type Disk struct {
	FreeBytes uint64 `json:"free_bytes"` // for this user
	SizeBytes uint64 `json:"size_bytes"`
}

// Requests are the statistics of the request server.
type Requests struct {
	Received uint64            `json:"received"`
	Answered uint64            `json:"answered"`
	Cold     uint64            `json:"cold"` // of these, those that were read from the disk
	Messages uint64            `json:"messages"`
	Bytes    uint64            `json:"bytes"`
	Pending  int               `json:"pending"` // that wait for the disk now
	Clients  int               `json:"clients"` // that are remembered
	Refused  map[string]uint64 `json:"refused"` // by reason
	Wanted   uint64            `json:"wanted"`  // ranges that upstream was asked for
	Arrived  uint64            `json:"arrived"` // requests that waited for one, and were answered

	Top       []Client `json:"top_clients"`       // who asked most, at most MaxClients
	Forgotten uint64   `json:"forgotten_clients"` // who are no longer told apart
}

// Streams are the statistics of the recovery streams that are served.
type Streams struct {
	Readers     int               `json:"readers"` // now
	States      map[string]int    `json:"states"`  // of these, by what they do
	Waiting     int               `json:"waiting"` // reads in line for the archive now
	CacheBytes  int64             `json:"cache_bytes"`
	Connections uint64            `json:"connections"`
	Messages    uint64            `json:"messages"`
	Bytes       uint64            `json:"bytes"`
	Chunks      uint64            `json:"chunks"`           // sent
	Encoded     uint64            `json:"chunks_encoded"`   // made, for all readers together
	MsgsEncoded uint64            `json:"messages_encoded"` // in these
	Reads       uint64            `json:"reads"`            // of these, from disk
	Ended       map[string]uint64 `json:"ended"`            // connections, by how
	List        []Reader          `json:"list"`             // of the readers, the longest connected first
}

// Reader is one reader of a recovery stream.
type Reader struct {
	Addr    string           `json:"addr"`
	User    string           `json:"user,omitempty"`
	Session moldcast.Session `json:"session"`
	State   string           `json:"state"`           // login, history, waiting, gap, live
	Place   int              `json:"place,omitempty"` // in line for the archive
	NextSeq moldcast.Seq     `json:"next_seq"`        // the first that was not written to its connection
	Lag     uint64           `json:"lag"`             // messages from there to the head
	Queued  int              `json:"queued_bytes"`    // written, and not taken by the other end
	Since   time.Time        `json:"since"`
}

func streamsOf(st retransmit.StreamStats, readers []retransmit.ReaderInfo, now time.Time) *Streams {
	s := &Streams{
		Readers: st.Readers, Connections: st.Connections, Messages: st.Messages, Bytes: st.Bytes,
		Waiting: st.Wire.Waiting, CacheBytes: st.Wire.Bytes, Chunks: st.Wire.Chunks, Encoded: st.Wire.Encoded, MsgsEncoded: st.Wire.Messages, Reads: st.Wire.Reads,
		States: map[string]int{}, Ended: map[string]uint64{}, List: make([]Reader, 0, len(readers)),
	}
	for state := range retransmit.ReaderStates {
		s.States[state.String()] = 0
	}
	for _, r := range readers {
		s.States[r.State.String()]++
		s.List = append(s.List, Reader{
			Addr: r.Addr, User: r.User, Session: r.Session, State: r.State.String(), Place: r.Place,
			NextSeq: r.Next, Lag: r.Lag, Queued: r.Queued, Since: now.Add(-r.For).UTC(),
		})
	}
	for i, n := range st.Ends {
		s.Ended[retransmit.StreamEnd(i).String()] = n
	}
	return s
}

func requestsOf(st retransmit.Stats) *Requests {
	r := &Requests{
		Received: st.Requests, Answered: st.Answered, Cold: st.Cold, Messages: st.Messages, Bytes: st.Bytes,
		Pending: st.Pending, Clients: st.Admit.Clients, Refused: map[string]uint64{}, Top: []Client{},
		Wanted: st.Wanted, Arrived: st.Arrived,
	}
	for i, n := range st.Unanswered {
		r.Refused[retransmit.Reason(i).String()] = n
	}
	return r
}

// document is the status, at most MaxAge old. Those who ask at the same time
// share one.
func (s *Server) document(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	if !s.at.IsZero() && time.Since(s.at) < MaxAge {
		return s.last, nil
	}
	a, err := s.ask(ctx)
	if err != nil {
		return answer{}, err
	}
	s.at = time.Now()
	a.Version, a.Started, a.Time, a.Disk = s.cfg.Version, s.started.UTC(), s.at.UTC(), s.disk.usage()
	s.last = a
	if s.cfg.Requests != nil {
		s.last.Requests = requestsOf(s.cfg.Requests())
		if s.cfg.Clients != nil {
			s.last.Requests.Top, s.last.Requests.Forgotten = clientsOf(s.last.Time, s.cfg.Clients(MaxClients))
		}
	}
	if s.cfg.Streams != nil {
		var readers []retransmit.ReaderInfo
		if s.cfg.Readers != nil {
			readers = s.cfg.Readers()
		}
		s.last.Streams = streamsOf(s.cfg.Streams(), readers, s.at)
	}
	return s.last, nil
}

// ask asks for the channels.
func (s *Server) ask(ctx context.Context) (a answer, err error) {
	if s.cfg.Served == nil {
		a.Role = RoleCapture
		a.captured, err = s.cfg.Status(ctx)
		a.State = Worst(a.captured)
		return a, err
	}
	a.Role, a.State = RoleRetransmit, capture.StateOK
	a.served, a.Error, err = s.cfg.Served(ctx)
	for i := range a.served {
		if a.served[i].State != capture.StateOK {
			a.State = capture.StateDegraded
		}
	}
	if a.Error != "" {
		a.State = capture.StateDegraded
	}
	return a, err
}

// Worst is the state of a node with these channels: failed or degraded if one
// is; ended if all are, or have stopped.
func Worst(channels []capture.Status) string {
	worst, most := capture.StateEnded, 0
	for _, c := range channels {
		if n := severity(c.State); n > most {
			worst, most = c.State, n
		}
	}
	return worst
}

func severity(state string) int {
	switch state {
	case capture.StateEnded, capture.StateStopped:
		return 0
	case capture.StateOK:
		return 1
	case capture.StateDegraded:
		return 2
	}
	return 3
}

// The answers of /healthz.
const (
	healthOK       = "ok"
	healthDegraded = "degraded" // some channel cannot store what it receives, or has failed; or the archive cannot be read
	healthStopping = "stopping" // or an engine does not answer
)

// Health is the answer of /healthz: 200 where Status is ok, else 503.
type Health struct {
	Status   string          `json:"status"`
	Error    string          `json:"error,omitempty"`
	Channels []ChannelHealth `json:"channels,omitempty"` // those that are not well
}

// ChannelHealth is a channel that is not well.
type ChannelHealth struct {
	Channel string          `json:"channel"`
	State   string          `json:"state"`
	Error   string          `json:"error,omitempty"`
	Storage capture.Storage `json:"storage"`
}

// healthz: the process does its work. Gaps, silent lines and sessions that are
// damaged are no reason to restart it; /status tells of them.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	d, err := s.document(r.Context())
	if err != nil {
		WriteJSON(w, http.StatusServiceUnavailable, Health{Status: healthStopping, Error: err.Error()})
		return
	}
	h, code := Health{Status: healthOK, Error: d.Error}, http.StatusOK
	if d.Error != "" {
		h.Status, code = healthDegraded, http.StatusServiceUnavailable
	}
	for _, c := range d.captured {
		if c.Storage.Degraded() || c.State == capture.StateFailed {
			h.Status, code = healthDegraded, http.StatusServiceUnavailable
			h.Channels = append(h.Channels, ChannelHealth{c.Channel, c.State, c.Error, c.Storage})
		}
	}
	WriteJSON(w, code, h)
}

// Ready is the answer of /readyz: 200 where Ready, else 503.
type Ready struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"` // why not
}

// readyz: the lines are joined, which an engine that answers vouches for, and
// the archive is written; or else it is served.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	var a Ready
	d, err := s.document(r.Context())
	switch {
	case err != nil && s.cfg.Served != nil:
		a.Reasons = append(a.Reasons, "not serving: "+err.Error())
	case err != nil:
		a.Reasons = append(a.Reasons, "not capturing: "+err.Error())
	case d.Error != "":
		a.Reasons = append(a.Reasons, d.Error)
	}
	for _, c := range d.captured {
		if c.Storage.Degraded() {
			a.Reasons = append(a.Reasons, "channel "+c.Channel+": the archive cannot be written: "+c.Storage.Error)
		}
		if c.State == capture.StateFailed {
			a.Reasons = append(a.Reasons, "channel "+c.Channel+" has failed: "+c.Error)
		}
	}
	code := http.StatusServiceUnavailable
	if a.Ready = len(a.Reasons) == 0; a.Ready {
		code = http.StatusOK
	}
	WriteJSON(w, code, a)
}
