package arbiter

import "github.com/moldtape/moldtape/moldcast/gap"

// Counters of a channel, under their names in every output. All only grow.
//
// Every datagram offered is in exactly one of Packets, Malformed, Implausible,
// WrongSession, or is one of Arbiter.HeldPackets:
//
//	offered = Packets + Malformed + Implausible + WrongSession + held now
//
// and every message of the packets counted in Packets is in exactly one of
// Messages, Duplicates, Conflicts, QueueDropped, Unasked, or is one of
// Arbiter.Waiting's:
//
//	Σ messages of Packets + Streamed + Retaken + Copied = Messages + Duplicates + Conflicts + QueueDropped + Unasked + waiting now
//
// Of what is stored or waits, each came with one verdict; what the store still
// refused of a take that ended, which is in QueueDropped, had one too:
//
//	InOrder + Early + Filled + Stale = Messages + waiting now
type Counters struct {
	Packets           uint64 `json:"packets"`            // datagrams that parsed and were processed, from lines and answers, heartbeats included
	Messages          uint64 `json:"messages"`           // stored for the first time
	Bytes             uint64 `json:"bytes"`              // of these, payloads only
	Duplicates        uint64 `json:"duplicates"`         // messages already held, from any line or answer, or held once and removed by retention
	OutOfOrder        uint64 `json:"out_of_order"`       // messages that came before their predecessor, which then came before it was a gap
	GapsOpened        uint64 `json:"gaps_opened"`        // ranges still missing after the settle time
	GapsRecovered     uint64 `json:"gaps_recovered"`     // of these, filled by whatever path
	MessagesRecovered uint64 `json:"messages_recovered"` // messages of settled gaps that came after all, given up or not
	MessagesLost      uint64 `json:"messages_lost"`      // given up after the budget; never falls
	Stale             uint64 `json:"stale"`              // messages that came after they were given up, or were forgotten; stored
	QueueDropped      uint64 `json:"queue_dropped"`      // messages dropped because the store or a table was full, or a session could not be opened; they stay missing
	KernelDropped     uint64 `json:"kernel_dropped"`     // for the shell, which adds here what its sockets count; always 0 from an Arbiter
	Malformed         uint64 `json:"malformed"`          // datagrams that did not parse
	Implausible       uint64 `json:"implausible"`        // datagrams that jumped absurdly and were not confirmed
	Conflicts         uint64 `json:"conflicts"`          // messages already held with other bytes, and new ones of the same packet; dropped
	WrongSession      uint64 `json:"wrong_session"`      // datagrams of a session that is not recorded, or never asked for
	NaksSent          uint64 `json:"naks_sent"`          // requests handed out by Poll
	Streamed          uint64 `json:"messages_streamed"`  // messages that recovery streams brought, held already or not

	InOrder uint64 `json:"-"` // messages that continued what was held
	Early   uint64 `json:"-"` // messages beyond something missing
	Filled  uint64 `json:"-"` // messages that were missing, and not given up

	Unasked      uint64 `json:"-"` // missing messages in an answer that nobody had asked for; dropped
	OpenFailures uint64 `json:"-"` // times Output.Open or Fork failed
	Uncompared   uint64 `json:"-"` // held messages that were taken for the same because there was no room to compare them
	Retaken      uint64 `json:"-"` // messages of conflicting packets that a new take began with: they are counted again
	Copied       uint64 `json:"-"` // messages of a take that the take after it begins with
}

// Add adds o to c, field by field.
func (c *Counters) Add(o Counters) {
	c.Packets += o.Packets
	c.Messages += o.Messages
	c.Bytes += o.Bytes
	c.Duplicates += o.Duplicates
	c.OutOfOrder += o.OutOfOrder
	c.GapsOpened += o.GapsOpened
	c.GapsRecovered += o.GapsRecovered
	c.MessagesRecovered += o.MessagesRecovered
	c.MessagesLost += o.MessagesLost
	c.Stale += o.Stale
	c.QueueDropped += o.QueueDropped
	c.KernelDropped += o.KernelDropped
	c.Malformed += o.Malformed
	c.Implausible += o.Implausible
	c.Conflicts += o.Conflicts
	c.WrongSession += o.WrongSession
	c.NaksSent += o.NaksSent
	c.Streamed += o.Streamed
	c.InOrder += o.InOrder
	c.Early += o.Early
	c.Filled += o.Filled
	c.Unasked += o.Unasked
	c.OpenFailures += o.OpenFailures
	c.Uncompared += o.Uncompared
	c.Retaken += o.Retaken
	c.Copied += o.Copied
}

// addGaps adds what a gap machine counts.
func (c *Counters) addGaps(s gap.Stats) {
	c.GapsOpened += s.GapsOpened
	c.GapsRecovered += s.GapsRecovered
	c.MessagesRecovered += s.MessagesRecovered
	c.MessagesLost += s.MessagesLost
	c.NaksSent += s.Requests
}
