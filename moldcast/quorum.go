package moldcast

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// DefaultArchives is how many archives a Quorum knows at most.
const DefaultArchives = 64

// QuorumConfig configures a Quorum. The zero value of every field but Session
// and K is its default.
type QuorumConfig struct {
	Session Session
	First   Seq // of the session, as in SenderConfig; default 1
	K       int // how many archives must hold a message, 1..Archives

	Archives int            // most that are known; default DefaultArchives
	Silent   time.Duration  // an archive that was not heard for so long is silent; default three times AckKeepAlive
	Allow    []netip.Prefix // from where acknowledgements are taken; nil: anywhere
	Key      []byte         // of AckCodec
}

// EnsureDefaults fills in what was left zero.
func (c *QuorumConfig) EnsureDefaults() {
	if c.First == 0 {
		c.First = 1
	}
	if c.Archives == 0 {
		c.Archives = DefaultArchives
	}
	if c.Silent == 0 {
		c.Silent = 3 * AckKeepAlive
	}
}

// Validate checks the ranges of a config that has its defaults.
func (c *QuorumConfig) Validate() error {
	switch {
	case c.Archives < 1 || c.Archives > 4096:
		return fmt.Errorf("%d archives: want 1..4096", c.Archives)
	case c.K < 1 || c.K > c.Archives:
		return fmt.Errorf("quorum of %d: want 1..%d", c.K, c.Archives)
	case c.Silent < 0:
		return fmt.Errorf("silent after %v: want more than 0", c.Silent)
	}
	return nil
}

// AckVerdict is what became of an acknowledgement.
type AckVerdict uint8

// The verdicts. All but AckTaken mean: nothing changed.
const (
	AckTaken        AckVerdict = iota
	AckNotAllowed              // from outside QuorumConfig.Allow
	AckMalformed               // of another size or version, or its numbers contradict each other
	AckUnauthentic             // damaged, or of another key
	AckOtherSession            // of another session
	AckOld                     // not newer than what was heard of the archive
	AckFull                    // of an archive more than the table holds
	AckVerdicts                // number of verdicts
)

var ackVerdictNames = [AckVerdicts]string{"taken", "not_allowed", "malformed", "unauthentic", "other_session", "old", "full"}

func (v AckVerdict) String() string {
	if v < AckVerdicts {
		return ackVerdictNames[v]
	}
	return "verdict(?)"
}

// QuorumStats are a Quorum's totals. Every acknowledgement offered has one
// verdict.
type QuorumStats struct {
	Verdicts [AckVerdicts]uint64
	Lowered  uint64 // times that an archive held less than it had
	Replaced uint64 // archives that another took the place of
	Evicted  uint64 // silent archives that made room for another
}

// ArchiveState is whether an archive counts.
type ArchiveState uint8

// The states of an archive. Only a whole one counts.
const (
	ArchiveWhole    ArchiveState = iota
	ArchiveLate                  // what it holds begins after the first sequence of the session
	ArchiveOther                 // it holds another stream under the session's name
	ArchiveUnproven              // it held more than was sent, and has not shown yet that it is of this stream
)

func (s ArchiveState) String() string {
	switch s {
	case ArchiveWhole:
		return "whole"
	case ArchiveLate:
		return "late"
	case ArchiveOther:
		return "other"
	case ArchiveUnproven:
		return "unproven"
	}
	return "state(?)"
}

