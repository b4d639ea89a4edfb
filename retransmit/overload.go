package retransmit

import (
	"net/netip"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

const (
	// crowdSize bounds the requests that were read and wait for their turn.
	crowdSize = 4096

	// crowdReads is how many batches at most are read before the next is
	// answered. To read one costs a tenth of answering it, so that under a
	// flood the socket's buffer, which is fair to nobody, hardly fills.
	crowdReads = 16
)

// staged is a request that waits for its turn. One byte more than a request
// has, so that what is longer is seen to be longer.
type staged struct {
	from netip.AddrPort
	n    uint8
	raw  [moldcast.RequestSize + 1]byte
}

func requestRoom() []mcast.Datagram {
	ds := make([]mcast.Datagram, mcast.BatchSize)
	room := make([]byte, len(ds)*recvSize)
	for i := range ds {
		ds[i].Data = room[i*recvSize : (i+1)*recvSize : (i+1)*recvSize]
	}
	return ds
}

// serve answers what arrives until the socket fails or is closed. While less
// than a batch waits at a time it is answered as it comes. When more does, all
// of it is read, and clients have their turn.
func (s *Server) serve() error {
	for {
		n, err := s.cfg.Conn.ReadBatch(s.in)
		if err != nil {
			return err
		}
		if n < len(s.in) {
			s.batch(s.in[:n])
			continue
		}
		s.stage(s.in)
		for s.crowd.len() > 0 {
			if err := s.gather(); err != nil {
				s.requests.Add(uint64(s.crowd.len()))
				s.unanswered[Stopped].Add(uint64(s.crowd.len()))
				return err
			}
			s.batch(s.nextTurn())
		}
	}
}

// gather reads what waits.
func (s *Server) gather() error {
	for range crowdReads {
		n, err := s.cfg.Conn.TryReadBatch(s.in)
		if err != nil {
			return err
		}
		s.stage(s.in[:n])
		if n < len(s.in) {
			return nil
		}
	}
	return nil
}

// stage lets requests wait for their turn.
func (s *Server) stage(in []mcast.Datagram) {
	now := s.cfg.Clock.Now()
	for i := range in {
		x := staged{from: in[i].Src}
		x.n = uint8(copy(x.raw[:], in[i].Data))
		if d, drop := s.crowd.put(x.from.Addr(), x); drop {
			s.requests.Add(1)
			s.unanswered[Overload].Add(1)
			s.overlooked(now, &d)
		}
	}
}

// nextTurn takes a batch of those that wait.
func (s *Server) nextTurn() []mcast.Datagram {
	n := 0
	for n < len(s.turn) {
		x, ok := s.crowd.pop()
		if !ok {
			break
		}
		s.turn[n].Src, s.turn[n].Data = x.from, append(s.turn[n].Data[:0], x.raw[:x.n]...)
		n++
	}
	return s.turn[:n]
}

// overlooked takes note with its client of a request that nobody looked at.
func (s *Server) overlooked(now moldcast.Instant, x *staged) {
	r, _ := moldcast.ParseRequest(x.raw[:x.n]) // the zero Request where it is none
	s.admit.Lock()
	s.admit.census.asked(now, x.from.Addr(), r).Refused[Overload]++
	s.admit.Unlock()
}
