package cli

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/retransmit"
)

// servers are those that serve an archive, of capture and of retransmit.
type servers struct {
	requests []*retransmit.Server
	streams  []*retransmit.StreamServer
}

// httpConfig is c with what they tell over HTTP.
func (s *servers) httpConfig(c httpd.Config) httpd.Config {
	if len(s.requests) > 0 {
		c.Requests, c.Clients = s.requestStats, s.clients
	}
	if len(s.streams) > 0 {
		c.Streams, c.Readers = s.streamStats, s.readers
	}
	return c
}

// requestStats is the sum over the request servers.
func (s *servers) requestStats() (sum retransmit.Stats) {
	for _, srv := range s.requests {
		sum.Add(srv.Stats())
	}
	return sum
}

// clients are those who ask the request servers.
func (s *servers) clients(most int) (list []httpd.Clients) {
	for _, srv := range s.requests {
		top, forgotten := srv.Clients(most)
		list = append(list, httpd.Clients{Server: srv.Addr().String(), Clients: top, Forgotten: forgotten})
	}
	return list
}

// streamStats is the sum over the servers of recovery streams.
func (s *servers) streamStats() (sum retransmit.StreamStats) {
	for _, srv := range s.streams {
		sum.Add(srv.Stats())
	}
	return sum
}

// readers are those of all servers of recovery streams.
func (s *servers) readers() (all []retransmit.ReaderInfo) {
	for _, srv := range s.streams {
		all = append(all, srv.Readers()...)
	}
	return all
}

// listenTCP listens on host:port: where the host is an address, on those of its
// family alone, so that 0.0.0.0 is not [::] too.
func listenTCP(addr string) (net.Listener, error) {
	network := "tcp"
	if host, _, err := net.SplitHostPort(addr); err == nil {
		switch ip, err := netip.ParseAddr(host); {
		case err != nil:
		case ip.Is4():
			network = "tcp4"
		case !ip.Is4In6():
			network = "tcp6"
		}
	}
	return net.Listen(network, addr)
}

// readByAll warns of the address of a node's HTTP.
const readByAll = "status and metrics are served to whoever reaches this address"

// listenHTTP opens --http; nil where it is not given. The warning is said of an
// address that others reach.
func (e *env) listenHTTP(addr, warning string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := listenTCP(addr)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	if t, ok := l.Addr().(*net.TCPAddr); ok && !t.IP.IsLoopback() {
		e.log.Warn(warning+": there is no authentication", "http", l.Addr().String())
	}
	return l, nil
}
