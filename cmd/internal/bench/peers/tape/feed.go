package main

import (
	"fmt"
	"math/rand/v2"
	"sort"

	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
)

// feeds are the ways messages are packed: as on Nasdaq and IEX, busier, and
// full frames.
var feeds = []string{"1.35", "4", "full"}

// poolBytes is how much is made up; then it repeats. It is many blocks.
const poolBytes = 24 << 20

// payload is most bytes of a datagram of 1500.
const payload = 1500 - 28

// feed is an endless stream of packets, known by sequence: packet after
// packet, and in the answers to requests.
type feed struct {
	bodies [][]byte       // framed messages
	first  []moldcast.Seq // of each body in the first cycle; and of the second
	cycle  moldcast.Seq   // messages in all bodies
}

func newFeed(name string) (*feed, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	want := func() int { return 1 << 16 }
	switch name {
	case "1.35":
		want = func() int {
			if rng.IntN(100) < 35 {
				return 2
			}
			return 1
		}
	case "4":
		want = func() int { return 1 + rng.IntN(7) }
	case "full":
	default:
		return nil, fmt.Errorf("feed %q: want one of %q", name, feeds)
	}
	gen := itch.NewGenerator(1<<40, 1)
	f, pool, seq := &feed{}, make([]byte, 0, poolBytes), moldcast.Seq(1)
	m, _ := gen.Next()
	for cap(pool)-len(pool) > payload {
		start, n := len(pool), 0
		for k := want(); n < k && len(pool)-start+moldcast.LengthSize+len(m) <= payload-moldcast.HeaderSize; n++ {
			pool = moldcast.AppendMessage(pool, m)
			m, _ = gen.Next()
		}
		f.bodies = append(f.bodies, pool[start:len(pool):len(pool)])
		f.first = append(f.first, seq)
		seq += moldcast.Seq(n)
	}
	f.first = append(f.first, seq)
	f.cycle = seq - 1
	return f, nil
}

// packet is the n-th of the stream.
func (f *feed) packet(n int) (first moldcast.Seq, count uint16, body []byte) {
	i := n % len(f.bodies)
	return f.first[i] + f.cycle*moldcast.Seq(n/len(f.bodies)), uint16(f.first[i+1] - f.first[i]), f.bodies[i]
}

// answer appends one packet of as many messages of r as fit.
func (f *feed) answer(dst []byte, s moldcast.Session, r moldcast.Range) []byte {
	at := (r.First - 1) % f.cycle
	i := sort.Search(len(f.bodies), func(i int) bool { return f.first[i+1] > at+1 })
	skip := int(at + 1 - f.first[i])
	dst = moldcast.AppendHeader(dst, s, r.First, 0)
	n := moldcast.Seq(0)
	for full := false; !full && r.First+n < r.Next; i, skip = (i+1)%len(f.bodies), 0 {
		msgs := moldcast.MessagesOf(f.bodies[i], int(f.first[i+1]-f.first[i]))
		for msgs.Len() > 0 && r.First+n < r.Next {
			m := msgs.Next()
			if skip--; skip >= 0 {
				continue
			}
			if full = len(dst)+moldcast.LengthSize+len(m) > payload; full {
				break
			}
			dst = moldcast.AppendMessage(dst, m)
			n++
		}
	}
	moldcast.AppendHeader(dst[:0], s, r.First, uint16(n))
	return dst
}
