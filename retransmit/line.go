package retransmit

import (
	"sync"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// line is where reads from the archive wait their turn: first come, first
// served, so many at a time. A reader has at most one in it, for one chunk, and
// goes to its end for the next: so all advance alike. It is as long as there
// are readers, at most.
type line struct {
	clock Clock

	mu      sync.Mutex
	room    *sync.Cond
	tickets []*ticket // those that wait are [head:]
	head    int
	in, out uint64 // put, and taken out
	ended   bool
	pace    time.Duration // between two that are taken, smoothed
	taken   moldcast.Instant
	workers sync.WaitGroup
}

// ticket is one read.
type ticket struct {
	no uint64 // of those that were put
	fn func()
}

func newLine(clock Clock) *line {
	l := &line{clock: clock}
	l.room = sync.NewCond(&l.mu)
	return l
}

// start begins so many workers, which stop ends.
func (l *line) start(workers int) {
	for range workers {
		l.workers.Go(l.work)
	}
}

func (l *line) put(fn func()) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := &ticket{no: l.in, fn: fn}
	l.in++
	l.tickets = append(l.tickets, j)
	l.room.Signal()
	return j
}

// place is how many go before j, and how many wait in all; not ok: j waits no
// more.
func (l *line) place(j *ticket) (ahead, all int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.no < l.out {
		return 0, 0, false
	}
	return int(j.no - l.out), int(l.in - l.out), true
}

// eta is how long so many reads will take, as things go.
func (l *line) eta(ahead int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(ahead+1) * l.pace
}

// waiting is how many wait.
func (l *line) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.in - l.out)
}

func (l *line) work() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.head == len(l.tickets) && !l.ended {
			l.tickets, l.head = l.tickets[:0], 0
			l.room.Wait()
			l.taken = l.clock.Now()
		}
		if l.head == len(l.tickets) {
			return
		}
		j := l.tickets[l.head]
		l.tickets[l.head] = nil
		l.head++
		l.out++
		if l.head > len(l.tickets)/2 && l.head > 64 {
			n := copy(l.tickets, l.tickets[l.head:])
			clear(l.tickets[n:])
			l.tickets, l.head = l.tickets[:n], 0
		}
		now := l.clock.Now()
		l.pace += (time.Duration(now-l.taken) - l.pace) / 8
		l.taken = now
		l.mu.Unlock()
		j.fn()
		l.mu.Lock()
	}
}

// stop lets the workers end, after what is in line.
func (l *line) stop() {
	l.mu.Lock()
	l.ended = true
	l.room.Broadcast()
	l.mu.Unlock()
	l.workers.Wait()
}
