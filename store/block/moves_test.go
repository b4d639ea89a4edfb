package block

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Moves say of a message what its steps say one by one, and back; and change
// no byte that is no field of theirs.
func TestMovesAreSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(1, 40).Draw(t, "width")
		var steps []step
		for at := 0; at < width; {
			n := min(rapid.SampledFrom([]int{1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8}).Draw(t, "n"), width-at)
			from := at
			kind := rapid.SampledFrom([]uint8{0, stepOwn, stepAny, stepKey, stepShape}).Draw(t, "kind")
			if kind == stepKey || kind == stepShape {
				from = min(max(at+rapid.IntRange(-2, 2).Draw(t, "from"), 0), width-n)
			}
			if kind != 0 {
				steps = append(steps, step{kind: kind, at: uint8(at), n: uint8(n), from: uint8(from),
					little: rapid.Bool().Draw(t, "little"), sure: rapid.IntRange(0, 4).Draw(t, "sure") > 0})
			}
			at += n
		}
		steps = rapid.Permutation(steps).Draw(t, "order")
		message := rapid.SliceOfN(rapid.Byte(), width, width)
		rows := make([]byte, 2*width+2*moveSlack)
		copy(rows, message.Draw(t, "other"))
		at := width + moveSlack
		copy(rows[at:], message.Draw(t, "message"))
		from := rapid.SampledFrom([]int{-1, 0, 0, 0}).Draw(t, "where")

		want := slices.Clone(rows[at : at+width])
		for _, s := range steps {
			n := int(s.n)
			v := load(rows[:at+width], at+int(s.at), n, s.little)
			if from >= 0 {
				v -= load(rows[:width], from+int(s.from), n, s.little)
			}
			if n > 1 {
				v = fold(v, n)
			}
			for k := range n {
				want[int(s.at)+k] = byte(v >> (8 * (n - 1 - k)))
			}
		}
		for _, end := range []byte{0, 0xFF} { // behind the message
			out := append(slices.Clone(rows[at:at+width]), bytes.Repeat([]byte{end}, moveSlack)...)
			moves := appendMoves(appendMoves(nil, steps, true), steps, false)
			for k := range moves {
				moves[k].differ(out, rows, width, []int32{int32(from)})
			}
			if !bytes.Equal(out[:width], want) || bytes.Count(out[width:], []byte{end}) != moveSlack {
				t.Fatalf("%v: %x, want %x", steps, out, want)
			}
			back := append(slices.Clone(rows[:at]), out...)
			for k := range moves {
				if m := &moves[k]; from < 0 && m.kind == stepOwn {
					m.sum(back, []uint32{uint32(at)}) // the first of its shape
				} else {
					m.join(back, at, from)
				}
			}
			if !bytes.Equal(back[:at+width], rows[:at+width]) || bytes.Count(back[at+width:], []byte{end}) != moveSlack {
				t.Fatalf("%v: %x came back as %x", steps, rows, back)
			}
		}
	})
}

// Single bytes of one source are few moves.
func TestMovesJoin(t *testing.T) {
	var steps []step
	for at := uint8(1); at < 36; at++ {
		steps = append(steps, step{kind: stepKey, at: at, n: 1, from: at, sure: true})
	}
	if m := appendMoves(nil, steps, false); len(m) != 5 {
		t.Errorf("35 bytes are %d moves", len(m))
	}
	steps[3].sure = false // may lie beyond its message, and then counts for itself
	if m := appendMoves(nil, steps, false); len(m) < 6 {
		t.Errorf("of 35 bytes, one of which may be missing, there are %d moves", len(m))
	}
}

// Keys of all widths are what load says.
func TestSlotsLoad(t *testing.T) {
	p := [8]byte{0xF1, 0x82, 0x73, 0x64, 0x55, 0x46, 0x37, 0x28}
	for width := 1; width <= 8; width++ {
		s := slots{key: uint8(64 - 8*width)}
		if got, want := s.load(&p), load(p[:], 0, width, false); got != want {
			t.Errorf("%d bytes: %x, want %x", width, got, want)
		}
	}
}