// MarshalText is String.
func (s ArchiveState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ArchiveView is what a Quorum knows of an archive.
type ArchiveView struct {
	Node   NodeID
	Addr   netip.Addr // that it was heard from last
	Held   Range      // as it said
	State  ArchiveState
	Silent bool
	Heard  Instant // when last
}

// Quorum knows up to where at least K archives hold a session durably, from
// their acknowledgements; the package documentation has its rules. It is pure,
// and belongs to who owns the Sender of the session.
type Quorum struct {
	cfg   QuorumConfig
	codec *AckCodec
	rows  []archive
	votes []Seq // scratch
	stats QuorumStats
}

// archive is one row of the table.
type archive struct {
	node           NodeID
	place          uint64
	addr           netip.Addr
	epoch, counter uint64
	held           Range
	checked        Seq
	check          uint64
	same, other    bool // a message was compared and is, or is not, that of the stream
	ahead          bool // it held more than was sent
	heard          Instant
}

// NewQuorum makes a Quorum; the error is of Validate.
func NewQuorum(c QuorumConfig) (*Quorum, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Quorum{cfg: c, codec: NewAckCodec(c.Key), rows: make([]archive, 0, c.Archives), votes: make([]Seq, 0, c.Archives)}, nil
}

// K is how many archives must hold a message.
func (q *Quorum) K() int { return q.cfg.K }

// Stats is a snapshot.
func (q *Quorum) Stats() QuorumStats { return q.stats }

// Offer takes a datagram that came from an address. s is the sender of the
// session: no archive counts for more than it sent.
func (q *Quorum) Offer(now Instant, from netip.Addr, datagram []byte, s *Sender) AckVerdict {
	v := q.offer(now, from.Unmap(), datagram, s)
	q.stats.Verdicts[v]++
	return v
}

func (q *Quorum) offer(now Instant, from netip.Addr, datagram []byte, s *Sender) AckVerdict {
	if q.cfg.Allow != nil && !slices.ContainsFunc(q.cfg.Allow, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return AckNotAllowed
	}
	a, err := q.codec.Parse(datagram)
	switch {
	case err == ErrAckTag:
		return AckUnauthentic
	case err != nil:
		return AckMalformed
	case a.Session != q.cfg.Session:
		return AckOtherSession
	}
	r := q.row(now, from, &a)
	switch {
	case r == nil:
		return AckFull
	case a.Epoch < r.epoch, a.Epoch == r.epoch && a.Counter <= r.counter:
		return AckOld
	}
	less := r.epoch != 0 && (a.Held.Next < r.held.Next || a.Held.First > r.held.First)
	if less {
		q.stats.Lowered++
	}
	if less || a.Epoch != r.epoch {
		// It may be another recording: what was compared of the last tells
		// nothing of it.
		r.same, r.other, r.ahead, r.checked, r.check = false, false, false, 0, 0
	}
	r.node, r.place, r.addr, r.epoch, r.counter, r.held, r.heard = a.Node, a.Place, from, a.Epoch, a.Counter, a.Held, now
	r.ahead = r.ahead || a.Held.Next > s.Sent()
	if a.Checked != 0 && (a.Checked != r.checked || a.Check != r.check) {
		// One that has left the ring, or was not sent yet, tells nothing.
		if data, ok := s.message(a.Checked); ok {
			r.checked, r.check = a.Checked, a.Check
			r.same = AckCheck(a.Checked, data) == a.Check
			r.other = !r.same
		}
	}
	return AckTaken
}

// row is the row of the archive that a is of, a new one where it is not known;
// nil where there is no room.
func (q *Quorum) row(now Instant, from netip.Addr, a *Ack) *archive {
	for i := range q.rows {
		if q.rows[i].node == a.Node {
			return &q.rows[i]
		}
	}
	for i := range q.rows {
		if r := &q.rows[i]; a.Place != 0 && r.place == a.Place && r.addr == from {
			q.stats.Replaced++
			*r = archive{}
			return r
		}
	}
	if len(q.rows) < cap(q.rows) {
		q.rows = append(q.rows, archive{})
		return &q.rows[len(q.rows)-1]
	}
	var least *archive
	for i := range q.rows {
		if r := &q.rows[i]; q.silent(now, r) && (least == nil || q.vote(r) < q.vote(least)) {
			least = r
		}
	}
	if least != nil {
		q.stats.Evicted++
		*least = archive{}
	}
	return least
}

func (q *Quorum) silent(now Instant, r *archive) bool {
	return now-r.heard >= Instant(q.cfg.Silent)
}

func (q *Quorum) state(r *archive) ArchiveState {
	switch {
	case r.held.First > q.cfg.First:
		return ArchiveLate
	case r.other:
		return ArchiveOther
	case r.ahead && !r.same:
		return ArchiveUnproven
	}
	return ArchiveWhole
}

// vote is up to where r counts; 0: not at all.
func (q *Quorum) vote(r *archive) Seq {
	if q.state(r) != ArchiveWhole {
		return 0
	}
	return r.held.Next
}

// Seq is one past the last message that, with all before it, at least K
// archives hold durably; sent, one past the last that was sent, bounds it. It
// falls where an archive comes to hold less.
func (q *Quorum) Seq(sent Seq) Seq {
	q.votes = q.votes[:0]
	for i := range q.rows {
		if v := q.vote(&q.rows[i]); v > 0 {
			q.votes = append(q.votes, v)
		}
	}
	if len(q.votes) < q.cfg.K {
		return q.cfg.First
	}
	slices.Sort(q.votes)
	return max(q.cfg.First, min(q.votes[len(q.votes)-q.cfg.K], sent))
}

// Archives appends what is known of each archive, in the order in which they
// were first heard; one that took the place of another stands there.
func (q *Quorum) Archives(now Instant, dst []ArchiveView) []ArchiveView {
	for i := range q.rows {
		r := &q.rows[i]
		dst = append(dst, ArchiveView{Node: r.node, Addr: r.addr, Held: r.held, State: q.state(r), Silent: q.silent(now, r), Heard: r.heard})
	}
	return dst
}
