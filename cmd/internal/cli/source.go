package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

// A Source looks at what it serves, and at which sessions there are, this
// often: a segment that another process seals is seen by the store a second
// after its last look, and is served this much later.
const (
	boundsEvery = 50 * time.Millisecond
	namesEvery  = 500 * time.Millisecond
)

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
// and Stored may be called from any goroutine. Refresh and Run belong to one
// goroutine.
type Source struct {
	archive  *store.Archive
	channels []string // empty: all
	log      *slog.Logger

	table atomic.Pointer[map[moldcast.Session]*servedView] // never written once it is here

	// Of Refresh's goroutine.
	opened map[store.Ref]*servedView
	names  string // of the archive's directories, as last seen

	mu struct {
		sync.Mutex
		infos []store.Info // of the archive, as last seen
		live  map[store.Ref]liveView
		count uint64 // of Live
		views map[store.Ref]*servedView
		said  map[moldcast.Session]store.Ref // what was chosen among several channels

		failed  map[store.Ref]string // why, of those that do not open
		trouble string               // why the archive as a whole cannot be read; empty: it can
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
	s := &Source{archive: a, channels: channels, log: log, opened: map[store.Ref]*servedView{}}
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

// Live serves a session that this process writes, from now on, by its
// writer's view.
func (s *Source) Live(r store.Ref, v *store.View) {
	if !s.wants(r.Channel) {
		return
	}
	s.mu.Lock()
	s.mu.count++
	s.mu.live[r] = liveView{view: &servedView{source: s, view: v}, order: s.mu.count}
	said := s.rebuildLocked()
	s.mu.Unlock()
	s.say(said)
}

// Stored ends Live: the writer is closed. The session is served on as what
// it has become, one of the archive.
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

// newestLocked is what was written last of a channel.
// REQUIRES: s.mu is held.
func (s *Source) newestLocked(channel string) store.Ref {
	var newest candidate
	for _, cs := range s.candidatesLocked() {
		for _, c := range cs {
			if c.ref.Channel == channel && (newest.ref == (store.Ref{}) || c.rank > newest.rank || c.rank == newest.rank && c.written > newest.written) {
				newest = c
			}
		}
	}
	return newest.ref
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
	// Names first: what comes while the sessions are read is seen next time.
	names := s.listNames()
	infos, err := s.archive.Sessions()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.infos = infos
	for _, of := range []map[store.Ref]*servedView{s.opened, s.mu.views} {
		maps.DeleteFunc(of, func(r store.Ref, _ *servedView) bool { return !s.hasLocked(r) })
	}
	var open []store.Ref
	for _, cs := range s.candidatesLocked() {
		if r := cs[0].ref; cs[0].rank < 2 && s.opened[r] == nil && s.mu.views[r] == nil {
			open = append(open, r)
		}
	}
	s.mu.Unlock()

	failed := map[store.Ref]string{}
	for _, r := range open {
		v, err := s.archive.View(r)
		if err != nil {
			failed[r] = err.Error()
			continue
		}
		for _, f := range v.Faults() {
			s.log.Error("segment is not served", "session", r, "error", f)
		}
		served := &servedView{source: s, view: v, stored: true}
		served.look()
		s.opened[r] = served
	}

	s.mu.Lock()
	for r, v := range s.opened {
		s.mu.views[r] = v
	}
	said := s.rebuildLocked()
	before := s.mu.failed
	s.mu.failed = failed
	s.mu.Unlock()
	s.say(said)
	for r, text := range failed {
		if before[r] != text {
			s.log.Error("session cannot be served", "session", r, "error", text)
		}
	}
	if len(failed) == 0 {
		s.names = names
	}
	return nil
}

// lacking is which of the channels that were named the archive holds nothing of.
func (s *Source) lacking() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.channels {
		if !slices.ContainsFunc(s.mu.infos, func(i store.Info) bool { return i.Channel == name }) {
			names = append(names, name)
		}
	}
	return names
}

// has: a recording is written here, or in the archive as last seen.
func (s *Source) has(r store.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasLocked(r)
}

// REQUIRES: s.mu is held.
func (s *Source) hasLocked(r store.Ref) bool {
	_, live := s.mu.live[r]
	return live || slices.ContainsFunc(s.mu.infos, func(i store.Info) bool { return i.Ref() == r })
}

// listNames is the names of the channels and recordings in the archive: to
// list them costs little, while to read all sessions opens files of each.
func (s *Source) listNames() string {
	var b strings.Builder
	channels, _ := os.ReadDir(s.archive.Dir())
	for _, c := range channels {
		if !c.IsDir() {
			continue
		}
		sessions, _ := os.ReadDir(filepath.Join(s.archive.Dir(), c.Name()))
		for _, r := range sessions {
			b.WriteString(c.Name() + "/" + r.Name() + "\n")
		}
	}
	return b.String()
}

// Run keeps up with the archive until ctx is done.
func (s *Source) Run(ctx context.Context) {
	bounds, names := time.NewTicker(boundsEvery), time.NewTicker(namesEvery)
	defer bounds.Stop()
	defer names.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-bounds.C:
			for _, v := range s.opened {
				v.look()
			}
		case <-names.C:
			s.lookAtOwn()
			s.keepUp()
		}
	}
}

// keepUp takes up what has come, and says once that the archive cannot be read.
func (s *Source) keepUp() {
	trouble := ""
	if s.listNames() != s.names {
		if err := s.Refresh(); err != nil {
			trouble = err.Error()
		}
	}
	s.mu.Lock()
	said := s.mu.trouble
	s.mu.trouble = trouble
	s.mu.Unlock()
	if trouble != "" && trouble != said {
		s.log.Error("archive cannot be read", "error", trouble)
	}
}

// lookAtOwn has the store look at what was pruned of the sessions that this
// process writes or wrote, so that nobody who answers has to.
func (s *Source) lookAtOwn() {
	var own []*store.View
	s.mu.Lock()
	for _, l := range s.mu.live {
		own = append(own, l.view.view)
	}
	for _, v := range s.mu.views {
		if !v.stored {
			own = append(own, v.view)
		}
	}
	s.mu.Unlock()
	for _, v := range own {
		v.Bounds()
	}
}

// Close serves nothing any more. Run must have ended.
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
type servedView struct {
	source *Source
	view   *store.View

	// Of a session that this process does not write the bounds are kept. Of
	// one that it does the store knows them. To look whether they are still so
	// may list a directory: that is for Run's goroutine.
	stored      bool
	first, head atomic.Uint64
}

// look takes up the bounds. While it does, a reader may see one of them a
// moment late, which is as if it had asked a moment earlier.
func (v *servedView) look() {
	first, head := v.view.Bounds()
	v.head.Store(uint64(head))
	v.first.Store(uint64(first))
}

func (v *servedView) Bounds() (first, head moldcast.Seq) {
	if !v.stored {
		return v.view.Known()
	}
	first = moldcast.Seq(v.first.Load())
	return first, moldcast.Seq(v.head.Load())
}

func (v *servedView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	out, n, err := v.view.Append(dst, first, count, size, cold)
	if !errors.Is(err, store.ErrCold) {
		return out, n, err
	}
	if n > 0 && size-(len(out)-len(dst)) < moldcast.LengthSize {
		return out, n, nil // full all the same
	}
	return dst, n, retransmit.ErrCold
}

func (v *servedView) Block(q moldcast.Seq) any { return v.view.Block(q) }
