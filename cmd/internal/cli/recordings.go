package cli

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

// recordings serves the sessions of a Source as recovery streams. The current
// session is the one written last; where it serves several channels there is
// no such thing.
type recordings struct {
	source   *Source
	channels []string // empty: all of source
	captured []string // that this process captures

	mu    sync.Mutex
	views map[store.Ref]*recording // of what the archive has
}

func (s *Source) recordings(channels ...string) *recordings {
	return &recordings{source: s, channels: channels, views: map[store.Ref]*recording{}}
}

// Recording finds one, and opens it if nobody has.
func (k *recordings) Recording(name moldcast.Session) (moldcast.Session, retransmit.Recording, error) {
	ref, view, ok := k.find(name)
	if !ok {
		return name, nil, retransmit.ErrNoRecording
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.views[ref]; r != nil && (view == nil || r.View == view) {
		return ref.Session, r, nil
	}
	if view == nil {
		k.mu.Unlock() // others do not wait for a disk
		v, err := k.source.archive.View(ref)
		k.mu.Lock()
		switch {
		case errors.Is(err, store.ErrNotFound):
			return name, nil, retransmit.ErrNoRecording
		case err != nil:
			return name, nil, err
		}
		view = v
	}
	maps.DeleteFunc(k.views, func(r store.Ref, _ *recording) bool { return !k.source.has(r) })
	r := &recording{View: view, source: k.source, captured: slices.Contains(k.captured, ref.Channel)}
	k.views[ref] = r
	return ref.Session, r, nil
}

// find is the recording that stands for a name; view is nil where it is not
// open.
func (k *recordings) find(name moldcast.Session) (ref store.Ref, view *store.View, ok bool) {
	s := k.source
	s.mu.Lock()
	defer s.mu.Unlock()
	var best candidate
	channel := ""
	for session, cs := range s.candidatesLocked() {
		if name != soup.Blank && session != name {
			continue
		}
		for _, c := range cs { // best first
			if len(k.channels) > 0 && !slices.Contains(k.channels, c.ref.Channel) {
				continue
			}
			if name == soup.Blank && channel != "" && channel != c.ref.Channel {
				return ref, nil, false
			}
			channel = c.ref.Channel
			if !ok || name == soup.Blank && (c.rank > best.rank || c.rank == best.rank && c.written > best.written) {
				best, ok = c, true
			}
		}
	}
	ref = best.ref
	if l, live := s.mu.live[ref]; live {
		return ref, l.view.view, ok
	}
	if v := s.mu.views[ref]; v != nil {
		return ref, v.view, ok
	}
	return ref, nil, ok
}

// recording is a store's view as the stream wants it.
type recording struct {
	*store.View
	source   *Source
	captured bool // its channel is, by this process
	damaged  damagedSnapshots

	mu      sync.Mutex
	looked  time.Time
	growing bool
}

// growingFor is how long it is believed whether another process writes.
const growingFor = time.Second

func (r *recording) Growing() bool {
	ref := r.Ref()
	r.source.mu.Lock()
	_, live := r.source.mu.live[ref]
	// Before the session is heard again, after a restart, it is not written, but
	// what it lacks will be asked for.
	newest := r.captured && r.source.newestLocked(ref.Channel) == ref
	r.source.mu.Unlock()
	if live {
		return true
	}
	if _, ended := r.Ended(); newest && !ended {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.looked) >= growingFor {
		r.looked, r.growing = now, r.Info().State == store.Live
	}
	return r.growing
}

func (r *recording) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	out, n, err := r.View.Append(dst, first, count, size, cold)
	var bad *store.CorruptError
	switch {
	case errors.Is(err, store.ErrCold):
		err = retransmit.ErrCold
	case errors.As(err, &bad):
		err = &moldcast.HoleError{Hole: moldcast.Hole{Range: bad.Range, Reason: moldcast.Damaged}}
	}
	return out, n, err
}
