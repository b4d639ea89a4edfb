package capfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// What is taken for a plain frame is read as gopacket reads it, whatever of it
// is changed, cut off or hung on.
func TestPlainAsGeneral(t *testing.T) {
	var rs []record
	add := func(b []byte) { rs = append(rs, record{stamp: noon + moldcast.Stamp(len(rs)), data: b}) }
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range [][]byte{
		ethernet(t, ipUDP(t, groupA, mold("S", 1, "one", "two"))),
		ethernet(t, ipUDP(t, groupA, mold("S", 1, "one", "two")), 141),
		ethernet(t, ipUDP(t, groupA, nil), 1, 2),
		ethernet(t, ipUDP(t, group6, mold("S", 1, "one"))),
		ethernet(t, fragments(t, groupA, 5, mold("S", 3, "zzzzzzzzzzzzzzzzzzzz"), 16)[0]),
		ethernet(t, cat([]byte{0x46}, ipUDP(t, groupA, mold("S", 1, "one"))[1:])),
	} {
		add(f)
		for n := range f {
			add(f[:n])
		}
		for n := 1; n < 9; n++ {
			add(append(bytes.Clone(f), make([]byte, n)...))
		}
		ip := bytes.LastIndex(f[:20+etherSize], []byte{8, 0}) + 2
		for at := range min(len(f), ip+ipv4Size+udpSize) {
			for k := range 40 {
				b := bytes.Clone(f)
				b[at] = byte(rng.Uint32())
				if k < 8 {
					b[at] = f[at] ^ 1<<k
				}
				if k > 20 && len(b) > ip+20 { // a length below, at or above what is right
					b[at] = f[at] + byte(k-30)
				}
				add(b)
				// The same with no checksum to tell it by.
				b = bytes.Clone(b)
				if ip > etherSize-1 && len(b) >= ip+28 {
					binary.BigEndian.PutUint16(b[ip+10:], 0)
					binary.BigEndian.PutUint16(b[ip+10:], ^fold(sum(b[ip:ip+20], 0)))
					binary.BigEndian.PutUint16(b[ip+26:], 0)
					add(b)
				}
			}
		}
	}
	file := pcapEth(rs...)
	for _, sums := range []bool{true, false} {
		x, err := NewReader(bytes.NewReader(file), Options{Checksums: sums})
		if err != nil {
			t.Fatal(err)
		}
		y, err := NewReader(bytes.NewReader(file), Options{Checksums: sums})
		if err != nil {
			t.Fatal(err)
		}
		y.general = true
		for err == nil {
			var p Packet
			p, err = x.Next()
			if diff := differ(p, err, y); diff != "" {
				t.Fatalf("frame %d, %x: %s", p.Frame, rs[p.Frame-1].data, diff)
			}
		}
		if err != io.EOF || x.Stats() != y.Stats() || x.Stats().Frames != int64(len(rs)) {
			t.Fatalf("%v, %+v, and %+v", err, x.Stats(), y.Stats())
		}
		n := 0
		for _, r := range rs {
			if x.plain(&frame{link: linkEthernet, data: r.data}, new(Packet)) {
				n++
			}
		}
		if n < 1000 || n > len(rs)-1000 {
			t.Errorf("%d of %d frames are plain", n, len(rs))
		}
	}
}

// sumSlow is the sum of RFC 1071, as it stands there.
func sumSlow(b []byte, acc uint64) uint64 {
	for i, c := range b {
		acc += uint64(c) << (8 * (1 - i%2))
	}
	return acc
}

func TestSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, fill := range []byte{0, 0xff, 1} {
		b := bytes.Repeat([]byte{fill}, 65535)
		for n := range 300 {
			if fill == 1 {
				for i := range n {
					b[i] = byte(rng.Uint32())
				}
			}
			for _, n := range []int{n, 65535 - n} {
				for _, acc := range []uint64{0, 1, 0xffff, 0x1fffe} {
					if got, want := fold(sum(b[:n], acc)), fold(sumSlow(b[:n], acc)); got != want {
						t.Fatalf("%d bytes, from %d: %#x, want %#x", n, acc, got, want)
					}
				}
			}
		}
	}
	for _, acc := range []uint64{1<<64 - 1, 1<<63 - 1, 0xffff0000ffff0000, 0xfffffffeffffffff} {
		want := acc
		for want > 0xffff {
			want = want>>16 + want&0xffff
		}
		if got := fold(acc); uint64(got) != want {
			t.Errorf("fold %#x: %#x, want %#x", acc, got, fmt.Sprint(want))
		}
	}
}
