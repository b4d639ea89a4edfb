package gap

import "time"

// fit estimates how many messages an answer carries, in 1/256 of a message:
// ask is what to ask for, mean the mean of those answers that were cut short,
// each of which shows how much fitted there. An answer a little short costs
// another request, a request a little short costs less: so ask falls at once
// to what fitted, and rises fast only up to the mean. Beyond that it rises the
// faster the longer no answer was cut short, so that it forgets what was true
// of other messages.
type fit struct {
	ask, mean uint64
	full      uint // answers since one was cut short
}

const fitOne = 256

// messages is how many to ask for; 0 when nothing is known.
func (f *fit) messages() uint64 { return f.ask / fitOne }

// learn takes an answer that carried got of asked messages. limit is the
// estimate that kept the request from asking for more, 0 if none did.
func (f *fit) learn(got, asked, limit uint64) {
	got *= fitOne
	asked *= fitOne
	limit *= fitOne
	switch {
	case got < asked && f.ask == 0:
		*f = fit{ask: got, mean: got}
	case got < asked:
		f.full = 0
		f.mean = f.mean - f.mean/8 + got/8
		if got < f.ask {
			got = max(got, f.ask/2)
		}
		f.ask = got
	case f.ask == 0 || limit == 0 || limit+fitOne <= f.ask:
		// It says nothing about more.
	case f.ask < f.mean/10*9:
		f.ask += f.ask / 8
	default:
		f.full++
		f.ask += min(max(f.ask/256, 1)<<min(f.full/16, 5), f.ask/8)
	}
	f.ask = min(f.ask, maxRequest*fitOne)
}

// roundTrip takes a sample from an answer for p. After a retry it is not sure
// which request was answered: one that comes too soon for the last is taken
// for the answer to the one before it.
func (m *Machine) roundTrip(now Instant, server int, p *piece) {
	d := time.Duration(now - p.asked)
	s := &m.servers[server]
	if p.tries > 1 && (server != int(p.server) || s.rtt == 0 || d < s.rtt/2) {
		d = time.Duration(now - p.prev)
	}
	s.sample(min(max(d, 1), m.c.RetryMax))
}

// retryWait is how long the answer to the try-th request is waited for.
func (m *Machine) retryWait(server, try int) time.Duration {
	return m.backoff(max(m.c.RetryMin, 4*m.servers[server].rtt), m.c.RetryMax, try-1)
}

func (m *Machine) slowWait(l *loss) time.Duration {
	return m.backoff(m.c.SlowMin, m.c.SlowMax, int(l.slowTries))
}

// backoff is d doubled n times, times 0.5 to 1.5, at most most. Doubling ends
// at two thirds of most, so that the jitter remains.
func (m *Machine) backoff(d, most time.Duration, n int) time.Duration {
	limit := max(min(d, most), most*2/3)
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	d = min(d, limit)
	return min(most, d/2+time.Duration(m.rand.Next()%uint64(d+1)))
}

// Random is SplitMix64, begun at a seed: good enough for jitter, and the same
// each time.
type Random uint64

// Next is the next number.
func (r *Random) Next() uint64 {
	*r += 0x9E3779B97F4A7C15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
