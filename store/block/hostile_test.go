package block

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"github.com/moldtape/moldtape/moldcast"
)

// hostile are blocks of each form, small.
func hostile(t testing.TB) (headers, bodies [][]byte) {
	add := func(b, like *Block, level Level) {
		e := mustEncoder(t, EncoderOptions{Level: level})
		e.UsePlans(Learn(nil, like))
		header, body := e.EncodeBlock(nil, b, EncodeOptions{})
		headers, bodies = append(headers, header), append(bodies, body)
	}
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		for _, feed := range []string{"itch", "quotes", "noise"} {
			add(feedBlock(feed, 6<<10, 2, 5), feedBlock(feed, 20<<10, 2, 6), forms[name])
		}
	}
	// Planes of one byte but for few, and of such as suit each of the other modes.
	b := NewBuilder(testSession)
	rnd := rand.New(rand.NewPCG(1, 3))
	for q := moldcast.Seq(1); q < 2000; q++ {
		m := [8]byte{'S', byte(rnd.IntN(2)), byte(rnd.NormFloat64() * 20), byte(rnd.Uint32()), 7, byte(q / 500), byte(rnd.IntN(20) / 19)}
		if q%700 == 0 {
			m[4] = byte(q)
		}
		mustAppend(t, b, piece(q, moldcast.Stamp(q)*1000, string(m[:])))
	}
	var sparse Block
	if err := b.Freeze(&sparse); err != nil {
		t.Fatal(err)
	}
	add(&sparse, &sparse, Dense)
	e := mustEncoder(t, EncoderOptions{})
	for _, script := range []string{
		"piece 1 5 \"a\"\npiece 2 9 line=1 \"b\"\nlog 3 0 0 last=1\nheard 5 1 1\nheard 6 2 0 line=1\nheard 9 2 1 line=1\nheard 99 2 1\nheard 99 1 1 flags=1",
		"log 1 9 4\nlog 1 14 0\nmark heartbeat 8 9\nmark end 9 10 line=1",
	} {
		header, body := encode(t, e, buildScript(new(testing.T), script), EncodeOptions{})
		headers, bodies = append(headers, bytes.Clone(header)), append(bodies, bytes.Clone(body))
	}
	return headers, bodies
}

// realBlocks are golden blocks, and one of a real feed where there is one.
func realBlocks(t testing.TB) (headers, bodies [][]byte) {
	d := mustDecoder(t, DecoderOptions{Verify: true})
	for _, file := range []string{"decode", "forms"} {
		text, err := os.ReadFile(filepath.Join("testdata/golden", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "\ndecode\n")[1:] {
			input, _, _ := strings.Cut(block, "----\n")
			header, body := parseGolden(t, input)
			var b Block
			if h, err := ParseHeader(header); err == nil && d.Decode(h, body, &b) == nil { // not those that tell what is refused
				headers, bodies = append(headers, header), append(bodies, body)
			}
		}
	}
	rows, err := os.ReadFile(filepath.Join(cmp.Or(os.Getenv("MOLDTAPE_CORPUS"), t.TempDir()), "itch50-2019/open-1000.itch"))
	if err != nil {
		return headers, bodies
	}
	b := NewBuilder(testSession)
	for q := moldcast.Seq(1); q < 400; q++ {
		n := frame(rows, 0)
		mustAppend(t, b, moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(rows[:n], 1), Time: moldcast.Stamp(q) * 777, Heard: moldcast.Stamp(q) * 777})
		rows = rows[n:]
	}
	for _, level := range forms {
		header, body := encode(t, mustEncoder(t, EncoderOptions{Level: level, Learn: true}), b, EncodeOptions{})
		headers, bodies = append(headers, bytes.Clone(header)), append(bodies, bytes.Clone(body))
	}
	return headers, bodies
}

// wreck is a block taken apart, down to what lies below checksums, lengths and
// compressors, so that what reads that can be attacked. Lengths are right again
// where they are not what was damaged.
type wreck struct {
	h        Header
	sections []wreckedSection
}

