package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// seeds are real blocks: every section, each codec, marks only, many runs.
func seeds(f *testing.F, add func(header, body []byte)) {
	for _, l := range []Level{None, Default} {
		add(sample(f, l))
	}
	e := mustEncoder(f, EncoderOptions{})
	b := NewBuilder(testSession)
	if err := b.Mark(moldcast.Mark{Kind: moldcast.Heartbeat, Next: 1 << 63, Stamp: 1}); err != nil {
		f.Fatal(err)
	}
	add(encode(f, e, b, EncodeOptions{Patch: true}))
	b, _ = filled(3000, 1, 40)
	add(encode(f, e, b, EncodeOptions{}))
	b, _ = filled(3000, 70, 0)
	add(encode(f, mustEncoder(f, EncoderOptions{Level: None}), b, EncodeOptions{}))
	headers, bodies := hostile(f)
	for i := range headers {
		add(headers[i], bodies[i])
	}
}

func typed(err error) bool {
	return errors.As(err, new(*CorruptError)) || errors.As(err, new(*UnsupportedError)) || errors.Is(err, ErrTooLarge)
}

// resealHeader makes the checksum right, so that what is fuzzed is behind it.
func resealHeader(b []byte) {
	if len(b) > 4 {
		binary.BigEndian.PutUint32(b[len(b)-4:], crc(b[:len(b)-4]))
	}
}

// resealBody makes the checksums of all sections right that can be found.
func resealBody(b []byte) {
	for len(b) >= sectionHeader {
		n := min(uint64(binary.BigEndian.Uint32(b[8:])), uint64(len(b)-sectionHeader))
		s := b[:sectionHeader+int(n)]
		binary.BigEndian.PutUint32(s[12:], sectionCRC(s))
		b = b[len(s):]
	}
}

func FuzzParseHeader(f *testing.F) {
	seeds(f, func(header, _ []byte) { f.Add(header, true); f.Add(header, false) })
	f.Fuzz(func(t *testing.T, b []byte, reseal bool) {
		if reseal {
			b = bytes.Clone(b)
			resealHeader(b)
		}
		n, found := HeaderLen(b)
		h, err := ParseHeader(b)
		if err != nil {
			if !typed(err) {
				t.Fatalf("%T: %v", err, err)
			}
			if found && n >= len(b) {
				t.Fatalf("refused, and found %d bytes long: %v", n, err)
			}
			return
		}
		if more, ok := HeaderLen(append(bytes.Clone(b), b...)); !found || n != len(b) || !ok || more != n {
			t.Fatalf("%d bytes, found %d long, %v, and %d", len(b), n, found, more)
		}
		// What was accepted means the same when it is written again.
		h2, err := ParseHeader(h.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, h2); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecode(f *testing.F) {
	seeds(f, func(header, body []byte) { f.Add(header, body, true); f.Add(header, body, false) })
	d := mustDecoder(f, DecoderOptions{Memory: 1 << 20})
	e := mustEncoder(f, EncoderOptions{Level: None})
	f.Fuzz(func(t *testing.T, header, body []byte, reseal bool) {
		checkHostile(t, d, e, header, body, reseal)
	})
}

// fataler is what a test, a fuzz target and a rapid check have in common.
type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// checkHostile decodes what may be anything. What is accepted can be looked
// up in every way, and encodes to the same content again.
func checkHostile(t fataler, d *Decoder, e *Encoder, header, body []byte, reseal bool) (accepted bool) {
	if reseal {
		header, body = bytes.Clone(header), bytes.Clone(body)
		resealHeader(header)
		resealBody(body)
	}
	h, err := ParseHeader(header)
	if err != nil {
		if !typed(err) {
			t.Fatalf("%T: %v", err, err)
		}
		return false
	}
	if reseal {
		h.StoredLen, h.BodyCRC = len(body), crc(body)
	}
	var b Block
	var stamps Stamps
	stampsErr := d.Stamps(h, body, &stamps)
	if stampsErr != nil && !typed(stampsErr) {
		t.Fatalf("%T: %v", stampsErr, stampsErr)
	}
	if err := d.Decode(h, body, &b); err != nil {
		if !typed(err) {
			t.Fatalf("%T: %v", err, err)
		}
		return false
	}
	checkStamps(t, &b, &stamps, stampsErr)
	if n := b.Size(); n > 2<<20 {
		t.Fatalf("takes %d bytes", n)
	}
	messages := 0
	for i := range b.Pieces() {
		p := b.PieceAt(i)
		m, ok := b.Messages(p.First, p.Msgs.Len(), 1<<30)
		if k, held := b.Find(p.First); !ok || !held || k != i || !bytes.Equal(m.Framed(), p.Msgs.Framed()) {
			t.Fatalf("piece %d is not found", i)
		}
		messages += p.Msgs.Len()
	}
	if messages != h.Messages || messages != b.Count() || len(b.Marks()) != h.Marks {
		t.Fatalf("%d messages, the header says %d", messages, h.Messages)
	}
	want, wantMarks := blockPieces(&b), append([]moldcast.Mark(nil), b.Marks()...)
	header, body = e.EncodeBlock(nil, &b, EncodeOptions{})
	h, err = ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(h, body, &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, blockPieces(&b)) + cmp.Diff(wantMarks, append([]moldcast.Mark(nil), b.Marks()...)); diff != "" {
		t.Fatal(diff)
	}
	return true
}

// Random damage under sound checksums, on every run of the tests.
func TestResealedDamage(t *testing.T) {
	d, e := mustDecoder(t, DecoderOptions{Memory: 1 << 20}), mustEncoder(t, EncoderOptions{Level: None})
	header, body := sample(t, None)
	rapid.Check(t, func(t *rapid.T) {
		h, b := bytes.Clone(header), bytes.Clone(body)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			part := h
			if rapid.IntRange(0, 3).Draw(t, "part") > 0 {
				part = b
			}
			part[rapid.IntRange(0, len(part)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "to")
		}
		checkHostile(t, d, e, h, b, true)
	})
}
