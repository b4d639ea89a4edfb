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
	block   any // what must be read first, as the view names it
}

func (j *job) key() pending { return pending{j.from, j.request} }

// pending tells requests apart.
type pending struct {
	from    netip.AddrPort
	request moldcast.Request
}

// pool is the bounded queue of cold reads. Clients have their turn one after
// another. Of the requests that need the same block one is at a worker; the
// others wait for its read, and keep no worker. It knows which requests wait
// or are being read, so that retries do not pile up behind a slow disk.
type pool struct {
	size  int
	share int // most of one client

	mu struct {
		sync.Mutex
		work    sync.Cond // there is some, or the pool is stopped
		queue   *fair[job]
		reading map[any][]job // blocks that are being read, and who waits for them
		waiting int           // in reading
		pending map[pending]struct{}
		clients map[netip.Addr]int
		stopped bool
	}
}

func newPool(size int) *pool {
	p := &pool{size: size, share: size / 4}
	p.mu.work.L = &p.mu.Mutex
	p.mu.queue = newFair[job](size)
	p.mu.reading = make(map[any][]job)
	p.mu.pending = make(map[pending]struct{})
	p.mu.clients = make(map[netip.Addr]int)
	return p
}

// put queues j, or says why not; isCold when it is queued. dropped is whose
// place it took, if anybody's. It never waits.
func (p *pool) put(j job) (why Reason, dropped *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.stopped {
		return Stopped, nil
	}
	if _, ok := p.mu.pending[j.key()]; ok {
		return Repeated, nil
	}
	host := j.from.Addr()
	if p.mu.clients[host] >= p.share {
		return ColdFull, nil
	}
	_, reading := p.mu.reading[j.block]
	if p.mu.queue.len()+p.mu.waiting >= p.size {
		d, ok := p.mu.queue.dropFor(host)
		if !ok {
			return ColdFull, nil
		}
		p.forgetLocked(&d)
		dropped = &d
	}
	p.mu.pending[j.key()] = struct{}{}
	p.mu.clients[host]++
	if reading {
		p.waitLocked(j)
	} else {
		p.mu.queue.put(host, j)
		p.mu.work.Signal()
	}
	return isCold, dropped
}

func (p *pool) waitLocked(j job) {
	p.mu.reading[j.block] = append(p.mu.reading[j.block], j)
	p.mu.waiting++
}

// next is a job whose block nobody reads; false: the pool is stopped. end must
// follow.
func (p *pool) next() (job, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !p.mu.stopped && p.mu.queue.len() == 0 {
			p.mu.work.Wait()
		}
		j, ok := p.mu.queue.pop()
		if !ok || p.mu.stopped {
			return j, ok // of a stopped pool what is left
		}
		if _, reading := p.mu.reading[j.block]; !reading {
			p.mu.reading[j.block] = nil
			return j, true
		}
		p.waitLocked(j)
	}
}

// end says that the read for a block is over, and gives those that waited.
func (p *pool) end(block any) []job {
	p.mu.Lock()
	defer p.mu.Unlock()
	waited := p.mu.reading[block]
	delete(p.mu.reading, block)
	p.mu.waiting -= len(waited)
	return waited
}

// again queues a job that is pending, and turned out to need another block.
// False: the pool is stopped, or full by now.
func (p *pool) again(j job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.stopped || p.mu.queue.len()+p.mu.waiting >= p.size {
		return false
	}
	p.mu.queue.put(j.from.Addr(), j)
	p.mu.work.Signal()
	return true
}

func (p *pool) done(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(j)
}

func (p *pool) forgetLocked(j *job) {
	delete(p.mu.pending, j.key())
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
	p.mu.work.Broadcast()
}

func (p *pool) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stopped
}

// work answers cold requests until the pool stops.
func (s *Server) work() {
	out := make([]mcast.Datagram, 1)
	out[0].Data = make([]byte, 0, s.payload)
	for {
		j, ok := s.cold.next()
		if !ok {
			return
		}
		failed := false
		if s.cold.isStopped() {
			s.refuse(&j, Stopped)
		} else {
			failed = s.answerCold(&j, out) == ReadFailed
		}
		s.cold.done(&j)
		for _, w := range s.cold.end(j.block) {
			s.afterRead(&w, failed, out)
		}
	}
}

// afterRead answers who waited for a block that another has had read, or has
// not, since it cannot be read.
func (s *Server) afterRead(j *job, failed bool, out []mcast.Datagram) {
	if s.cold.isStopped() {
		s.refuse(j, Stopped)
		s.cold.done(j)
		return
	}
	block := j.block
	why := s.tryCold(j, false, out)
	switch {
	case why != isCold:
	case failed && j.block == block:
		s.refuse(j, ReadFailed)
	case s.cold.again(*j):
		return
	case s.cold.isStopped():
		s.refuse(j, Stopped)
	default:
		s.refuse(j, ColdFull)
	}
	s.cold.done(j)
}

func (s *Server) answerCold(j *job, out []mcast.Datagram) Reason { return s.tryCold(j, true, out) }

// tryCold answers j, reading from disk where it may. isCold: it must, and j
// says what.
func (s *Server) tryCold(j *job, read bool, out []mcast.Datagram) Reason {
	data, sent, why, err := answer(out[0].Data, j.view, j.request.Session, j.asked, s.payload, read)
	out[0].Data, out[0].Dst = data, j.from
	now := s.cfg.Clock.Now()
	switch {
	case why == noReason:
		s.answering(now, j.from, j.request, sent.Next, len(data))
		s.coldAnswered.Add(uint64(s.send(out, int(sent.Len()))))
		return why
	case why == isCold && !read:
		j.block = j.view.Block(sent.Next)
		return why
	case why == isCold: // asked not to
		why, err = ReadFailed, ErrCold
	}
	if why == ReadFailed {
		s.readFailed(now, j.request, err)
	}
	s.refuse(j, why)
	return why
}

// refuse counts that a cold request has no answer.
func (s *Server) refuse(j *job, why Reason) {
	s.unanswered[why].Add(1)
	s.refused(j.from, why)
}