type wreckedSection struct {
	tag          tag
	flags, codec byte
	raw, more    uint32 // bytes, as it says; and how many too many it says that are stored
	lies         bool   // raw is not what stored bytes as they are come to
	parts        []wreckedPart
}

// wreckedPart is bytes, and a bundle behind them where there is one; that of a
// payload behind its length.
type wreckedPart struct {
	head                 []byte
	bundle, sized        bool
	how                  byte
	script, group, coded []byte
	sizes                [2]uint64 // that it says script and group have; 0: the right ones
}

func (w *wreck) clone() *wreck {
	c := &wreck{h: w.h, sections: slices.Clone(w.sections)}
	c.h.Runs, c.h.Times = slices.Clone(w.h.Runs), slices.Clone(w.h.Times)
	for i := range c.sections {
		s := &c.sections[i]
		s.parts = slices.Clone(s.parts)
		for k := range s.parts {
			for _, b := range s.parts[k].leaves() {
				*b = bytes.Clone(*b)
			}
		}
	}
	return c
}

func (p *wreckedPart) leaves() []*[]byte {
	if !p.bundle {
		return []*[]byte{&p.head}
	}
	return []*[]byte{&p.script, &p.script, &p.script, &p.head, &p.coded, &p.group} // a script is what says most
}

// wrecked takes apart a block that is sound; with open what is compressed is so
// no more.
func wrecked(t testing.TB, header, body []byte, open bool) *wreck {
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	d := mustDecoder(t, DecoderOptions{})
	w := &wreck{h: h}
	for len(body) > 0 {
		n := sectionHeader + int(binary.BigEndian.Uint32(body[8:]))
		in := body[sectionHeader:n]
		s := wreckedSection{tag: tag(binary.BigEndian.Uint16(body)), flags: body[2], codec: body[3], raw: binary.BigEndian.Uint32(body[4:])}
		body = body[n:]
		if open && Codec(s.codec) == Zstd {
			var raw []byte
			if !unpack(&raw, packZstd, in, int(s.raw), d.z) {
				t.Fatal("does not unpack")
			}
			in, s.codec = raw, byte(Stored)
			if s.tag == tagPayload {
				w.h.Codec = Stored
			}
		}
		switch c := Codec(s.codec); {
		case open && s.tag == tagLog && h.Log != nil:
			x := scanner{b: in}
			x.byte()
			x.uvarint()
			x.uvarint()
			x.byte()
			p := opened(t, d, in[x.at:])
			p.head = in[:x.at]
			s.parts = []wreckedPart{p}
		case !open || c == Stored || s.tag > tagMarks:
			s.parts = []wreckedPart{{head: in}}
		case s.tag == tagTimes:
			x := scanner{b: in}
			for n := x.byte(); n > 0; n-- {
				x.bytes(5)
			}
			x.byte()
			x.uvarint()
			x.byte()
			x.uvarint()
			p := opened(t, d, in[x.at:])
			p.head = in[:x.at]
			s.parts = []wreckedPart{p}
		default:
			for x := (scanner{b: in}); x.at < len(in); {
				at := x.at
				x.uvarint()
				x.uvarint()
				head := in[at:x.at]
				size := binary.BigEndian.Uint32(x.bytes(4))
				p := opened(t, d, x.bytes(uint64(size)))
				p.head, p.sized = head, true
				s.parts = append(s.parts, p)
			}
		}
		w.sections = append(w.sections, s)
	}
	return w
}

func opened(t testing.TB, d *Decoder, b []byte) wreckedPart {
	var r columnReader
	if !r.open(b, MaxRaw, d.z) {
		t.Fatal("does not open")
	}
	return wreckedPart{bundle: true, script: bytes.Clone(r.script), group: bytes.Clone(r.group), coded: bytes.Clone(r.coded)}
}

