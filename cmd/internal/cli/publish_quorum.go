package cli

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// quorumFlags are those of publish that archives acknowledge to.
type quorumFlags struct {
	k      int
	listen string
	allow  []string
	key    string
	gate   bool
	limit  time.Duration
}

// gateTimeout is the default of --gate-timeout.
const gateTimeout = 10 * time.Minute

func (f *quorumFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.IntVar(&f.k, "quorum", 0, "say up to where `K` archives hold the session durably (capture --ack), with --ack-listen")
	fl.StringVar(&f.listen, "ack-listen", "", "take the acknowledgements of archives on `ADDR`")
	fl.StringArrayVar(&f.allow, "ack-allow", nil, "take acknowledgements only from this `CIDR` (may repeat; default loopback, private, shared and link-local addresses)")
	fl.StringVar(&f.key, "ack-key", "", "take only acknowledgements made with the key in `FILE`, as capture --ack-key")
	fl.BoolVar(&f.gate, "gate", false, "publish End of Session only when the quorum holds everything durably")
	f.limit = gateTimeout
	fl.Var(config.Duration{P: &f.limit}, "gate-timeout", "give up (exit 1) after `DUR` in which no archive gets further, once too many miss what has left the ring (0: never)")
}

// config checks the flags, and opens the socket, where a quorum is wanted.
func (f *quorumFlags) config(e *env, s moldcast.SenderConfig, cfg *mcast.PublisherConfig) error {
	switch {
	case f.k == 0 && f.listen == "":
		switch {
		case f.gate:
			return usagef("--gate goes with --quorum K and --ack-listen ADDR")
		case f.limit != gateTimeout:
			return usagef("--gate-timeout goes with --gate")
		case len(f.allow) > 0 || f.key != "":
			return usagef("--ack-allow and --ack-key go with --quorum K and --ack-listen ADDR")
		}
		return nil
	case f.k < 1 || f.k > moldcast.DefaultArchives:
		return usagef("--quorum %d: want 1..%d archives", f.k, moldcast.DefaultArchives)
	case f.listen == "":
		return usagef("--quorum goes with --ack-listen ADDR, where archives acknowledge")
	}
	at, err := requestAddr("--ack-listen", f.listen)
	if err != nil {
		return err
	}
	if f.limit != gateTimeout && !f.gate {
		return usagef("--gate-timeout goes with --gate")
	}
	q := moldcast.QuorumConfig{Session: s.Session, First: s.First, K: f.k}
	if q.Allow, err = config.ParseAllow(f.allow); err != nil {
		return usagef("--ack-allow %v", err)
	}
	if q.Allow == nil {
		q.Allow = admit.DefaultAllow()
	}
	if q.Key, err = config.ReadAckKey(f.key); err != nil {
		return usagef("--ack-key %v", err)
	}
	if cfg.Quorum, err = moldcast.NewQuorum(q); err != nil {
		return err
	}
	cfg.Gate, cfg.GateTimeout = f.gate, f.limit
	sock, err := mcast.Listen(mcast.ListenConfig{Addr: at, MaxDatagram: moldcast.AckSize, Log: e.log})
	if err != nil {
		return socketError("--ack-listen", err)
	}
	cfg.Acks = sock
	return nil
}

// publishSummary is `publish --json`.
type publishSummary struct {
	Session    moldcast.Session `json:"session"`
	NextSeq    moldcast.Seq     `json:"next_seq"` // exclusive
	Messages   uint64           `json:"messages"`
	Bytes      uint64           `json:"bytes"`
	Packets    uint64           `json:"packets"`
	Heartbeats uint64           `json:"heartbeats"`
	Elapsed    float64          `json:"elapsed_seconds"`
	Requests   uint64           `json:"requests"`
	Answered   uint64           `json:"answered"`
	NotSent    uint64           `json:"not_sent"` // by the system, and on purpose
	Ended      bool             `json:"ended"`    // End of Session was sent
	Quorum     *quorumSummary   `json:"quorum,omitempty"`
}

type quorumSummary struct {
	K          int               `json:"k"`
	QuorumSeq  moldcast.Seq      `json:"quorum_seq"` // exclusive
	Lag        uint64            `json:"lag"`        // messages
	Archives   []archiveSummary  `json:"archives"`
	Acks       map[string]uint64 `json:"acks"` // by what became of them
	Lowered    uint64            `json:"lowered"`
	Replaced   uint64            `json:"replaced"`
	Evicted    uint64            `json:"evicted"`
	KernelDrop uint64            `json:"kernel_dropped"`
}

type archiveSummary struct {
	Node       moldcast.NodeID       `json:"node"`
	Addr       netip.Addr            `json:"addr"`
	FirstSeq   moldcast.Seq          `json:"first_seq"`
	DurableSeq moldcast.Seq          `json:"durable_seq"` // exclusive
	State      moldcast.ArchiveState `json:"state"`
	Silent     bool                  `json:"silent"`
	Heard      float64               `json:"heard_seconds_ago"`
}

func newPublishSummary(s moldcast.Session, p *mcast.Publisher, acks mcast.Socket) publishSummary {
	st := p.Stats()
	out := publishSummary{
		Session: s, NextSeq: p.Sent(), Messages: st.Messages, Bytes: st.Bytes, Packets: st.Packets, Heartbeats: st.Heartbeats, Elapsed: st.Publishing.Seconds(),
		Requests: st.Requests, Answered: st.Answered, NotSent: st.Dropped + st.Impair.Lost, Ended: st.Ends > 0,
	}
	if acks == nil {
		return out
	}
	q := p.Quorum()
	sum := &quorumSummary{K: q.K, QuorumSeq: q.Seq, Lag: uint64(q.Sent - q.Seq), Archives: []archiveSummary{}, Acks: map[string]uint64{},
		Lowered: q.Stats.Lowered, Replaced: q.Stats.Replaced, Evicted: q.Stats.Evicted}
	for _, a := range q.Archives {
		sum.Archives = append(sum.Archives, archiveSummary{a.Node, a.Addr, a.Held.First, a.Held.Next, a.State, a.Silent, time.Duration(q.At - a.Heard).Seconds()})
	}
	for v := range moldcast.AckVerdicts {
		sum.Acks[v.String()] = q.Stats.Verdicts[v]
	}
	if c, ok := acks.(interface{ Counters() mcast.Counters }); ok {
		n := c.Counters()
		sum.KernelDrop = n.KernelDropped
		sum.Acks[moldcast.AckMalformed.String()] += n.Truncated
	}
	out.Quorum = sum
	return out
}

// quorumProgress is a line on a terminal about how far the quorum is.
func (e *env) quorumProgress(p *mcast.Publisher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.statusLine(ctx, func() string { return quorumLine(p.Quorum()) })
	}()
	return func() { cancel(); <-done }
}

func quorumLine(q mcast.QuorumStatus) string {
	whole, silent := 0, 0
	for _, a := range q.Archives {
		if a.State == moldcast.ArchiveWhole {
			whole++
		}
		if a.Silent {
			silent++
		}
	}
	s := fmt.Sprintf("sent %s  quorum of %d at %s, %s behind  %s seen, %d whole",
		humanize.Comma(int64(q.Sent)), q.K, humanize.Comma(int64(q.Seq)), humanize.Comma(int64(q.Sent-q.Seq)), count(len(q.Archives), "archive"), whole)
	if silent > 0 {
		s += fmt.Sprintf(", %d silent", silent)
	}
	if q.Waiting {
		s += "  End of Session waits"
	}
	return s
}
