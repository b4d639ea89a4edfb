package cli

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/credentials"
	"github.com/moldtape/moldtape/retransmit"
)

// addStreams adds the flags of recovery streams that are served.
func addStreams(fs *pflag.FlagSet, s *config.Streams) {
	for _, x := range s.Fields() {
		fs.Var(x.Value, x.Flag, x.Usage)
	}
}

// checkStreams checks them.
func checkStreams(s *config.Streams) error {
	if ps := s.ValidateAlone(); len(ps) > 0 {
		return usagef("%s", ps[0].AsFlags())
	}
	if s.Listen == "" {
		return nil
	}
	return parseHostPort("--recovery-listen", s.Listen)
}

// serveStreams listens; nil without an address.
func serveStreams(s config.Streams, k *recordings, allow []netip.Prefix, log *slog.Logger) (*retransmit.StreamServer, error) {
	if s.Listen == "" {
		return nil, nil
	}
	cfg := retransmit.StreamConfig{Recordings: k, Allow: allow, Readers: s.Readers, Reads: s.Reads, Cache: s.Cache, Stall: s.Stall, Log: log}
	if s.Users != "" {
		users, err := credentials.ReadUsers(s.Users)
		if err != nil {
			return nil, usagef("--recovery-users: %v", err)
		}
		cfg.Authorise = users.Allowed
	}
	var err error
	if cfg.TLS, err = credentials.ServerTLS(s.TLSCert, s.TLSKey); err != nil {
		return nil, usagef("--recovery-tls-cert: %v", err)
	}
	if cfg.Authorise != nil && cfg.TLS == nil {
		log.Warn("users and passwords of recovery streams are sent as they are: whoever listens on the network reads them", "help", "--recovery-tls-cert")
	}
	l, err := listenTCP(s.Listen)
	if err != nil {
		return nil, fmt.Errorf("--recovery-listen: %w", err)
	}
	cfg.Listener = l
	srv, err := retransmit.NewStream(cfg)
	if err != nil {
		l.Close()
		return nil, err
	}
	return srv, nil
}