// block is the stored form again.
func (w *wreck) block() (header, body []byte) {
	h := w.h
	for _, s := range w.sections {
		at := len(body)
		body = append(body, make([]byte, sectionHeader)...)
		for _, p := range s.parts {
			body = append(body, p.head...)
			if !p.bundle {
				continue
			}
			b := binary.AppendUvarint([]byte{p.how}, cmp.Or(p.sizes[0], uint64(len(p.script))))
			b = binary.AppendUvarint(b, cmp.Or(p.sizes[1], uint64(len(p.group))))
			for i, raw := range [2][]byte{p.script, p.group} {
				if p.how>>(4*i)&15 == packS2 {
					raw = s2.Encode(nil, raw)
				}
				b = append(binary.AppendUvarint(b, uint64(len(raw))), raw...)
			}
			b = append(b, p.coded...)
			if p.sized {
				body = binary.BigEndian.AppendUint32(body, uint32(len(b)))
			}
			body = append(body, b...)
		}
		if Codec(s.codec) == Stored && !s.lies {
			if s.raw = uint32(len(body) - at - sectionHeader); s.tag == tagPayload {
				h.RawLen = int(s.raw)
			}
		}
		sealSection(body[at:], s.tag, s.flags, Codec(s.codec), int(s.raw))
		if s.more > 0 {
			binary.BigEndian.PutUint32(body[at+8:], uint32(len(body)-at-sectionHeader)+s.more)
			binary.BigEndian.PutUint32(body[at+12:], sectionCRC(body[at:]))
		}
	}
	h.StoredLen, h.BodyCRC = len(body), crc(body)
	return h.Append(nil), body
}

// damage changes one thing.
func (w *wreck) damage(rnd *rand.Rand, other *wreck) {
	if len(w.sections) == 0 || rnd.IntN(8) == 0 {
		w.damageHeader(rnd)
		return
	}
	s := &w.sections[rnd.IntN(len(w.sections))]
	if rnd.IntN(2) == 0 {
		s = &w.sections[0]
	}
	var p *wreckedPart
	if len(s.parts) > 0 {
		p = &s.parts[rnd.IntN(len(s.parts))]
	}
	switch k := rnd.IntN(40); {
	case k == 0:
		s.tag += tag(rnd.IntN(3)) - 1
	case k == 1:
		s.flags ^= 1 << rnd.IntN(8)
	case k == 2:
		s.codec = byte(rnd.IntN(7))
		if s.tag == tagPayload && rnd.IntN(2) == 0 {
			w.h.Codec = Codec(s.codec)
		}
	case k == 3:
		s.raw, s.lies = uint32(odd(rnd, uint64(s.raw))), true
	case k == 4:
		s.more = uint32(odd(rnd, 0))
	case k == 5: // another's, or once more, or not at all
		switch i := rnd.IntN(len(w.sections)); rnd.IntN(3) {
		case 0:
			if len(other.sections) > 0 {
				w.sections[i] = other.clone().sections[rnd.IntN(len(other.sections))]
			}
		case 1:
			w.sections = append(w.sections, w.clone().sections[i])
		default:
			w.sections = slices.Delete(w.sections, i, i+1)
		}
	case p == nil:
	case k == 6:
		s.parts = append(s.parts, w.clone().sections[0].parts...)
	case k == 7:
		p.how = byte(rnd.IntN(3)<<4 | rnd.IntN(3))
	case k == 8:
		p.sizes[rnd.IntN(2)] = odd(rnd, uint64(len(p.group)))
		p.how = byte(rnd.IntN(3)<<4 | rnd.IntN(3))
	case k == 9: // another's script for these planes
		if len(other.sections) > 0 && len(other.sections[0].parts) > 0 {
			p.script = bytes.Clone(other.sections[0].parts[0].script)
		}
	case k == 10: // nothing but chance
		leaves := p.leaves()
		leaf := *leaves[rnd.IntN(len(leaves))]
		for i := range leaf {
			leaf[i] = byte(rnd.Uint32())
		}
	default:
		leaves := p.leaves()
		leaf := leaves[rnd.IntN(len(leaves))]
		*leaf = damaged1(rnd, *leaf)
	}
}

