package retransmit

import (
	"net/netip"
	"sync"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// job is a request whose answer is on disk.
type job struct {
	from    netip.AddrPort
	request moldcast.Request
	asked   moldcast.Range
	view    View
}

// pending tells requests apart.
type pending struct {
	from    netip.AddrPort
	request moldcast.Request
}

// pool is the bounded queue of cold reads. It knows which requests wait or are
// being read, so that retries do not pile up behind a slow disk.
type pool struct {
	queue chan job
	share int // most of one client

	mu struct {
		sync.Mutex
		pending map[pending]struct{}
		clients map[netip.Addr]int
		stopped bool
	}
}

func newPool(size int) *pool {
	p := &pool{queue: make(chan job, size), share: size / 4}
	p.mu.pending = make(map[pending]struct{})
	p.mu.clients = make(map[netip.Addr]int)
	return p
}

// put queues j, or says why not; isCold when it is queued. It never waits.
func (p *pool) put(j job) Reason {
	key := pending{j.from, j.request}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.stopped {
		return Stopped
	}
	if _, ok := p.mu.pending[key]; ok {
		return Repeated
	}
	if p.mu.clients[j.from.Addr()] >= p.share {
		return ColdFull
	}
	select {
	case p.queue <- j:
	default:
		return ColdFull
	}
	p.mu.pending[key] = struct{}{}
	p.mu.clients[j.from.Addr()]++
	return isCold
}

func (p *pool) done(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.pending, pending{j.from, j.request})
	if n := p.mu.clients[j.from.Addr()]; n > 1 {
		p.mu.clients[j.from.Addr()] = n - 1
	} else {
		delete(p.mu.clients, j.from.Addr())
	}
}

func (p *pool) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.pending)
}

// stop ends the queue: workers drop what is in it.
func (p *pool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stopped = true
	close(p.queue)
}

func (p *pool) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stopped
}

// work answers cold requests until the queue ends.
func (s *Server) work() {
	out := make([]mcast.Datagram, 1)
	out[0].Data = make([]byte, 0, s.payload)
	for j := range s.cold.queue {
		if s.cold.isStopped() {
			s.unanswered[Stopped].Add(1)
		} else {
			s.answerCold(j, out)
		}
		s.cold.done(j)
	}
}

func (s *Server) answerCold(j job, out []mcast.Datagram) {
	data, sent, why, err := answer(out[0].Data, j.view, j.request.Session, j.asked, s.payload, true)
	out[0].Data, out[0].Dst = data, j.from
	now := s.cfg.Clock.Now()
	switch why {
	case noReason:
		s.admit.Lock()
		s.admit.Answered(now, j.from, j.request, len(data))
		s.admit.Unlock()
		s.coldAnswered.Add(uint64(s.send(out, int(sent.Len()))))
		return
	case isCold: // asked not to
		why, err = ReadFailed, ErrCold
	}
	if why == ReadFailed {
		s.readFailed(now, j.request, err)
	}
	s.unanswered[why].Add(1)
}
