package cli

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/retransmit"
)

// streamFlags are those of a recovery stream that is served.
type streamFlags struct {
	listen  string
	readers int
}

const maxReaders = 65536

func (f *streamFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.listen, "recovery-listen", "", "serve recovery streams (SoupBinTCP) of all that is archived on this TCP `HOST:PORT`")
	c.Flags().IntVar(&f.readers, "recovery-readers", 1024, "most readers of recovery streams at once, `N`")
}

func (f *streamFlags) check() error {
	if f.readers < 1 || f.readers > maxReaders {
		return usagef("--recovery-readers %d: want 1..%d", f.readers, maxReaders)
	}
	if f.listen == "" {
		return nil
	}
	return parseHostPort("--recovery-listen", f.listen)
}

// server listens; nil without the flag.
func (f *streamFlags) server(k *recordings, allow []netip.Prefix, log *slog.Logger) (*retransmit.StreamServer, error) {
	if f.listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, fmt.Errorf("--recovery-listen: %w", err)
	}
	s, err := retransmit.NewStream(retransmit.StreamConfig{Listener: l, Recordings: k, Allow: allow, Readers: f.readers, Log: log})
	if err != nil {
		l.Close()
		return nil, err
	}
	return s, nil
}
