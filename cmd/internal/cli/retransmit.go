package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

type retransmitFlags struct {
	listen    string
	channels  []string
	mtu       int
	allow     []string
	perClient float64
	total     float64
	stream    config.Streams
	http      string
}

func newRetransmitCmd(e *env) *cobra.Command {
	var def admit.Config
	def.EnsureDefaults()
	o := retransmitFlags{perClient: def.Client.Requests, total: def.Total.Requests, stream: config.DefaultStreams()}
	c := &cobra.Command{
		Use:   "retransmit --listen ADDR | --recovery-listen ADDR",
		Short: "Answer retransmit requests (UDP) and serve recovery streams (TCP) from an archive",
		Long: `Answer MoldUDP64 requests from an archive, without a window: each with one
downstream packet to the address that asked, for any message that is held.

Sessions are served as they are on disk: of one that is being captured by
another process, what is sealed; what is sealed later within a second. A name
on the wire is its latest take; where several channels hold it, the one written
last answers.

A recovery stream (--recovery-listen, SoupBinTCP) sends a session from any
sequence on. A login names the session; with a blank name it is the one written
last, where only one channel is served.`,
		Example: "  moldtape retransmit --archive /var/lib/moldtape --listen 0.0.0.0:26477 --allow 10.20.0.0/16",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, addr, err := o.config(c)
			if err != nil {
				return err
			}
			return e.retransmit(c.Context(), o, cfg, addr)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	e.addArchive(c)
	f.StringVar(&o.listen, "listen", "", "`ADDR` (host:port) to receive requests on; port 0 asks the system for one; not needed with --recovery-listen")
	f.StringArrayVar(&o.channels, "channel", nil, "serve only the channel `NAME` (may repeat; default all)")
	f.IntVar(&o.mtu, "mtu", 1500, "largest IPv4 packet of an answer, in `BYTES`; a longer message goes alone in a larger one")
	f.StringArrayVar(&o.allow, "allow", nil, "answer only clients in this `CIDR` (may repeat; default loopback, private, shared and link-local addresses)")
	addStreams(f, &o.stream)
	f.Var(config.Rate{P: &o.perClient}, "rate-per-client", "requests a second answered to one client, 0 for no limit (clients on this machine, unless given: 200000); at once a quarter of a second's, but 64 at the least, or a second's where that is fewer")
	f.Var(config.Rate{P: &o.total}, "rate-total", "requests a second answered in all, 0 for no limit")
	f.StringVar(&o.http, "http", "", "serve /status, /metrics, /healthz and /readyz on this TCP `HOST:PORT`, to whoever reaches it: there is no authentication")
	return c
}

// config checks the flags.
func (o *retransmitFlags) config(c *cobra.Command) (retransmit.Config, netip.AddrPort, error) {
	fail := func(err error) (retransmit.Config, netip.AddrPort, error) {
		return retransmit.Config{}, netip.AddrPort{}, err
	}
	var addr netip.AddrPort
	var err error
	switch {
	case o.listen != "":
		if addr, err = requestAddr("--listen", o.listen); err != nil {
			return fail(err)
		}
	case o.stream.Listen == "":
		return fail(usagef("--listen is missing: want host:port, like 0.0.0.0:26477, or --recovery-listen"))
	}
	for _, name := range o.channels {
		if !store.ValidChannel(name) {
			return fail(usagef("--channel %q: want 1 to 64 of A-Z a-z 0-9 . _ : -", name))
		}
	}
	if o.mtu < 128 || o.mtu > 65535 {
		return fail(usagef("--mtu %d: want 128..65535", o.mtu))
	}
	if err := checkStreams(&o.stream); err != nil {
		return fail(err)
	}
	if o.http != "" {
		if err := parseHostPort("--http", o.http); err != nil {
			return fail(err)
		}
	}
	cfg := retransmit.Config{MTU: o.mtu}
	if cfg.Admit.Allow, err = config.ParseAllow(o.allow); err != nil {
		return fail(usagef("--allow %v", err))
	}
	cfg.Admit.Client, cfg.Admit.Total = config.Limit(o.perClient), config.Limit(o.total)
	if c.Flags().Changed("rate-per-client") {
		cfg.Admit.Loopback = cfg.Admit.Client
	}
	return cfg, addr, nil
}

// requestAddr resolves a unicast IPv4 address to receive requests on.
func requestAddr(flag, s string) (netip.AddrPort, error) {
	if err := parseHostPort(flag, s); err != nil {
		return netip.AddrPort{}, err
	}
	a, err := net.ResolveUDPAddr("udp4", s)
	if err != nil {
		return netip.AddrPort{}, usagef("%s %q: no IPv4 address: %v", flag, s, err)
	}
	ip, ok := netip.AddrFromSlice(a.IP.To4())
	if !ok {
		ip = netip.IPv4Unspecified()
	}
	if ip.IsMulticast() {
		return netip.AddrPort{}, usagef("%s %q: want a unicast host:port", flag, s)
	}
	return netip.AddrPortFrom(ip, uint16(a.Port)), nil
}

func (e *env) retransmit(ctx context.Context, o retransmitFlags, cfg retransmit.Config, addr netip.AddrPort) (err error) {
	archive, err := e.openArchive()
	if err != nil {
		return err
	}
	defer closeQuietly(e.log, "archive", archive.Close)
	source := NewSource(archive, o.channels, e.log)
	defer closeQuietly(e.log, "views", source.Close)
	if err := source.Refresh(); err != nil {
		return err
	}
	for _, name := range source.lacking() {
		e.log.Warn("the archive holds nothing of a channel: it is served once there is something", "channel", name, "archive", e.archiveDir())
	}
	web, err := e.listenHTTP(o.http, readByAll)
	if err != nil {
		return err
	}
	if web != nil {
		defer web.Close()
	}
	cfg.Source, cfg.Clock, cfg.Log = source, mcast.NewClock(), e.log
	cfg.EnsureDefaults()
	up := ready{Event: "ready"}
	var all servers
	socket := func() (n mcast.Counters) { return n }
	if addr.IsValid() {
		conn, err := retransmit.Listen(addr, e.log)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer conn.Close()
		cfg.Conn, socket = conn, conn.Counters
		server, err := retransmit.New(cfg)
		if err != nil {
			return err
		}
		all.requests = []*retransmit.Server{server}
		up.Retransmit = conn.LocalAddr().String()
	}
	stream, err := serveStreams(o.stream, source.recordings(), cfg.Admit.Allow, e.log)
	if err != nil {
		return err
	}
	if stream != nil {
		all.streams = []*retransmit.StreamServer{stream}
	}
	e.log.Info("serving", "archive", e.archiveDir(), "listen", up.Retransmit, "sessions", source.Sessions())
	e.log.Debug("budgets", "mtu", cfg.MTU, "allow", cfg.Admit.Allow, "rate_per_client", cfg.Admit.Client.Requests, "rate_loopback", cfg.Admit.Loopback.Requests,
		"rate_total", cfg.Admit.Total.Requests, "linger", cfg.Admit.Linger, "cold_queue", cfg.QueueCold, "workers", cfg.Workers)
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	var streamErr error
	if web != nil {
		up.HTTP = web.Addr().String()
		srv := httpd.New(all.httpConfig(httpd.Config{Served: newServedStatus(source).get, Archive: e.archiveDir(), Version: version(), Log: e.log,
			Snapshots: &httpd.Snapshots{Archive: archive, Channels: o.channels}}))
		others.Go(func() {
			if err := srv.Serve(ctx, web); err != nil {
				e.log.Error("http server stopped; requests are answered on", "err", err)
			}
		})
	}
	others.Go(func() { source.Run(ctx) })
	if stream != nil {
		up.Recovery = stream.Addr().String()
		others.Go(func() {
			streamErr = stream.Run(ctx)
			cancel()
		})
	}
	if err = e.printJSON(up); err == nil {
		if len(all.requests) > 0 {
			err = all.requests[0].Run(ctx)
		} else {
			<-ctx.Done()
		}
	}
	cancel()
	others.Wait()
	if err = errors.Join(err, streamErr); err != nil {
		return err
	}
	_, err = e.stdout.Write(stoppedRetransmit(all.requestStats(), socket(), stream))
	return err
}

// stoppedRetransmit is the event at the end: one object, event first, then
// the counters in their order.
func stoppedRetransmit(st retransmit.Stats, socket mcast.Counters, stream *retransmit.StreamServer) []byte {
	var b bytes.Buffer
	b.WriteString(`{"event":"stopped"`)
	for name, n := range st.Counters() {
		key, _ := json.Marshal(name)
		fmt.Fprintf(&b, ",%s:%d", key, n)
	}
	fmt.Fprintf(&b, ",\"kernel_dropped\":%d", socket.KernelDropped)
	if stream != nil {
		for name, n := range stream.Stats().Counters() {
			fmt.Fprintf(&b, ",%q:%d", name, n)
		}
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func closeQuietly(log *slog.Logger, what string, closer func() error) {
	if err := closer(); err != nil {
		log.Warn("closing", "what", what, "error", err)
	}
}
