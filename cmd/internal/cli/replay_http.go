package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/pace"
)

// obeyTime bounds how long a request waits until the replay did what it says.
const obeyTime = 2 * time.Second

// remote drives a replay over HTTP: as the keys of a terminal do, and a status.
type remote struct {
	player  *replay.Player
	streams []*replayStream
	cfg     replay.Config
	day     time.Time // any time on the day of the recording

	stopping atomic.Bool // that was ordered
}

// replayStatus is the answer of a replay's /status.
type replayStatus struct {
	State    string         `json:"state"` // starting, playing, paused, waiting (for a hole to be filled), stopping, ended
	Loop     int            `json:"loop"`  // from 1
	Loops    int            `json:"loops"`
	Position *time.Time     `json:"position"` // recorded time; null before the first packet
	Pace     string         `json:"pace"`     // speed, rate, max
	Speed    float64        `json:"speed"`    // messages a second with pace rate; 0: max
	Late     float64        `json:"late_seconds"`
	MostLate float64        `json:"late_max_seconds"`
	Packets  uint64         `json:"packets"`
	Messages uint64         `json:"messages"`
	Sessions []remoteStream `json:"sessions"`
}

type remoteStream struct {
	Session   string       `json:"session"`    // as recorded
	Published string       `json:"as_session"` // on the wire
	State     string       `json:"state"`      // starting, playing, paused, ended
	Lines     []string     `json:"lines"`
	FirstSeq  moldcast.Seq `json:"first_seq"` // of what is to be published
	NextSeq   moldcast.Seq `json:"next_seq"`  // one past the highest that was; a seek alone does not move it
	EndSeq    moldcast.Seq `json:"end_seq"`   // one past its last
}

func (r *remote) status() replayStatus {
	s := r.player.Status()
	out := replayStatus{
		State: "playing", Loop: s.Loop, Loops: s.Loops, Pace: "speed", Speed: s.Speed,
		Late: s.Late.Seconds(), MostLate: s.MostLate.Seconds(), Packets: s.Packets, Messages: s.Messages,
	}
	switch {
	case s.Over():
		out.State = "ended"
	case r.stopping.Load():
		out.State = "stopping"
	case s.Paused:
		out.State = "paused"
	case s.Waiting:
		out.State = "waiting"
	case s.Packets == 0:
		out.State = "starting"
	}
	switch {
	case r.cfg.Pace.Max:
		out.Pace = "max"
	case r.cfg.Pace.Rate != 0:
		out.Pace = "rate"
	}
	if s.Position != 0 {
		t := s.Position.Time().UTC()
		out.Position = &t
	}
	for i, st := range r.streams {
		if st.line > 0 { // one session, on two lines as they were heard
			last := &out.Sessions[len(out.Sessions)-1]
			last.Lines = append(last.Lines, st.group.String())
			continue
		}
		name, _ := replay.LoopSession(st.Session, max(s.Loop, 1), r.cfg.Loop)
		x := remoteStream{Session: st.ref.String(), Published: name.String(), State: "starting", Lines: []string{st.group.String()},
			FirstSeq: st.Range.First, NextSeq: r.player.Published(i), EndSeq: st.Range.Next}
		if st.lineB.IsValid() {
			x.Lines = append(x.Lines, st.lineB.String())
		}
		switch sp, ok := r.player.Space(name); {
		case ok && sp.Ended():
			x.State = "ended"
		case x.NextSeq > x.FirstSeq && s.Paused:
			x.State = "paused"
		case x.NextSeq > x.FirstSeq:
			x.State = "playing"
		}
		out.Sessions = append(out.Sessions, x)
	}
	return out
}

// handler serves status and control. Only POST changes anything, and not for
// another site's page. name is what --http says.
func (r *remote) handler(name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, q *http.Request) {
		if _, err := params(q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		httpd.WriteJSON(w, http.StatusOK, r.status())
	})
	for path, do := range map[string]struct {
		takes []string
		order func(url.Values) error
	}{
		"/pause":  {nil, func(url.Values) error { r.player.Pause(); return nil }},
		"/resume": {nil, func(url.Values) error { r.player.Resume(); return nil }},
		"/speed":  {[]string{"x"}, r.speed},
		"/seek":   {[]string{"seq", "time", "session"}, r.seek},
		"/step":   {[]string{"packets", "messages"}, r.step},
		"/stop":   {nil, func(url.Values) error { r.stopping.Store(true); r.player.Quit(); return nil }},
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, q *http.Request) {
			v, err := params(q, do.takes...)
			if err == nil {
				err = do.order(v)
			}
			if err != nil {
				http.Error(w, strings.TrimPrefix(path, "/")+": "+err.Error(), http.StatusBadRequest)
				return
			}
			ctx, cancel := context.WithTimeout(q.Context(), obeyTime)
			defer cancel()
			_ = r.player.Settled(ctx) // the status says how far it is
			httpd.WriteJSON(w, http.StatusOK, r.status())
		})
	}
	return http.NewCrossOriginProtection().Handler(ownHost(name, mux))
}

