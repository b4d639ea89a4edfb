package block

import (
	"errors"
	"testing"
)

// Check accepts what a block was made from, however it came, and nothing else.
func TestCheck(t *testing.T) {
	for name, late := range map[string]int{"in order": 0, "repaired late": 20} {
		b, _ := filled(64<<10, 3, late)
		e, d := mustEncoder(t, EncoderOptions{Level: Planes}), mustDecoder(t, DecoderOptions{Verify: true})
		header, body := encode(t, e, b, EncodeOptions{})
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		var got Block
		if err := d.Check(h, body, b, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var bad *CorruptError
		for _, at := range []int{0, len(b.arena) / 2, len(b.arena) - 1} {
			b.arena[at] ^= 1
			if err := d.Check(h, body, b, &got); !errors.As(err, &bad) {
				t.Errorf("%s, byte %d changed: %v", name, at, err)
			}
			b.arena[at] ^= 1
		}
		if more, _ := filled(70<<10, 3, late); !errors.As(d.Check(h, body, more, &got), &bad) {
			t.Errorf("%s: another block is accepted", name)
		}
		h.Rows[0] ^= 1
		if err := d.Decode(h, body, &got); !errors.As(err, &bad) {
			t.Errorf("%s: the hash is not compared any more: %v", name, err)
		}
	}
}