// odd is a number near n, or near what is a limit somewhere.
func odd(rnd *rand.Rand, n uint64) uint64 {
	switch rnd.IntN(4) {
	case 0:
		return n + uint64(rnd.IntN(9)) - 4
	case 1:
		return n ^ 1<<rnd.IntN(64)
	case 2:
		return 1<<rnd.IntN(64) + uint64(rnd.IntN(3)) - 1
	}
	return []uint64{0, 1, 250, 251, partMessages, partRaw, MaxRaw, MaxPieces, MaxMarks, maxScript, 1<<32 - 1, 1<<63 - 1, 1<<64 - 1}[rnd.IntN(13)]
}

// damaged1 is b with a byte, a number or a span changed.
func damaged1(rnd *rand.Rand, b []byte) []byte {
	if len(b) == 0 {
		return append(b, byte(rnd.Uint32()))
	}
	at := rnd.IntN(len(b))
	if rnd.IntN(2) == 0 {
		at = rnd.IntN(min(len(b), 64)) // where it is said how to read the rest
	}
	span := min(1+rnd.IntN(8), len(b)-at)
	switch rnd.IntN(10) {
	case 0:
		return slices.Insert(b, at, byte(rnd.Uint32()))
	case 1:
		return slices.Delete(b, at, at+span)
	case 2:
		return slices.Insert(b, at, bytes.Clone(b[at:at+span])...)
	case 3:
		return slices.Replace(b, at, at+1, binary.AppendUvarint(nil, odd(rnd, uint64(b[at])))...)
	case 4:
		return b[:at]
	default:
		b[at] = []byte{0, 1, 127, 128, 255, byte(rnd.Uint32()), b[at] + 1, b[at] - 1, b[at] ^ 1<<rnd.IntN(8)}[rnd.IntN(9)]
	}
	return b
}

func (w *wreck) damageHeader(rnd *rand.Rand) {
	h := &w.h
	number := func(n *int) { *n = int(uint32(odd(rnd, uint64(*n)))) }
	seq := func(q *moldcast.Seq) { *q = moldcast.Seq(odd(rnd, uint64(*q))) }
	at := func(s *moldcast.Stamp) { *s = moldcast.Stamp(odd(rnd, uint64(*s))) }
	switch k := rnd.IntN(10); {
	case k == 0:
		number(&h.RawLen)
	case k == 1:
		number(&h.Packets)
	case k == 2:
		number(&h.Marks)
	case k == 3:
		h.Codec = Codec(rnd.IntN(7))
	case k == 4:
		seq([]*moldcast.Seq{&h.MarkMin, &h.MarkMax, &h.End}[rnd.IntN(3)])
	case k == 5:
		h.Ended = !h.Ended
	case len(h.Runs) == 0:
	case k == 6:
		i := rnd.IntN(len(h.Runs) + 1)
		h.Runs = slices.Insert(h.Runs, i, moldcast.Range{First: moldcast.Seq(odd(rnd, 1)), Next: moldcast.Seq(odd(rnd, 9))})
		h.Times = slices.Insert(h.Times, i, RunTimes{})
	case k == 7:
		i := rnd.IntN(len(h.Runs))
		h.Runs, h.Times = slices.Delete(h.Runs, i, i+1), slices.Delete(h.Times, i, i+1)
	case k == 8:
		r := &h.Runs[rnd.IntN(len(h.Runs))]
		seq([]*moldcast.Seq{&r.First, &r.Next}[rnd.IntN(2)])
	default:
		r := &h.Times[rnd.IntN(len(h.Times))]
		at([]*moldcast.Stamp{&r.Min, &r.Max, &r.First, &r.Last}[rnd.IntN(4)])
	}
}

