package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Which recording answers for a name on the wire.
func TestSourceChoice(t *testing.T) {
	s1, _ := moldcast.ParseSession("S1")
	info := func(ref string, state store.State, last int) store.Info {
		r := testRef(t, ref)
		i := store.Info{Channel: r.Channel, Session: r.Session.String(), Take: r.Take, State: state}
		if last > 0 {
			at := time.Unix(int64(last), 0)
			i.LastTime = &at
		}
		return i
	}
	for _, c := range []struct {
		name     string
		channels []string
		infos    []store.Info
		live     []string
		want     string // of S1
	}{
		{"none", nil, nil, nil, ""},
		{"other name", nil, []store.Info{info("a/S2", store.Ended, 5)}, nil, ""},
		{"one", nil, []store.Info{info("a/S1", store.Ended, 5)}, nil, "a/S1"},
		{"latest take", nil, []store.Info{info("a/S1@2", store.Ended, 5), info("a/S1", store.Ended, 9)}, nil, "a/S1@2"},
		{"latest take, in figures", nil, []store.Info{info("a/S1@10", store.Ended, 5), info("a/S1@9", store.Ended, 9)}, nil, "a/S1@10"},
		{"latest take, also empty", nil, []store.Info{info("a/S1@2", store.Opened, 0), info("a/S1", store.Ended, 9)}, nil, "a/S1@2"},
		{"newest of several", nil, []store.Info{info("a/S1", store.Ended, 5), info("b/S1", store.Ended, 6), info("c/S1", store.Ended, 4)}, nil, "b/S1"},
		{"newest by the latest takes", nil, []store.Info{info("a/S1", store.Ended, 9), info("a/S1@2", store.Ended, 5), info("b/S1", store.Ended, 6)}, nil, "b/S1"},
		{"written elsewhere first", nil, []store.Info{info("a/S1", store.Live, 5), info("b/S1", store.Ended, 6)}, nil, "a/S1"},
		{"written here first", nil, []store.Info{info("a/S1", store.Live, 5), info("b/S1", store.Live, 6)}, []string{"a/S1"}, "a/S1"},
		{"begun here last", nil, []store.Info{info("a/S1", store.Live, 5)}, []string{"b/S1", "a/S1", "c/S1"}, "c/S1"},
		{"new take here", nil, []store.Info{info("a/S1", store.Ended, 5)}, []string{"a/S1@2"}, "a/S1@2"},
		{"older take here", nil, []store.Info{info("a/S1@2", store.Ended, 5)}, []string{"a/S1"}, "a/S1@2"},
		{"equal: by name", nil, []store.Info{info("b/S1", store.Ended, 5), info("a/S1", store.Ended, 5)}, nil, "a/S1"},
		{"channel asked for", []string{"a"}, []store.Info{info("a/S1", store.Ended, 5), info("b/S1", store.Live, 6)}, []string{"b/S1"}, "a/S1"},
		{"no channel asked for", []string{"z"}, []store.Info{info("a/S1", store.Ended, 5)}, []string{"b/S1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			s := NewSource(nil, c.channels, slog.New(slog.NewTextHandler(&log, nil)))
			byView := map[*servedView]string{}
			for _, i := range c.infos {
				v := &servedView{}
				s.mu.views[i.Ref()] = v
				byView[v] = i.Ref().String()
			}
			s.mu.infos = c.infos
			s.say(s.rebuildLocked())
			for _, l := range c.live {
				s.Live(testRef(t, l), nil)
				if v, ok := s.mu.live[testRef(t, l)]; ok {
					byView[v.view] = l
				}
			}
			for range 2 {
				got := ""
				if v, ok := s.Lookup(s1); ok {
					got = byView[v.(*servedView)]
				}
				if got != c.want {
					t.Errorf("answered from %q, want %q", got, c.want)
				}
				said := log.String()
				s.say(s.rebuildLocked())
				if log.String() != said {
					t.Errorf("said again: %s", &log)
				}
			}
			several := map[string]bool{}
			for _, r := range byView {
				if ref := testRef(t, r); ref.Session == s1 && s.wants(ref.Channel) {
					several[ref.Channel] = true
				}
			}
			if said := strings.Contains(log.String(), "from="+c.want); said != (len(several) > 1) {
				t.Errorf("%d channels, said: %q", len(several), &log)
			}
		})
	}
}

// What was written last of a channel: it goes on when it is heard again.
func TestNewest(t *testing.T) {
	info := func(ref string, state store.State, last int64) store.Info {
		r, at := testRef(t, ref), time.Unix(last, 0)
		return store.Info{Channel: r.Channel, Session: r.Session.String(), Take: r.Take, State: state, LastTime: &at}
	}
	s := NewSource(nil, nil, slog.New(slog.DiscardHandler))
	if got := s.newestLocked("a"); got != (store.Ref{}) {
		t.Errorf("%v of nothing", got)
	}
	s.mu.infos = []store.Info{info("a/S1", store.Opened, 5), info("a/S2", store.Opened, 7), info("a/S1@2", store.Opened, 6), info("b/S3", store.Opened, 9)}
	for _, want := range []string{"a/S2", "b/S3"} {
		if got := s.newestLocked(want[:1]); got != testRef(t, want) {
			t.Errorf("%v, want %s", got, want)
		}
	}
	s.mu.live[testRef(t, "a/S0")] = liveView{order: 1}
	if got := s.newestLocked("a"); got != testRef(t, "a/S0") {
		t.Errorf("%v, want what is written now", got)
	}
}

func testRef(t *testing.T, name string) store.Ref {
	t.Helper()
	r := store.Ref{Take: 1}
	channel, rest, _ := strings.Cut(name, "/")
	session, take, ok := strings.Cut(rest, "@")
	if ok {
		if _, err := fmt.Sscan(take, &r.Take); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.Session, err = moldcast.ParseSession(session); err != nil {
		t.Fatal(err)
	}
	r.Channel = channel
	return r
}
