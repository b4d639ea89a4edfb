package cli

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/credentials"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/moldcast/rejoin"
	"github.com/moldtape/moldtape/moldcast/soup"
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

	files         credentials.ClientFiles
	snapshot      string
	snapshotBytes int64
}

func newRecoverFlags() recoverFlags {
	return recoverFlags{budget: rejoin.DefaultBudget, bytes: moldcast.DefaultBufferBytes, snapshotBytes: rejoin.DefaultSnapshotBytes}
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
	fl.StringVar(&f.files.Login, "recovery-login", "", "log in to --recovery as `FILE` says, in one line USER:PASSWORD")
	fl.BoolVar(&f.files.TLS, "recovery-tls", false, "--recovery by TLS")
	fl.StringVar(&f.files.CA, "recovery-tls-ca", "", "the same, with servers that a certificate of this PEM `FILE` vouches for, instead of the system's")
	fl.StringVar(&f.snapshot, "snapshot", "", "begin with the newest snapshot that --recovery has (at or before --from-seq), written to `FILE`, and the messages after it")
	fl.Var(config.Size{P: &f.snapshotBytes}, "snapshot-bytes", "most of --snapshot: a larger one is not taken")
}

// apply sets what the flags say; budget is --nak-budget.
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
		if f.snapshot != "" || f.files != (credentials.ClientFiles{}) {
			return usagef("--snapshot, --recovery-login, --recovery-tls and --recovery-tls-ca need --recovery HOST:PORT")
		}
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
	client, err := f.files.Open()
	if err != nil {
		return usagef("--recovery: %v", err)
	}
	c := rejoin.Config{Servers: len(f.servers), Budget: f.budget, User: client.User, Password: client.Password, Seed: uint64(time.Now().UnixNano())}
	if len(cfg.Servers) > 0 || cfg.SourcePort != 0 {
		c.Threshold, c.Requests = f.threshold, budget
	}
	if err := f.snapshots(cfg, &c); err != nil {
		return err
	}
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return usagef("--recovery: %v", err)
	}
	cfg.Recovery = &mcast.RecoveryConfig{Config: c, Names: f.servers, Dial: func(ctx context.Context, i int) (net.Conn, error) {
		return client.Dial(ctx, f.servers[i])
	}}
	return nil
}

// snapshots sets what --snapshot says; the owner makes c.Snapshot.
func (f *recoverFlags) snapshots(cfg *mcast.SubscriberConfig, c *rejoin.Config) error {
	switch {
	case f.snapshot == "":
		return nil
	case !cfg.Receiver.Ordered:
		return usagef("--snapshot goes with --ordered")
	case f.start == "live":
		return usagef("--snapshot and --start live exclude each other")
	case !isDir(filepath.Dir(f.snapshot)) || isDir(f.snapshot):
		return usagef("--snapshot %q: want a file in a directory that exists", f.snapshot)
	case len(c.User) > soup.MaxSnapshotName:
		return usagef("--recovery-login: user %q: --snapshot wants at most %d characters", c.User, soup.MaxSnapshotName)
	case f.snapshotBytes < 1:
		return usagef("--snapshot-bytes %d: want at least 1", f.snapshotBytes)
	}
	if f.fromSeq != "" {
		c.SnapshotAt = cfg.Receiver.From
	}
	cfg.Receiver.From = 1
	c.SnapshotBytes = uint64(f.snapshotBytes)
	return nil
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// snapshotFile writes a snapshot under another name, FILE.partial, until it is
// whole.
type snapshotFile struct {
	name string
	told func(seq moldcast.Seq, bytes uint64) error // it is there
	file *os.File                                   // under another name
	seq  moldcast.Seq
	size uint64
}

func (s *snapshotFile) Begin(seq moldcast.Seq, size uint64) (err error) {
	s.drop()
	s.seq, s.size = seq, size
	s.file, err = os.Create(s.name + ".partial")
	return s.fault(err)
}

func (s *snapshotFile) Write(b []byte) error {
	_, err := s.file.Write(b)
	return s.fault(err)
}

func (s *snapshotFile) Done() error {
	err := s.file.Sync()
	if err == nil {
		err = os.Rename(s.file.Name(), s.name)
	}
	if err != nil {
		return s.fault(err)
	}
	_ = s.file.Close()
	s.file = nil
	if dir, err := os.Open(filepath.Dir(s.name)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return s.told(s.seq, s.size)
}

// drop removes what is not whole.
func (s *snapshotFile) drop() {
	if s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		s.file = nil
	}
}

func (s *snapshotFile) fault(err error) error {
	if err != nil {
		return faultf("--snapshot: %w", err)
	}
	return nil
}
