package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

// refreshEvery is how often a Source looks for sessions that are new in the
// archive: often enough that one is served within a second.
const refreshEvery = 500 * time.Millisecond

// Source serves the sessions of an archive to a retransmit.Server: those that
// this process writes by the view of their writer, live; all others by the
// archive, up to their sealed end.
//
// A name on the wire is the latest take of the channel that holds it. Where
// several channels hold it, one that this process writes comes first, then
// one that another process writes, then the one whose last message is newest;
// it is said whenever that has to be decided.
//
// Lookup may be called from any goroutine, and neither waits nor locks. Live
// and Stored may be called from any goroutine. Refresh, Run and Close belong
// to one goroutine; Close comes after the last use of any View.
type Source struct {
	archive  *store.Archive
	channels []string // empty: all
	log      *slog.Logger

	table atomic.Pointer[map[moldcast.Session]*servedView] // never written once it is here

	opened map[store.Ref]*servedView // of Refresh's goroutine
	failed map[store.Ref]string      // what was said about those that did not open

	mu struct {
		sync.Mutex
		infos []store.Info // of the archive, as last seen
		live  map[store.Ref]liveView
		count uint64 // of Live
		views map[store.Ref]*servedView
		said  map[moldcast.Session]store.Ref // what was chosen among several channels
	}
}

type liveView struct {
	view  *servedView
	order uint64
}

var _ retransmit.Source = (*Source)(nil)

// NewSource makes a Source of what an archive holds of the channels (none:
// all). It serves nothing yet: Refresh or Run reads the archive.
func NewSource(a *store.Archive, channels []string, log *slog.Logger) *Source {
	s := &Source{archive: a, channels: channels, log: log, opened: map[store.Ref]*servedView{}, failed: map[store.Ref]string{}}
	s.mu.live = map[store.Ref]liveView{}
	s.mu.views = map[store.Ref]*servedView{}
	s.mu.said = map[moldcast.Session]store.Ref{}
	s.table.Store(&map[moldcast.Session]*servedView{})
	return s
}

// Lookup finds the View of a session's latest take.
func (s *Source) Lookup(name moldcast.Session) (retransmit.View, bool) {
	v, ok := (*s.table.Load())[name]
	if !ok {
		return nil, false
	}
	return v, true
}

// Sessions is how many sessions are served.
func (s *Source) Sessions() int { return len(*s.table.Load()) }

// Live serves a session that this process writes, from now on. The view is
// used until Close.
func (s *Source) Live(r store.Ref, v *store.View) {
	if !s.wants(r.Channel) {
		return
	}
	s.mu.Lock()
	s.mu.count++
	s.mu.live[r] = liveView{view: &servedView{v}, order: s.mu.count}
	said := s.rebuildLocked()
	s.mu.Unlock()
	s.say(said)
}

// Stored ends Live: the writer is closed. Until the next Refresh the session
// is served by the writer's view, as far as that still reads.
func (s *Source) Stored(r store.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.mu.live[r]; ok {
		delete(s.mu.live, r)
		s.mu.views[r] = l.view
	}
}

func (s *Source) wants(channel string) bool {
	return len(s.channels) == 0 || slices.Contains(s.channels, channel)
}

// candidate is a recording that could answer for its session name.
type candidate struct {
	ref     store.Ref
	rank    int // 2: written here, 1: written elsewhere, 0: at rest
	written uint64
}

// candidates finds for every name the latest take of each channel, best first.
// REQUIRES: s.mu is held.
func (s *Source) candidatesLocked() map[moldcast.Session][]candidate {
	latest := map[store.Ref]candidate{} // Take 0: of any
	add := func(c candidate) {
		k := c.ref
		k.Take = 0
		if have, ok := latest[k]; !ok || have.ref.Take < c.ref.Take || have.ref.Take == c.ref.Take && have.rank < c.rank {
			latest[k] = c
		}
	}
	for _, i := range s.mu.infos {
		if !s.wants(i.Channel) {
			continue
		}
		c := candidate{ref: i.Ref()}
		if i.State == store.Live {
			c.rank = 1
		}
		if i.LastTime != nil {
			c.written = uint64(max(0, i.LastTime.UnixNano()))
		}
		add(c)
	}
	for r, l := range s.mu.live {
		add(candidate{ref: r, rank: 2, written: l.order})
	}
	all := map[moldcast.Session][]candidate{}
	for _, c := range latest {
		all[c.ref.Session] = append(all[c.ref.Session], c)
	}
	for _, cs := range all {
		slices.SortFunc(cs, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(b.written, a.written), cmp.Compare(a.ref.Channel, b.ref.Channel))
		})
	}
	return all
}

// chosen is a decision among several channels.
type chosen struct {
	session moldcast.Session
	from    store.Ref
	channel []string // all that hold it
}

// rebuildLocked makes a new table. It returns what there is to say.
// REQUIRES: s.mu is held.
func (s *Source) rebuildLocked() []chosen {
	table := map[moldcast.Session]*servedView{}
	var said []chosen
	for name, cs := range s.candidatesLocked() {
		best := cs[0]
		if l, ok := s.mu.live[best.ref]; ok {
			table[name] = l.view
		} else if v, ok := s.mu.views[best.ref]; ok {
			table[name] = v
		}
		if len(cs) < 2 || s.mu.said[name] == best.ref {
			continue
		}
		s.mu.said[name] = best.ref
		c := chosen{session: name, from: best.ref}
		for _, o := range cs {
			c.channel = append(c.channel, o.ref.Channel)
		}
		said = append(said, c)
	}
	s.table.Store(&table)
	return said
}

func (s *Source) say(said []chosen) {
	for _, c := range said {
		s.log.Info("several channels hold a session: requests for it are answered from one",
			"session", c.session, "from", c.from, "channels", c.channel)
	}
}

// Refresh serves what has come to the archive. A session that cannot be
// opened is said, once, and not served; the error is of the archive as a whole.
func (s *Source) Refresh() error {
	infos, err := s.archive.Sessions()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.infos = infos
	var open []store.Ref
	for _, cs := range s.candidatesLocked() {
		if r := cs[0].ref; cs[0].rank < 2 && s.opened[r] == nil {
			open = append(open, r)
		}
	}
	s.mu.Unlock()

	for _, r := range open {
		v, err := s.archive.View(r)
		if err != nil {
			if text := err.Error(); s.failed[r] != text {
				s.failed[r] = text
				s.log.Error("session cannot be served", "session", r, "error", err)
			}
			continue
		}
		delete(s.failed, r)
		s.opened[r] = &servedView{v}
	}

	s.mu.Lock()
	for r, v := range s.opened {
		s.mu.views[r] = v
	}
	said := s.rebuildLocked()
	s.mu.Unlock()
	s.say(said)
	return nil
}

// Run refreshes until ctx is done.
func (s *Source) Run(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch err := s.Refresh(); {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			s.log.Error("archive cannot be read", "error", err)
		}
	}
}

// Close closes the views that Refresh opened.
func (s *Source) Close() error {
	s.table.Store(&map[moldcast.Session]*servedView{})
	var errs []error
	for _, v := range s.opened {
		errs = append(errs, v.view.Close())
	}
	clear(s.opened)
	return errors.Join(errs...)
}

// servedView is a store's view as the server wants it.
type servedView struct{ view *store.View }

func (v *servedView) Bounds() (first, head moldcast.Seq) { return v.view.Bounds() }

func (v *servedView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	out, n, err := v.view.Append(dst, first, count, size, cold)
	if err != nil && errors.Is(err, store.ErrCold) {
		err = retransmit.ErrCold
	}
	return out, n, err
}