// ownHost refuses orders that were sent to a name which is not this host's: a
// page of a site whose name was made to resolve to this address is of that
// origin for a browser. An address cannot be made to; name, of --http, is what
// the user calls it. Who sends no name is no browser.
func ownHost(name string, h http.Handler) http.Handler {
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		host := q.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
		_, err := netip.ParseAddr(host)
		if q.Method == http.MethodPost && err != nil && host != "" && !strings.EqualFold(host, "localhost") && !strings.EqualFold(host, strings.TrimSuffix(name, ".")) {
			http.Error(w, fmt.Sprintf("Host %q: orders are taken by address, as localhost, or by the name that --http gives; another may be a site's that has it resolve to here", q.Host), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, q)
	})
}

// params are the parameters of a request: each that is taken at most once, and
// no other.
func params(q *http.Request, takes ...string) (url.Values, error) {
	v, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("the query cannot be read: %v", err)
	}
	for name, values := range v {
		switch {
		case !slices.Contains(takes, name) && len(takes) == 0:
			return nil, fmt.Errorf("takes no parameter, got %q", name)
		case !slices.Contains(takes, name):
			return nil, fmt.Errorf("no parameter %q: want %s", name, strings.Join(takes, ", "))
		case len(values) > 1:
			return nil, fmt.Errorf("%s given %d times", name, len(values))
		}
	}
	return v, nil
}

func (r *remote) speed(v url.Values) error {
	least, most, what := float64(pace.MinSpeed), float64(pace.MaxSpeed), "times as fast as recorded"
	switch {
	case r.cfg.Pace.Max:
		return errors.New("this replay does not wait: its speed cannot be set")
	case r.cfg.Pace.Rate != 0:
		least, most, what = pace.MinRate, pace.MaxRate, "messages a second"
	}
	x, err := strconv.ParseFloat(v.Get("x"), 64)
	if err != nil || !(x >= least && x <= most) {
		return fmt.Errorf("x %q: want %v..%v %s", v.Get("x"), least, most, what)
	}
	r.player.SetSpeed(x)
	return nil
}

func (r *remote) step(v url.Values) error {
	if v.Has("packets") && v.Has("messages") {
		return errors.New("packets and messages: want one of them")
	}
	name := "packets"
	if v.Has("messages") {
		name = "messages"
	}
	n := 1
	if v.Has(name) {
		var err error
		if n, err = strconv.Atoi(v.Get(name)); err != nil || n < 1 || n > 1_000_000 {
			return fmt.Errorf("%s %q: want 1..1000000", name, v.Get(name))
		}
	}
	if name == "messages" {
		r.player.StepMessages(n)
	} else {
		r.player.StepPackets(n)
	}
	return nil
}

func (r *remote) seek(v url.Values) error {
	switch s := r.player.Status(); {
	case v.Has("seq") == v.Has("time"):
		return errors.New("want seq=N or time=T")
	case s.Packets == 0:
		return errors.New("nothing was sent yet")
	case s.Ended:
		return errors.New("the replay, or this loop of it, has ended")
	}
	if v.Has("time") {
		if v.Has("session") {
			return errors.New("a time is of all sessions: session goes with seq")
		}
		t, err := parseTimeOn("time", v.Get("time"), r.day)
		if err != nil {
			return err
		}
		r.player.SeekTo(moldcast.StampOf(t))
		return nil
	}
	i := 0
	switch name := v.Get("session"); {
	case name != "":
		i = slices.IndexFunc(r.streams, func(s *replayStream) bool {
			return s.ref.String() == name || s.Session.String() == name
		})
		if i < 0 {
			return fmt.Errorf("session %q is not replayed: want one of %s", name, r.names())
		}
	case slices.ContainsFunc(r.streams[1:], func(s *replayStream) bool { return s.line == 0 }):
		return fmt.Errorf("seq is of one session: give session too, one of %s", r.names())
	}
	seq, err := parseSeq("seq", v.Get("seq"))
	if err != nil {
		return err
	}
	if s := r.streams[i]; !s.Range.Contains(seq) {
		return fmt.Errorf("seq %d: %v is replayed from %d to %d", seq, s.ref, s.Range.First, s.Range.Next-1)
	}
	at, err := r.streams[i].timeOf(seq)
	if err != nil {
		return err
	}
	r.player.SeekSeq(i, seq, at)
	return nil
}

func (r *remote) names() string {
	var out []string
	for _, s := range r.streams {
		if s.line == 0 {
			out = append(out, s.ref.String())
		}
	}
	return strings.Join(out, ", ")
}

// timeOf is the time of the message seq, of the next one where it is missing.
func (s *replayStream) timeOf(seq moldcast.Seq) (moldcast.Stamp, error) {
	src, err := s.Open(seq)
	if err != nil {
		return 0, err
	}
	if c, ok := src.(interface{ Close() error }); ok {
		defer c.Close()
	}
	for {
		p, err := src.Next()
		var hole *moldcast.HoleError
		switch {
		case errors.As(err, &hole):
			continue
		case err != nil:
			return 0, fmt.Errorf("no message at or after %d: %v", seq, err)
		}
		return p.Time, nil
	}
}
