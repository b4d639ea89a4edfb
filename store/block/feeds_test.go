package block

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/moldtape/moldtape/moldcast"
)

// feeds make blocks of messages as feeds of different kinds have them.
var feeds = map[string]func(rnd *rand.Rand) func() []byte{
	// An order book: references that are given once and named again.
	"itch": func(rnd *rand.Rand) func() []byte {
		type order struct {
			ref    uint64
			locate uint16
			price  uint32
		}
		var live []order
		at, ref := uint64(34_200_000_000_000), uint64(1_000_000)
		put := func(m []byte, o order) []byte {
			binary.BigEndian.PutUint16(m[1:], o.locate)
			m[5], m[6] = byte(at>>40), byte(at>>32)
			binary.BigEndian.PutUint32(m[7:], uint32(at))
			binary.BigEndian.PutUint64(m[11:], o.ref)
			return m
		}
		return func() []byte {
			at += uint64(rnd.ExpFloat64() * 4000)
			if len(live) < 50 || rnd.IntN(2) == 0 {
				ref += 1 + rnd.Uint64N(8)
				o := order{ref: ref, locate: uint16(min(rnd.IntN(900), rnd.IntN(900)))}
				o.price = uint32(o.locate)*1000 + uint32(rnd.IntN(20))*100
				live = append(live, o)
				m := put(make([]byte, 36), o)
				m[0], m[19] = 'A', "BS"[rnd.IntN(2)]
				binary.BigEndian.PutUint32(m[20:], uint32(1+rnd.IntN(10))*100)
				copy(m[24:], "Z       ")
				m[25], m[26] = byte('A'+o.locate/26%26), byte('A'+o.locate%26)
				binary.BigEndian.PutUint32(m[32:], o.price)
				return m
			}
			i := max(rnd.IntN(len(live)), rnd.IntN(len(live)))
			o := live[i]
			switch rnd.IntN(4) {
			case 0: // replaced
				ref += 1 + rnd.Uint64N(8)
				m := put(make([]byte, 35), o)
				m[0] = 'U'
				binary.BigEndian.PutUint64(m[19:], ref)
				binary.BigEndian.PutUint32(m[31:], o.price+100)
				live[i].ref, live[i].price = ref, o.price+100
				return m
			default:
				live = append(live[:i], live[i+1:]...)
				m := put(make([]byte, 19), o)
				m[0] = 'D'
				return m
			}
		}
	},
	// Quotes, little-endian, by symbol.
	"quotes": func(rnd *rand.Rand) func() []byte {
		at := uint64(1_500_000_000_000_000_000)
		var bid [300]uint64
		return func() []byte {
			at += uint64(rnd.ExpFloat64() * 90_000)
			k := min(rnd.IntN(len(bid)), rnd.IntN(len(bid)))
			bid[k] += uint64(rnd.IntN(3)) * 100
			m := make([]byte, 42)
			m[0] = 'Q'
			binary.LittleEndian.PutUint64(m[2:], at)
			copy(m[10:], "SYM     ")
			m[13], m[14] = byte('A'+k/26), byte('A'+k%26)
			binary.LittleEndian.PutUint32(m[18:], uint32(rnd.IntN(9))*100)
			binary.LittleEndian.PutUint64(m[22:], uint64(k)*100_000+bid[k])
			binary.LittleEndian.PutUint64(m[30:], uint64(k)*100_000+bid[k]+200)
			binary.LittleEndian.PutUint32(m[38:], uint32(rnd.IntN(9))*100)
			return m
		}
	},
	// Nothing to find: lengths of all kinds, none, and longer than a shape.
	"noise": func(rnd *rand.Rand) func() []byte {
		return func() []byte {
			m := make([]byte, []int{0, 1, 2, 3, 40, 255, 256, 700}[rnd.IntN(8)])
			for i := range m {
				m[i] = byte(rnd.Uint32())
			}
			return m
		}
	},
	// Whole messages again and again: what rows are good at.
	"echo": func(rnd *rand.Rand) func() []byte {
		var said [40][]byte
		for i := range said {
			said[i] = make([]byte, 60+i%3)
			for k := range said[i] {
				said[i][k] = byte(rnd.Uint32())
			}
		}
		return func() []byte { return said[rnd.IntN(len(said))] }
	},
	// Text.
	"text": func(rnd *rand.Rand) func() []byte {
		words := []string{"halt ", "resume ", "open ", "auction ", "imbalance ", "of ", "the ", "market "}
		return func() []byte {
			var m []byte
			for range rnd.IntN(60) {
				m = append(m, words[rnd.IntN(len(words))]...)
			}
			return m
		}
	},
}

// feedBlock is a block of at least size bytes of a feed, perPacket messages to
// a packet, received some 30 µs after the feed's own time where that is known.
func feedBlock(feed string, size, perPacket int, seed uint64) *Block {
	rnd := rand.New(rand.NewPCG(seed, 7))
	next := feeds[feed](rnd)
	b := NewBuilder(testSession)
	seq, at := moldcast.Seq(1), moldcast.Stamp(1_473_799_831_000_000_000)
	for total := 0; total < size; {
		var framed, m []byte
		for range perPacket {
			m = next()
			framed = moldcast.AppendMessage(framed, m)
		}
		total += len(framed)
		at += moldcast.Stamp(rnd.ExpFloat64() * 4000 * float64(perPacket))
		switch feed {
		case "itch":
			at = 1_473_724_800_000_000_000 + moldcast.Stamp(load(m, 5, 6, false))
		case "quotes":
			at = moldcast.Stamp(load(m, 2, 8, true))
		}
		heard := at + 30_000 + moldcast.Stamp(rnd.IntN(2000))
		p := moldcast.Piece{First: seq, Msgs: moldcast.MessagesOf(framed, perPacket), Time: heard, Heard: heard, Line: uint8(rnd.IntN(8) / 7)}
		if rnd.IntN(50) == 0 {
			p.Flags, p.Line, p.Heard = moldcast.Repaired, moldcast.AnswerLine, heard+20_000_000
		}
		if err := b.Append(p); err != nil {
			panic(err)
		}
		seq += moldcast.Seq(perPacket)
	}
	out := new(Block)
	if err := b.Freeze(out); err != nil {
		panic(err)
	}
	return out
}