// Bits of a clock that mean nothing yet are refused: to who wrote them they do.
func TestClockBits(t *testing.T) {
	e := mustEncoder(t, EncoderOptions{Level: Dense, Learn: true})
	h, body := encodeBlock(t, e, feedBlock("itch", 60<<10, 1, 3))
	w := wrecked(t, h.Append(nil), body, true)
	i := slices.IndexFunc(w.sections, func(s wreckedSection) bool { return s.tag == tagTimes })
	clocks := w.sections[i].parts[0].head
	if clocks[0] == 0 {
		t.Fatal("no clocks")
	}
	d := mustDecoder(t, DecoderOptions{})
	for bit := range 8 {
		w := w.clone()
		w.sections[i].parts[0].head[3] = clocks[3] ^ 1<<bit
		header, body := w.block()
		h, err := ParseHeader(header)
		if err != nil {
			t.Fatal(err)
		}
		var b Block
		if err := d.Decode(h, body, &b); bit >= 5 && !errors.As(err, new(*CorruptError)) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

// meter tells how many bytes are allocated.
type meter []metrics.Sample

func newMeter() meter { return meter{{Name: "/gc/heap/allocs:bytes"}} }

func (m meter) read() int {
	metrics.Read(m)
	return int(m[0].Value.Uint64())
}

// within reports whether f allocates at most limit bytes. What was allocated
// before is counted late, at times: more than that has to be seen three times.
func (m meter) within(limit int, f func()) (took int, ok bool) {
	for range 3 {
		before := m.read()
		f()
		if took = m.read() - before; took <= limit {
			return took, true
		}
	}
	return took, false
}

// held is what slices below v take, but for those of other packages.
func held(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Slice:
		n = v.Cap() * int(v.Type().Elem().Size())
		for i := 0; i < v.Len() && v.Type().Elem().Kind() == reflect.Struct; i++ {
			n += held(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += held(v.Field(i))
		}
	}
	return n
}

// hostileRuns is how many blocks are tried.
func hostileRuns(t *testing.T) int {
	if s := os.Getenv("MOLDTAPE_BLOCKS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("MOLDTAPE_BLOCKS=%s: %v", s, err)
		}
		return n
	}
	switch {
	case raceEnabled:
		return 2000
	case os.Getenv("MOLDTAPE_LONG") != "":
		return 50_000
	}
	return 10_000
}

// Damaged and made-up blocks of each form under sound checksums, damaged below
// the compressors too: each gives an error of the right type, or content that is
// whole and can be written again, the one that was written where the hashes are
// compared; and takes no more memory than its header declares, and than was
// allowed.
func TestHostileForms(t *testing.T) {
	n := hostileRuns(t)
	const (
		memory = 4 << 20
		// What decompressors take beside what a header declares: tables, and what
		// a frame of zstd was read into.
		tables = 1 << 20
	)
	type seed struct {
		w       *wreck
		content Block
	}
	var seeds []*seed
	headers, bodies := hostile(t)
	h2, b2 := realBlocks(t)
	headers, bodies = append(headers, h2...), append(bodies, b2...)
	d := mustDecoder(t, DecoderOptions{Memory: memory, Log: true})
	whole := mustDecoder(t, DecoderOptions{Verify: true})
	for i := range headers {
		for _, open := range []bool{false, true} {
			x := &seed{w: wrecked(t, headers[i], bodies[i], open)}
			header, body := x.w.block()
			h, err := ParseHeader(header)
			if err == nil {
				err = whole.Decode(h, body, &x.content)
			}
			if err != nil {
				t.Fatalf("seed %d, opened %v: %v", i, open, err)
			}
			seeds = append(seeds, x)
		}
	}
	e, second := mustEncoder(t, EncoderOptions{Level: None}), newSecondReader(t)
	rnd, count := rand.New(rand.NewPCG(8, 8)), newMeter()
	var b, again Block
	accepted, agreed, verified, most := 0, 0, 0, 0
	var header, body []byte
	defer func() {
		if t.Failed() {
			t.Logf("header %x body %x", header, body)
		}
	}()
	for i := range n {
		x := seeds[rnd.IntN(len(seeds))]
		w := x.w.clone()
		for range 1 + rnd.IntN(3) {
			w.damage(rnd, seeds[rnd.IntN(len(seeds))].w)
		}
		header, body = w.block()
		if rnd.IntN(16) == 0 {
			header = damaged1(rnd, header)
			resealHeader(header)
		}
		var h Header
		var err error
		if took, ok := count.within(8<<10+16*len(header), func() { h, err = ParseHeader(header) }); !ok {
			t.Fatalf("%d: a header of %d bytes takes %d", i, len(header), took)
		}
		if err != nil {
			if !typed(err) {
				t.Fatalf("%d: %T: %v", i, err, err)
			}
			continue
		}
		if h.StoredLen == len(body) {
			h.BodyCRC = crc(body)
		}
		limit := need(&h)
		if h.Log != nil {
			limit += needLog(h.Log)
		}
		cold := i%64 == 0
		took, ok := count.within(min(limit, memory)+tables, func() {
			if cold { // with no memory of what came before
				b = Block{}
				d.raw, d.runs, d.col, d.lags, d.log = nil, nil, joiner{}, lagReader{}, logReader{}
			}
			cold = true
			err = d.Decode(h, body, &b)
		})
		if !ok {
			t.Fatalf("%d: takes %d bytes, %d are allowed and %d for tables", i, took, limit, tables)
		}
		if i%64 == 0 {
			size := held(reflect.ValueOf(*d)) + held(reflect.ValueOf(b))
			if most = max(most, size); size > memory+tables {
				t.Fatalf("%d: %d bytes are held", i, size)
			}
		}
		if err != nil {
			if !typed(err) || b.Count() > 0 || b.Pieces() > 0 || len(b.Marks()) > 0 {
				t.Fatalf("%d: %T: %v, %d messages", i, err, err, b.Count())
			}
			continue
		}
		accepted++
		if b.Count() != h.Messages || len(b.Marks()) != h.Marks || b.Size() > memory {
			t.Fatalf("%d: %d messages of %d in %d bytes", i, b.Count(), h.Messages, b.Size())
		}
		if accepted%2 == 0 {
			sound, rows := e.EncodeBlock(nil, &b, EncodeOptions{})
			h2, err := ParseHeader(sound)
			if err == nil {
				err = whole.Decode(h2, rows, &again)
			}
			if err != nil || !sameBlock(&b, &again) || !sameLog(&b, &again) {
				t.Fatalf("%d: written again: %v %s", i, err, godiff.Diff(blockPieces(&b), blockPieces(&again)))
			}
			right := h // with the hashes of what it holds: for the second reader
			right.Rows, right.Facts, right.Log = h2.Rows, h2.Facts, h2.Log
			if whole.Decode(right, body, &again) == nil {
				second.t = t
				second.agree(right.Append(nil), body, right, &again)
				agreed++
			}
		}
		if whole.Decode(h, body, &again) == nil && h.Digest() == x.w.h.Digest() {
			verified++
			if !sameBlock(&again, &x.content) || h.Log != nil && x.w.h.Log != nil && h.Log.Hash == x.w.h.Log.Hash && !sameLog(&again, &x.content) {
				t.Fatalf("%d: hashes match, and not the content: %s", i, godiff.Diff(blockPieces(&x.content), blockPieces(&again)))
			}
		}
	}
	t.Logf("%d blocks: %d accepted, %d of them as they were, %d read by the second reader too; at most %d bytes held", n, accepted, verified, agreed, most)
	if accepted < n/100 || accepted > n/2 || agreed == 0 {
		t.Errorf("%d of %d accepted: nothing was tested", accepted, n)
	}
}

func sameBlock(a, b *Block) bool {
	return a.Session() == b.Session() && bytes.Equal(a.rows, b.rows) && slices.Equal(a.runs, b.runs) && slices.Equal(a.ords, b.ords) &&
		slices.Equal(a.times, b.times) && slices.Equal(a.heard, b.heard) && slices.Equal(a.odd, b.odd) &&
		fmt.Sprint(a.lines, a.flags) == fmt.Sprint(b.lines, b.flags) && slices.Equal(a.Marks(), b.Marks())
}

func sameLog(a, b *Block) bool { return slices.Equal(logOf(a), logOf(b)) }
