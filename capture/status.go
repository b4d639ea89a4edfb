package capture

import (
	"github.com/moldtape/moldtape/capture/arbiter"
	"github.com/moldtape/moldtape/moldcast"
)

// Status is a snapshot of a channel: an element of `channels` in /status and
// in the stopped event.
type Status struct {
	Channel string `json:"channel"`
	arbiter.Counters
	Storage  Storage         `json:"storage"`
	Sessions []SessionStatus `json:"sessions"`
}

// SessionStatus is a session that the channel captured since it started.
type SessionStatus struct {
	Session    moldcast.Session `json:"session"`
	Take       int              `json:"take"`
	State      string           `json:"state"` // live or ended
	FirstSeq   moldcast.Seq     `json:"first_seq"`
	NextSeq    moldcast.Seq     `json:"next_seq"`    // exclusive
	DurableSeq moldcast.Seq     `json:"durable_seq"` // exclusive
	HeadSeq    moldcast.Seq     `json:"head_seq"`    // exclusive
	Holes      int              `json:"holes"`       // missing ranges below head, and up to the end where that is known
}

// Holes is the number of holes over all sessions.
func (s Status) Holes() int {
	n := 0
	for _, x := range s.Sessions {
		n += x.Holes
	}
	return n
}
