package replay

import (
	"sync"
	"sync/atomic"

	"github.com/moldtape/moldtape/moldcast"
)

// maxSkipped bounds the list of ranges that seeks passed over.
const maxSkipped = 256

// Space is one sequence space as far as it was published: what a retransmit
// server may answer from. The sender's thread writes it; anyone may read it.
type Space struct {
	session moldcast.Session
	stream  int
	first   moldcast.Seq
	next    atomic.Uint64 // one past the highest that was sent

	mu struct {
		sync.RWMutex
		skipped []moldcast.Range // below next, never sent: sorted, apart
	}
	anySkipped atomic.Bool
	ended      atomic.Bool
}

func newSpace(s moldcast.Session, stream int, first moldcast.Seq) *Space {
	p := &Space{session: s, stream: stream, first: first}
	p.next.Store(uint64(first))
	return p
}

// Session is the name on the wire.
func (s *Space) Session() moldcast.Session { return s.session }

// Stream is the index in Config.Streams.
func (s *Space) Stream() int { return s.stream }

// First is the lowest sequence that may be published.
func (s *Space) First() moldcast.Seq { return s.first }

// Published is one past the highest sequence that was sent; First before that.
func (s *Space) Published() moldcast.Seq { return moldcast.Seq(s.next.Load()) }

// Ended reports whether End of Session was sent.
func (s *Space) Ended() bool { return s.ended.Load() }

// Clip is the leading part of r that was published: empty where r.First was
// not, because it is still to come, lies before the range of the replay, or was
// passed over by a seek.
func (s *Space) Clip(r moldcast.Range) moldcast.Range {
	if r.First < s.first {
		return moldcast.Range{First: r.First, Next: r.First}
	}
	r.Next = max(r.First, min(r.Next, s.Published()))
	if !s.anySkipped.Load() {
		return r
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, k := range s.mu.skipped {
		if k.Next > r.First && k.First < r.Next {
			r.Next = max(r.First, k.First)
			break
		}
	}
	return r
}

// sent takes in that r was sent; jumped says that a seek came before it.
func (s *Space) sent(r moldcast.Range, jumped bool) {
	next := s.Published()
	if s.anySkipped.Load() && r.First < next {
		s.unskip(r)
	}
	if jumped && r.First > next {
		s.skip(moldcast.Range{First: next, Next: r.First})
	}
	if r.Next > next {
		s.next.Store(uint64(r.Next))
	}
}

func (s *Space) skip(r moldcast.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mu.skipped); n >= maxSkipped {
		// Answering less is safe: the range before the newest grows over what
		// lies between.
		s.mu.skipped[n-1].Next = r.Next
	} else {
		s.mu.skipped = append(s.mu.skipped, r)
	}
	s.anySkipped.Store(true)
}

// unskip takes r out of what was skipped.
func (s *Space) unskip(r moldcast.Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []moldcast.Range
	for i, k := range s.mu.skipped {
		if k.Next <= r.First || k.First >= r.Next {
			out = append(out, k)
			continue
		}
		if k.First < r.First {
			out = append(out, moldcast.Range{First: k.First, Next: r.First})
		}
		if k.Next > r.Next {
			// Where the list is full the rest of a cut range joins the part
			// before it: that answers less.
			if n := len(out); k.First < r.First && n+len(s.mu.skipped)-i > maxSkipped {
				out[n-1].Next = k.Next
			} else {
				out = append(out, moldcast.Range{First: r.Next, Next: k.Next})
			}
		}
	}
	s.mu.skipped = out
	s.anySkipped.Store(len(out) > 0)
}
