package store

import (
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

// sparse reports whether the numbers of the session only rise: what is not held
// need not exist, and is no hole. REQUIRES: mu.
func (s *session) sparse() bool {
	return s.facts.Feed != nil && s.facts.Feed.Increments == moldcast.Rising
}

// whole is where, in a sparse session, the first range begins that the disk gave
// back wrong; the limit where there is none. REQUIRES: mu.
func (s *session) whole() moldcast.Seq {
	for _, l := range s.lost {
		if miss := s.cov.Missing(l.r); len(miss) > 0 {
			return miss[0].First
		}
	}
	return s.limit()
}

// firm is the lowest sequence that is held and not durable, remembered from
// call to call: to find it, all ranges are gone through. What is appended only
// lowers it; anything else that moves it changes how much is durable.
type firm struct {
	at    moldcast.Seq // 2^64-1: all is durable
	count uint64       // of what was durable then
	known bool
}

// lower takes note of messages that are held from now on.
func (f *firm) lower(q moldcast.Seq) { f.at = min(f.at, q) }

func (f *firm) get(held, synced *gap.Set) moldcast.Seq {
	if f.known && f.count == synced.Count() {
		return f.at
	}
	*f = firm{at: ^moldcast.Seq(0), count: synced.Count(), known: true}
	durable := synced.Ranges()
	for _, r := range held.Ranges() {
		for len(durable) > 0 && durable[0].Next <= r.First {
			durable = durable[1:]
		}
		if len(durable) == 0 || durable[0].First > r.First {
			f.at = r.First
			break
		}
		if durable[0].Next < r.Next {
			f.at = durable[0].Next
			break
		}
	}
	return f.at
}
