package retransmit

import (
	"net/netip"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// Duty is what a Server answers.
type Duty uint8

// The duties.
const (
	Always       Duty = iota // everything it has
	BeyondWindow             // what the sender does not answer itself, as far as is known
)

// Windows tells what senders still answer themselves.
type Windows interface {
	// Window is how many of the newest messages of a session its sender surely
	// still serves, as was seen within the last seconds; 0: that is not known.
	// It must not wait.
	Window(s moldcast.Session) uint64
}

const (
	// dutyMemory is how many requests are remembered that were left to the
	// sender, and dutyTime for how long. One that comes again meanwhile was not
	// answered by the sender, and is.
	dutyMemory = 4096
	dutyTime   = moldcast.Instant(2 * time.Second)
)

// duty decides which requests are left to the sender: those for what it surely
// still serves, the first time. Where nothing is known all are answered:
// to lose silence costs a packet, to lose an answer a client its messages. It
// is pure, and has one owner.
type duty struct {
	left [dutyMemory]leftRequest // by hash
}

type leftRequest struct {
	from    netip.AddrPort
	session moldcast.Session
	first   moldcast.Seq
	at      moldcast.Instant
}

// leave reports whether a request is left to the sender, which serves the newest
// window messages before head.
func (d *duty) leave(now moldcast.Instant, from netip.AddrPort, r moldcast.Request, head moldcast.Seq, window uint64) bool {
	if r.First >= head || uint64(head-r.First) > window {
		return false
	}
	x := leftRequest{from, r.Session, r.First, now}
	e := &d.left[x.slot()]
	again := e.from == from && e.session == r.Session && e.first == r.First && now-e.at < dutyTime
	if again {
		*e = leftRequest{}
		return false
	}
	if e.from.IsValid() && now-e.at < dutyTime {
		// Another's place is not taken: it counts on being known when it comes
		// again. This one is answered.
		return false
	}
	*e = x
	return true
}

func (x *leftRequest) slot() uint64 {
	h := uint64(x.first)*0x9E3779B97F4A7C15 ^ uint64(x.from.Port())<<32
	a := x.from.Addr().As16()
	for _, b := range a[12:] {
		h = (h ^ uint64(b)) * 0x100000001B3
	}
	return (h ^ h>>29) * 0xBF58476D1CE4E5B9 >> 52 % dutyMemory
}
