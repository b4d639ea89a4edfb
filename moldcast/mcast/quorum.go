package mcast

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// ErrGate: a Publisher was stopped while PublisherConfig.Gate held its End of
// Session, which was not sent.
var ErrGate = errors.New("stopped before the quorum held everything; no End of Session was sent")

// ErrGateLost: the quorum could not hold everything any more, since archives
// miss messages that have left the ring, and nobody else brought them. No End of
// Session was sent.
var ErrGateLost = errors.New("the quorum cannot hold everything: archives miss messages that have left the ring; no End of Session was sent")

// QuorumStatus is how far a Publisher's Quorum has come.
type QuorumStatus struct {
	K        int
	Seq      moldcast.Seq // one past the last message that K archives hold durably, with all before it
	Sent     moldcast.Seq // one past the last that was sent
	Waiting  bool         // End of Session waits for the quorum
	At       moldcast.Instant
	Archives []moldcast.ArchiveView
	Stats    moldcast.QuorumStats
}

// Complete is how many archives hold durably everything that was sent.
func (q QuorumStatus) Complete() (n int) {
	for _, a := range q.Archives {
		if a.State == moldcast.ArchiveWhole && a.Held.Next >= q.Sent {
			n++
		}
	}
	return n
}

const (
	quorumEvery = moldcast.Instant(100 * time.Millisecond) // how often the status is made anew
	lowEvery    = moldcast.Instant(5 * time.Second)        // how often it is said that archives hold less
	keyEvery    = moldcast.Instant(10 * time.Second)       // how often it is said that some do not authenticate
	gateFirst   = moldcast.Instant(5 * time.Second)        // when what the gate waits for is said again: twice as late each time,
	gateLast    = moldcast.Instant(time.Minute)            // up to so often
)

// Quorum is at most 100 ms old while Run runs, and exact once it has returned;
// it may be asked at any time. It is zero without a Quorum.
func (p *Publisher) Quorum() QuorumStatus {
	if st := p.quorum.Load(); st != nil {
		return *st
	}
	return QuorumStatus{}
}

// acknowledged takes the acknowledgements that have come in.
func (r *publishing) acknowledged(now moldcast.Instant) error {
	if r.acks == nil {
		return nil
	}
	if err := r.acks.Err(); err != nil {
		return fmt.Errorf("receiving acknowledgements: %w", err)
	}
	for range BatchSize * 8 { // a storm must not stop the stream
		d := r.acks.Ring().Pop()
		if d == nil {
			break
		}
		lowered := r.cfg.Quorum.Stats().Lowered
		if v := r.cfg.Quorum.Offer(now, d.Src.Addr(), d.Data, r.sender); v != moldcast.AckTaken {
			r.cfg.Log.Debug("acknowledgement not taken", "from", d.Src, "why", v)
			if v == moldcast.AckUnauthentic && now >= r.keyAlarm {
				r.keyAlarm = now + keyEvery
				r.cfg.Log.Warn("acknowledgements that do not authenticate (another --ack-key?)", "from", d.Src, "so_far", r.cfg.Quorum.Stats().Verdicts[v])
			}
		} else if r.cfg.Quorum.Stats().Lowered != lowered && now >= r.lowAlarm {
			r.lowAlarm = now + lowEvery
			r.cfg.Log.Warn("an archive holds less than it did; it counts for no more", "from", d.Src, "quorum_seq", r.cfg.Quorum.Seq(r.sender.Sent()))
		}
	}
	if now >= r.nextStatus {
		r.nextStatus = now + quorumEvery
		r.quorumStatus(now)
	}
	return nil
}

func (r *publishing) quorumStatus(now moldcast.Instant) QuorumStatus {
	q := r.cfg.Quorum
	st := &QuorumStatus{K: q.K(), Seq: q.Seq(r.sender.Sent()), Sent: r.sender.Sent(), Waiting: r.waiting, At: now, Archives: q.Archives(now, nil), Stats: q.Stats()}
	r.quorum.Store(st)
	return *st
}

// gated reports whether End of Session has to wait: the quorum does not hold
// all that was sent. It says so now and then.
func (r *publishing) gated(now moldcast.Instant) bool {
	if !r.cfg.Gate {
		return false
	}
	sent := r.sender.Sent()
	r.waiting = r.cfg.Quorum.Seq(sent) < sent
	if !r.waiting {
		return false
	}
	if now >= r.gate.next {
		r.gate.next = now + quorumEvery
		r.gate.look(now, r.quorumStatus(now), r.sender.Config().First, r.sender.Kept().First)
	}
	if now >= r.gateAlarm {
		r.gatePause = min(max(gateFirst, 2*r.gatePause), gateLast)
		r.gateAlarm = now + r.gatePause
		st := r.quorumStatus(now)
		whole := 0
		for _, a := range st.Archives {
			if a.State == moldcast.ArchiveWhole {
				whole++
			}
		}
		r.cfg.Log.Info("End of Session waits for the quorum", "quorum", st.K, "archives_complete", st.Complete(), "archives_whole", whole, "archives_seen", len(st.Archives),
			"quorum_seq", st.Seq, "sent_seq", sent, "lag_messages", sent-st.Seq)
		if len(r.gate.lost) > 0 {
			attrs := []any{"ring_from", r.sender.Kept().First, "archives_beyond", strings.Join(r.gate.lost, ", ")}
			if r.gate.hopeless && r.cfg.GateTimeout > 0 {
				attrs = append(attrs, "gives_up_in", (r.cfg.GateTimeout - time.Duration(now-r.gate.since)).Round(time.Second))
			}
			r.cfg.Log.Warn("what archives miss has left the ring; repair them from another archive: capture --recovery, --rerequest, or repair --from", attrs...)
		}
	}
	return true
}

// gateWatch sees whether what the gate waits for can come about.
type gateWatch struct {
	next     moldcast.Instant // when to look again
	lost     []string         // archives, and from where on what they miss has left the ring
	hopeless bool             // too many of them
	held     uint64           // messages, by all archives
	since    moldcast.Instant // when that changed, or it became hopeless
}

// look takes note of where archives are. first is that of the session, ring what
// requests are answered from.
func (g *gateWatch) look(now moldcast.Instant, st QuorumStatus, first, ring moldcast.Seq) {
	g.lost = g.lost[:0]
	held, can := uint64(0), max(0, st.K-len(st.Archives)) // of others nothing is known
	for _, a := range st.Archives {
		held += a.Held.Len()
		misses := a.Held.Next
		if a.State == moldcast.ArchiveLate {
			misses = first
		}
		switch {
		case a.State == moldcast.ArchiveOther:
		case misses >= ring || a.State == moldcast.ArchiveUnproven:
			can++
		default:
			g.lost = append(g.lost, fmt.Sprintf("%v from %d", a.Addr, misses))
		}
	}
	was := g.hopeless
	if g.hopeless = can < st.K; g.hopeless && (!was || held != g.held) {
		g.since = now
	}
	g.held = held
}

// expired reports whether it has been hopeless for so long without an archive
// that gets further.
func (g *gateWatch) expired(now moldcast.Instant, limit time.Duration) bool {
	return limit > 0 && g.hopeless && now-g.since >= moldcast.Instant(limit)
}
