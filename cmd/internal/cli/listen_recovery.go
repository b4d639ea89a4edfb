package cli

import (
	"context"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/moldcast/rejoin"
)

// recoverFlags are those of listen that say where it begins, and what brings it
// there.
type recoverFlags struct {
	servers   []string
	threshold uint64
	budget    time.Duration
	start     string
	fromSeq   string
	session   string
	bytes     int64
	messages  uint64
}

func newRecoverFlags() recoverFlags {
	return recoverFlags{budget: rejoin.DefaultBudget, bytes: moldcast.DefaultBufferBytes}
}

func (f *recoverFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringArrayVar(&f.servers, "recovery", nil, "recovery stream of a capture or an archive, `HOST:PORT` (repeat for more): long gaps are fetched from it")
	fl.Uint64Var(&f.threshold, "recovery-threshold", rejoin.DefaultThreshold, "fetch gaps of more than `N` messages from --recovery; without --rerequest every gap is")
	fl.Var(config.Duration{P: &f.budget}, "recovery-budget", "how long --recovery may bring nothing that is missing before it is left to requests, or lost")
	fl.StringVar(&f.start, "start", "", "where the session begins, `beginning|live` (default beginning with --recovery, else live)")
	fl.StringVar(&f.fromSeq, "from-seq", "", "begin at sequence `N`")
	fl.StringVar(&f.session, "session", "", "session to receive, `NAME` (default: the first that is heard)")
	fl.Var(config.Size{P: &f.bytes}, "buffer-bytes", "most of what is held until what is missing before it has come, at least 64KiB")
	fl.Uint64Var(&f.messages, "buffer-messages", 0, "most messages of that, `N`; 0 is no bound")
}

// apply sets what the flags say. names are of the request servers.
func (f *recoverFlags) apply(cfg *mcast.SubscriberConfig, budget time.Duration) error {
	r := &cfg.Receiver
	switch f.start {
	case "", "beginning", "live":
	default:
		return usagef("--start %q: want beginning or live", f.start)
	}
	switch {
	case f.fromSeq != "":
		if f.start != "" {
			return usagef("--from-seq and --start exclude each other")
		}
		q, err := parseSeq("--from-seq", f.fromSeq)
		if err != nil {
			return err
		}
		r.From = q
	case f.start == "beginning" || f.start == "" && len(f.servers) > 0:
		r.From = 1
	}
	if f.session != "" {
		s, err := moldcast.ParseSession(f.session)
		if err != nil {
			return usagef("--session: %v", err)
		}
		r.Session = &s
	}
	if f.bytes < 64<<10 || f.bytes > 1<<40 {
		return usagef("--buffer-bytes %d: want 64KiB..1TiB", f.bytes)
	}
	r.BufferBytes, r.BufferMessages = int(f.bytes), f.messages
	if len(f.servers) == 0 {
		return nil
	}
	for _, s := range f.servers {
		if err := config.PeerAddr(s); err != nil {
			return usagef("--recovery %v", err)
		}
	}
	switch {
	case f.threshold < 1:
		return usagef("--recovery-threshold %d: want at least 1 message", f.threshold)
	case f.budget <= 0:
		return usagef("--recovery-budget %v: want more than 0", f.budget)
	}
	c := rejoin.Config{Servers: len(f.servers), Budget: f.budget, Seed: uint64(time.Now().UnixNano())}
	if len(cfg.Servers) > 0 || cfg.SourcePort != 0 {
		c.Threshold, c.Requests = f.threshold, budget
	}
	if err := c.Validate(); err != nil {
		return usagef("--recovery: %v", err)
	}
	cfg.Recovery = &mcast.RecoveryConfig{Config: c, Names: f.servers, Dial: func(ctx context.Context, i int) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, "tcp", f.servers[i])
	}}
	return nil
}
