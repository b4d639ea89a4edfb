package block

import (
	"encoding/binary"
	"slices"
	"testing"
)

// Times made of lags are those of the raw form; where those are beyond a stamp,
// there are none, and who reads that form says so.
func TestLagBounds(t *testing.T) {
	for _, exp := range []uint8{0, 1, 3, 9} {
		lo, hi := stampBounds(int64(powerOf10(exp)))
		for _, at := range []int64{0, -7, lo, hi, lo - 1, hi + 1} {
			stored := binary.AppendVarint([]byte{0, exp}, at)
			stored = append(stored, 0, 1)                // no width, one byte behind the times
			stored = append(stored, 0, 2, 0, 2, 0, 0, 0) // a plane: that is 0
			b := &Block{ords: []uint32{0}}
			var l lagReader
			raw, reason := l.decode(nil, stored, 100, b, nil)
			if reason != "" {
				t.Fatal(reason)
			}
			var want Block
			s := scanner{b: raw}
			readTimes(&s, &Header{Packets: 1}, &want, 0)
			if s.reason != "" {
				want.times = nil
			}
			if !slices.Equal(b.times, want.times) || len(b.times) > 0 && l.read != len(raw)-1 {
				t.Errorf("%d times 10^%d: %v, want %v", at, exp, b.times, want.times)
			}
		}
	}
}
