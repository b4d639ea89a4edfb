// Package itch makes messages of the shape of Nasdaq TotalView-ITCH 5.0, for
// demonstrations and tests, and reads the timestamp of real ones. It is no
// ITCH codec.
//
// Every ITCH 5.0 message begins with type (1 byte), stock locate u16, tracking
// number u16 and timestamp (6 bytes: ns since midnight); integers are
// big-endian.
package itch

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// headerSize is type, stock locate, tracking number and timestamp.
const headerSize = 11

// Timestamp reads the time of day of an ITCH 5.0 message: 6 bytes at offset 5.
// It reports false where msg is too short for one, or the time is no time of
// day.
func Timestamp(msg []byte) (time.Duration, bool) {
	if len(msg) < headerSize {
		return 0, false
	}
	d := time.Duration(uint64(binary.BigEndian.Uint16(msg[5:]))<<32 | uint64(binary.BigEndian.Uint32(msg[7:])))
	return d, d < 24*time.Hour
}

// PutTimestamp writes the time of day of an ITCH 5.0 message of at least 11
// bytes.
func PutTimestamp(msg []byte, d time.Duration) {
	binary.BigEndian.PutUint16(msg[5:], uint16(d>>32))
	binary.BigEndian.PutUint32(msg[7:], uint32(d))
}

// kind is a message type with its share of a busy minute of trading.
type kind struct {
	code  byte
	size  int
	share int // of 1000
}

// kinds are the types that an order book is made of, their sizes by the
// specification, their shares like those of the open of a real day.
var kinds = [...]kind{
	{'A', 36, 370}, // add order
	{'D', 19, 280}, // delete
	{'U', 35, 180}, // replace
	{'E', 31, 80},  // executed
	{'F', 40, 40},  // add order with attribution
	{'X', 23, 30},  // cancelled in part
	{'P', 44, 15},  // trade
	{'C', 36, 5},   // executed at another price
}

const (
	symbols  = 200
	maxLive  = 4096 // orders open at a time
	firstDay = 9*time.Hour + 30*time.Minute
)

// order is an open order.
type order struct {
	ref    uint64
	locate uint16
	shares uint32
	price  uint32 // 1/10000 dollar
}

// Generator makes messages: the same seed gives the same messages on every
// machine (its arithmetic is of integers alone). One goroutine owns it.
type Generator struct {
	rng    *rand.Rand
	left   int
	ref    uint64
	match  uint64
	now    time.Duration
	prices [symbols]uint32
	live   []order
	buf    [64]byte
}

// NewGenerator makes a Generator of n messages.
func NewGenerator(n int, seed uint64) *Generator {
	g := &Generator{rng: rand.New(rand.NewPCG(seed, 0x49544348)), left: n, now: firstDay}
	for i := range g.prices {
		g.prices[i] = uint32(5_0000 + g.rng.IntN(500_0000))
	}
	return g
}

// Next is the next message, 19 to 44 bytes, valid until the next call; false
// after the last.
func (g *Generator) Next() ([]byte, bool) {
	if g.left <= 0 {
		return nil, false
	}
	g.left--
	g.tick()
	k := g.pick()
	m := g.buf[:k.size]
	clear(m)
	m[0] = k.code
	PutTimestamp(m, g.now)
	switch k.code {
	case 'A', 'F':
		g.add(m)
	default:
		g.change(m)
	}
	return m, true
}

// tick advances the clock as trading does: many messages close together, then
// a pause. The day starts again rather than run out.
func (g *Generator) tick() {
	step := time.Duration(g.rng.IntN(4_000))
	if g.rng.IntN(20) == 0 {
		step += time.Duration(g.rng.IntN(800_000))
	}
	if g.now += step; g.now >= 24*time.Hour {
		g.now = firstDay
	}
}

// pick draws a type by its share. With no order open it can only be an add;
// with the most that are kept open, only a delete.
func (g *Generator) pick() kind {
	switch {
	case len(g.live) == 0:
		return kinds[0]
	case len(g.live) == maxLive:
		return kinds[1]
	}
	n := g.rng.IntN(1000)
	for _, k := range kinds {
		if n -= k.share; n < 0 {
			return k
		}
	}
	return kinds[0]
}

// add opens an order. Layout: order reference u64, side, shares u32, stock[8],
// price u32, and for F the attribution[4].
func (g *Generator) add(m []byte) {
	// Few symbols make most of the traffic.
	locate := min(g.rng.IntN(symbols), g.rng.IntN(symbols))
	price := g.move(locate)
	g.ref += 1 + uint64(g.rng.IntN(8))
	o := order{ref: g.ref, locate: uint16(locate + 1), shares: uint32(1+g.rng.IntN(10)) * 100, price: price}
	g.live = append(g.live, o)
	binary.BigEndian.PutUint16(m[1:], o.locate)
	binary.BigEndian.PutUint64(m[11:], o.ref)
	m[19] = "BS"[g.rng.IntN(2)]
	binary.BigEndian.PutUint32(m[20:], o.shares)
	putStock(m[24:32], locate)
	binary.BigEndian.PutUint32(m[32:], o.price)
	if len(m) == 40 {
		copy(m[36:], "TAPE")
	}
}

// move lets the price of a symbol wander by a few cents.
func (g *Generator) move(locate int) uint32 {
	p := int64(g.prices[locate]) + int64(g.rng.IntN(7)-3)*100
	g.prices[locate] = uint32(max(p, 100))
	return g.prices[locate]
}

// change is a message about an open order.
func (g *Generator) change(m []byte) {
	// Young orders change most.
	i := max(g.rng.IntN(len(g.live)), g.rng.IntN(len(g.live)))
	o := &g.live[i]
	binary.BigEndian.PutUint16(m[1:], o.locate)
	binary.BigEndian.PutUint64(m[11:], o.ref)
	part := min(o.shares, uint32(1+g.rng.IntN(4))*100)
	gone := false
	switch m[0] {
	case 'D':
		gone = true
	case 'U': // original and new reference, shares, price
		g.ref += 1 + uint64(g.rng.IntN(8))
		o.ref, o.price = g.ref, g.move(int(o.locate)-1)
		binary.BigEndian.PutUint64(m[19:], o.ref)
		binary.BigEndian.PutUint32(m[27:], o.shares)
		binary.BigEndian.PutUint32(m[31:], o.price)
	case 'E', 'C': // shares, match number; C: printable, price
		g.match++
		binary.BigEndian.PutUint32(m[19:], part)
		binary.BigEndian.PutUint64(m[23:], g.match)
		if m[0] == 'C' {
			m[31] = 'Y'
			binary.BigEndian.PutUint32(m[32:], o.price)
		}
		o.shares -= part
		gone = o.shares == 0
	case 'X': // shares
		binary.BigEndian.PutUint32(m[19:], part)
		o.shares -= part
		gone = o.shares == 0
	case 'P': // side, shares, stock, price, match number: of an order never shown
		g.match++
		binary.BigEndian.PutUint64(m[11:], 0)
		m[19] = 'B'
		binary.BigEndian.PutUint32(m[20:], part)
		putStock(m[24:32], int(o.locate)-1)
		binary.BigEndian.PutUint32(m[32:], o.price)
		binary.BigEndian.PutUint64(m[36:], g.match)
	}
	if gone {
		g.live = append(g.live[:i], g.live[i+1:]...)
	}
}

// putStock writes a made-up symbol, padded with spaces.
func putStock(dst []byte, locate int) {
	for i := range dst {
		dst[i] = ' '
	}
	dst[0] = 'Z'
	dst[1] = byte('A' + locate/26)
	dst[2] = byte('A' + locate%26)
}
