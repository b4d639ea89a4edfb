package retransmit

import (
	"slices"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// ReaderState is what a reader of a recovery stream does.
type ReaderState uint8

// The states of a reader.
const (
	ReaderLogin   ReaderState = iota // has not logged in yet
	ReaderHistory                    // reads what was stored before
	ReaderWaiting                    // the same, and waits in line for the archive
	ReaderGap                        // waits for a gap to be filled
	ReaderLive                       // has all there is
	ReaderStates                     // number of them
)

var readerStates = [ReaderStates]string{"login", "history", "waiting", "gap", "live"}

// String is s as a name in the status.
func (s ReaderState) String() string {
	if s < ReaderStates {
		return readerStates[s]
	}
	return "state(?)"
}

// ReaderInfo is one reader of a recovery stream.
type ReaderInfo struct {
	Addr    string
	User    string           // as it logged in; any bytes
	Session moldcast.Session // blank before that
	State   ReaderState
	Place   int           // in line, from 1; 0: not in it
	Next    moldcast.Seq  // the first message that was not yet written to its connection
	Lag     uint64        // messages from there to the head
	Queued  int           // bytes written that the other end has not taken; 0 where that is not known
	For     time.Duration // since it connected
}

// Readers is every reader now, the longest connected first. It may be called at
// any time.
func (s *StreamServer) Readers() []ReaderInfo {
	s.mu.Lock()
	all := make([]*reader, 0, len(s.mu.all))
	for r := range s.mu.all {
		all = append(all, r)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *reader) int { return a.since.Compare(b.since) })
	out := make([]ReaderInfo, len(all))
	for i, r := range all {
		out[i] = r.info()
	}
	return out
}

func (r *reader) info() ReaderInfo {
	r.shown.Lock()
	i := ReaderInfo{
		Addr: r.addr, User: r.shown.user, State: r.shown.state, Next: r.shown.next, For: time.Since(r.since),
	}
	f, l := r.shown.feed, r.shown.load
	r.shown.Unlock()
	if r.tcp != nil {
		i.Queued = r.tcp.queued()
	}
	if f == nil {
		return i
	}
	i.Session = f.name
	at, _ := f.now()
	if i.Next < at.head {
		i.Lag = uint64(at.head - i.Next)
	}
	if l != nil {
		if ahead, _, ok := r.s.wire.place(l); ok {
			i.Place = ahead + 1
			if i.State == ReaderHistory {
				i.State = ReaderWaiting
			}
		}
	}
	return i
}
