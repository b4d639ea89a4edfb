package block

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"slices"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

// DecoderOptions are the settings of a Decoder.
type DecoderOptions struct {
	// Memory is the most bytes that one decoded block and the decoder's own
	// buffers may take together; 0 is DefaultMemory.
	Memory int

	// Verify has every block's hashes (Rows, Facts, that of the line log)
	// compared too, not only its checksums.
	Verify bool

	// Log has the line log decoded too. Verify does.
	Log bool
}

// Decoder turns stored blocks into decoded ones. It keeps its buffers: not
// for use by several goroutines at once.
type Decoder struct {
	o    DecoderOptions
	z    *zstd.Decoder
	col  joiner
	lags lagReader
	log  logReader
	raw  []byte
	runs []RunTimes
	sum  hash.Hash
	tmp  [32]byte
	made *Builder // of Check: what the rows are compared with; else nil
}

// NewDecoder is a decoder with the given settings.
func NewDecoder(o DecoderOptions) (*Decoder, error) {
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	z, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxRaw),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	return &Decoder{o: o, z: z, sum: sha256.New()}, nil
}

// Close frees the decoder; it must not be used afterwards.
func (d *Decoder) Close() { d.z.Close() }

// slack lets the decompressor copy in wide steps to the very end.
const slack = 64

// maxFacts is the most that the raw bytes of a section other than the payload
// can take: varints of 64 bits are at most 10 bytes, those of counts 5.
func maxFacts(h *Header) int { return 32 + 26*h.Packets + 15*len(h.Runs) + 22*h.Marks }

// need is about the memory that decoding h takes.
func need(h *Header) int {
	const piece, run = 2*4 + 8 + 2 + 4 + 8, 16 + 4
	n := h.RawLen + slack + h.Messages/stride*4 + h.Packets*piece + h.Marks*int(unsafe.Sizeof(moldcast.Mark{})) +
		len(h.Runs)*(run+int(unsafe.Sizeof(RunTimes{}))) + maxFacts(h)
	if h.Codec > Zstd {
		n += needColumns(h)
	}
	return n
}

// needColumns is about what the columns of a block take beside it: those of
// one part, three times over; where its messages begin; tables and script; and
// what the times are made of.
func needColumns(h *Header) int {
	part, msgs := min(h.RawLen, partRaw+1<<16), min(h.Messages, partMessages)
	const slot = 4
	return 3*part + 7*msgs + min(maxTables<<maxTableBits, 4*maxFeeds*maxTables*msgs)*slot + maxScript + 11*h.Packets
}

// fault is what decoding finds wrong: err, or a reason with its place.
type fault struct {
	part   string
	at     int
	reason string
	err    error
}

func (f *fault) found() bool { return f.err != nil || f.reason != "" }

// Decode reads the body that belongs to h into a block, whose memory is used
// again. Checksums, counts and framing are all checked; nothing of a body
// that fails is kept, and into is then empty. Errors: *CorruptError,
// *UnsupportedError, or it wraps ErrTooLarge.
func (d *Decoder) Decode(h Header, body []byte, into *Block) error {
	return d.result(&h, d.decode(&h, body, into), into)
}

func (d *Decoder) result(h *Header, f fault, into *Block) error {
	switch {
	case f.err != nil:
		into.reset(h.Session)
		return f.err
	case f.reason != "":
		into.reset(h.Session)
		return &CorruptError{Session: h.Session, Range: h.Range(), Part: f.part, At: f.at, Reason: f.reason}
	}
	return nil
}

func (d *Decoder) decode(h *Header, body []byte, into *Block) fault {
	if len(body) == h.StoredLen && crc(body) != h.BodyCRC {
		part, at := damaged(body)
		return fault{part: part, at: at, reason: "checksum does not match"}
	}
	log := h.Log
	if !d.o.Log && !d.o.Verify {
		log = nil
	}
	seen, f := d.sections(h, body, allTags, log, into)
	if f.found() {
		return f
	}
	return d.finish(h, log, seen, into)
}

// allTags and those of stamps are sets of tags, as in seen.
const (
	allTags   = ^tag(0)
	stampTags = 1<<tagBoundaries | 1<<tagTimes | 1<<tagOrigins
)

// errNeedsRows is what sections gives for times that are made of the messages,
// where those are not wanted.
var errNeedsRows = errors.New("block: times that are made of the messages")

// sections decodes those of the sections whose tags are wanted; the line log, of
// which log is what the header says, where that is not nil.
func (d *Decoder) sections(h *Header, body []byte, wanted tag, log *LogInfo, into *Block) (seen tag, f fault) {
	into.reset(h.Session)
	bad := func(part string, at int, reason string) (tag, fault) {
		return 0, fault{part: part, at: at, reason: reason}
	}
	fail := func(err error) (tag, fault) { return 0, fault{err: err} }
	n := need(h)
	if log != nil {
		n += needLog(log)
	}
	if n > d.o.Memory {
		return fail(fmt.Errorf("%w: block %v %v needs about %d bytes of %d", ErrTooLarge, h.Session, h.Range(), n, d.o.Memory))
	}
	if len(body) != h.StoredLen {
		return bad("body", len(body), fmt.Sprintf("%d bytes, the header says %d", len(body), h.StoredLen))
	}
	d.sum.Reset()
	var before tag
	for at := 0; at < len(body); {
		s := body[at:]
		if len(s) < sectionHeader {
			return bad("body", at, "section cut short")
		}
		t, flags, codec := tag(binary.BigEndian.Uint16(s)), s[2], Codec(s[3])
		raw := binary.BigEndian.Uint32(s[4:])
		stored := binary.BigEndian.Uint32(s[8:])
		switch {
		case t <= before:
			return bad("body", at, "sections are not in the order of their tags")
		case uint64(stored) > uint64(len(s)-sectionHeader):
			return bad(t.String(), at, "section cut short")
		}
		s = s[:sectionHeader+int(stored)]
		before = t
		if t <= tagLog && wanted&(1<<t) == 0 {
			at += len(s)
			continue
		}
		if sectionCRC(s) != binary.BigEndian.Uint32(s[12:]) {
			return bad(t.String(), at, "checksum does not match")
		}
		if t > tagLog || t == tagLog && log == nil {
			if flags&sectionRequired != 0 {
				return fail(&UnsupportedError{What: "section", Value: int(t)})
			}
			at += len(s)
			continue
		}
		limit, buf := maxFacts(h), &d.raw
		switch t {
		case tagPayload:
			limit, buf = h.RawLen, &into.rows
		case tagLog:
			limit, buf = maxLogRaw(log), &d.log.raw
		}
		switch {
		case !codec.of(t):
			return fail(&UnsupportedError{What: "codec", Value: int(codec)})
		case raw == 0 || int64(raw) > int64(limit), t == tagPayload && (int(raw) != h.RawLen || codec != h.Codec):
			return bad(t.String(), at, "length or codec is not what the header says")
		case codec == Lagged && wanted&(1<<tagPayload) == 0 && hasClocks(s[sectionHeader:]):
			return fail(errNeedsRows)
		case codec > Zstd:
			if reason := d.columns(h, t, s[sectionHeader:], int(raw), into); reason != "" {
				return bad(t.String(), at, reason)
			}
		case !unpack(buf, byte(codec), s[sectionHeader:], int(raw), d.z):
			return bad(t.String(), at, "does not decompress to its length")
		}
		seen |= 1 << t
		if t != tagPayload && t != tagLog {
			if d.o.Verify {
				hashFact(d.sum, &d.tmp, t, d.raw)
			}
			if at, reason := d.parse(h, t, into); reason != "" {
				return bad(t.String(), at, reason)
			}
		}
		at += len(s)
	}
	return seen, fault{}
}

// damaged is the first section of a damaged body whose own checksum does not
// match, for the error; "body" where that cannot be told.
func damaged(body []byte) (part string, at int) {
	for at < len(body) {
		s := body[at:]
		if len(s) < sectionHeader || uint64(binary.BigEndian.Uint32(s[8:])) > uint64(len(s)-sectionHeader) {
			return "body", at
		}
		s = s[:sectionHeader+int(binary.BigEndian.Uint32(s[8:]))]
		if sectionCRC(s) != binary.BigEndian.Uint32(s[12:]) {
			return tag(binary.BigEndian.Uint16(s)).String(), at
		}
		at += len(s)
	}
	return "body", 0
}

// of reports whether sections of a tag may be stored by c.
func (c Codec) of(t tag) bool {
	switch c {
	case Stored, Zstd:
		return true
	case PlanesZstd, PlanesS2, Foretold:
		return t == tagPayload
	case Lagged:
		return t == tagTimes
	}
	return false
}

// columns makes the raw bytes of a section in columns.
func (d *Decoder) columns(h *Header, t tag, stored []byte, raw int, into *Block) (reason string) {
	if t == tagTimes {
		if len(into.ords) != h.Packets {
			return "times without boundaries"
		}
		out, reason := d.lags.decode(d.raw[:0], stored, raw, into, d.z)
		if reason == "" {
			if d.raw = out; len(out) != raw {
				reason = "lags differ from the times in length"
			}
		}
		return reason
	}
	if cap(into.rows) < raw+slack {
		into.rows = make([]byte, 0, raw+slack)
	}
	rows, reason := d.col.decode(into.rows, stored, raw, h.Messages, d.z)
	if reason == "" {
		into.rows = rows
	}
	return reason
}

// parse reads the raw bytes of a section, in d.raw, into b.
func (d *Decoder) parse(h *Header, t tag, b *Block) (at int, reason string) {
	s := scanner{b: d.raw}
	switch t {
	case tagBoundaries:
		readBoundaries(&s, h, b)
	case tagTimes:
		if len(b.times) > 0 { // they were made of lags
			s.at = d.lags.read
			readHeard(&s, h, b, int64(powerOf10(d.raw[0])))
		} else {
			readTimes(&s, h, b, 0)
		}
	case tagOrigins:
		readOrigins(&s, h, b)
	case tagMarks:
		readMarks(&s, h, b, 0, 0)
	}
	s.end()
	return s.bad, s.reason
}

func readBoundaries(s *scanner, h *Header, b *Block) {
	if s.uvarint() != uint64(len(h.Runs)) {
		s.fail("runs differ from the header's")
		return
	}
	b.ords = slices.Grow(b.ords, h.Packets+1)
	var next moldcast.Seq
	for _, r := range h.Runs {
		first := next + moldcast.Seq(s.uvarint())
		pieces := s.uvarint()
		if first != r.First || pieces == 0 || pieces > uint64(h.Packets-len(b.ords)) {
			s.fail("runs differ from the header's")
			return
		}
		for next = first; pieces > 0; pieces-- {
			n := s.uvarint()
			if n == 0 || n > uint64(r.Next-next) {
				s.fail("pieces do not fit their run")
				return
			}
			b.addRange(next, int(n))
			next += moldcast.Seq(n)
		}
		if next != r.Next {
			s.fail("pieces do not fit their run")
			return
		}
	}
	if len(b.ords) != h.Packets {
		s.fail("pieces differ in number from the header's")
	}
}

// knownUnit reports whether stamps may be counts of so many ns.
func knownUnit(ns uint64) bool {
	for _, u := range units {
		if uint64(u.ns) == ns {
			return true
		}
	}
	return false
}

// stampBounds are the least and the greatest stamp, in units of so many ns.
func stampBounds(ns int64) (lo, hi int64) {
	if ns == 1 {
		return math.MinInt64, math.MaxInt64
	}
	return -math.MaxInt64 / ns, math.MaxInt64 / ns
}

// readTimes reads the section; the first time counts from prev.
func readTimes(s *scanner, h *Header, b *Block, prev moldcast.Stamp) {
	exp := s.byte()
	if exp > 9 || !knownUnit(powerOf10(exp)) {
		s.fail("unit of the times is not known")
		return
	}
	ns := int64(powerOf10(exp))
	lo, hi := stampBounds(ns)
	b.times = slices.Grow(b.times, h.Packets)
	t := int64(prev) / ns
	for range h.Packets {
		t += s.varint()
		if t < lo || t > hi {
			s.fail("time beyond 64 bits")
		}
		if s.reason != "" {
			return
		}
		b.times = append(b.times, moldcast.Stamp(t*ns))
	}
	readHeard(s, h, b, ns)
}

// readHeard reads the end of the section, of counts of ns.
func readHeard(s *scanner, h *Header, b *Block, ns int64) {
	lo, hi := stampBounds(ns)
	n := s.uvarint()
	if n > uint64(h.Packets) {
		s.fail("more heard stamps than pieces")
		return
	}
	next := uint64(0)
	for range n {
		i := s.uvarint()
		if i >= uint64(h.Packets)-next {
			s.fail("heard stamp of no piece")
			return
		}
		i += next
		v := int64(b.times[i])/ns + s.varint()
		if v < lo || v > hi || v*ns == int64(b.times[i]) {
			s.fail("heard stamp beyond 64 bits, or equal to the time")
			return
		}
		b.odd = append(b.odd, uint32(i))
		b.heard = append(b.heard, moldcast.Stamp(v*ns))
		next = i + 1
	}
}

func readOrigins(s *scanner, h *Header, b *Block) {
	for i := 0; i < h.Packets; {
		line, flags, n := s.byte(), moldcast.PieceFlags(s.byte()), s.uvarint()
		if n == 0 || n > uint64(h.Packets-i) {
			s.fail("origins do not fit the pieces")
			return
		}
		if line != 0 || len(b.lines) > 0 {
			b.lines = fill(b.lines, i, int(n), line)
		}
		if flags != 0 || len(b.flags) > 0 {
			b.flags = fill(b.flags, i, int(n), flags)
		}
		i += int(n)
	}
	if len(b.lines) == 0 && len(b.flags) == 0 {
		s.fail("origins of nothing but line 0")
	}
}

// fill makes b at+n long: zeros, then n times v.
func fill[T ~uint8](b []T, at, n int, v T) []T {
	b = extend(slices.Grow(b, at+n-len(b)), at)
	for range n {
		b = append(b, v)
	}
	return b
}

// readMarks reads the section; the first mark counts from next and at.
func readMarks(s *scanner, h *Header, b *Block, next moldcast.Seq, at moldcast.Stamp) {
	for range h.Marks {
		kind, line := moldcast.Kind(s.byte()), s.byte()
		next += moldcast.Seq(s.varint())
		at += moldcast.Stamp(s.varint())
		if s.reason == "" && (kind != moldcast.Heartbeat && kind != moldcast.End || next == 0) {
			s.fail("no heartbeat and no end")
		}
		if s.reason != "" {
			return
		}
		b.marks = append(b.marks, moldcast.Mark{Kind: kind, Next: next, Stamp: at, Line: line})
	}
}

// finish checks what the sections say together, against the header.
func (d *Decoder) finish(h *Header, log *LogInfo, seen tag, b *Block) fault {
	bad := func(part, reason string, at int) fault { return fault{part: part, at: at, reason: reason} }
	var want tag
	if h.Packets > 0 {
		want = 1<<tagPayload | 1<<tagBoundaries | 1<<tagTimes
	}
	if h.Marks > 0 {
		want |= 1 << tagMarks
	}
	if log != nil {
		want |= 1 << tagLog
	}
	if got := seen &^ (1 << tagOrigins); got != want || h.Packets == 0 && seen&(1<<tagOrigins) != 0 {
		return bad("body", "sections missing, or there without cause", 0)
	}
	if reason, at := b.index(); reason != "" {
		return bad(tagPayload.String(), reason, at)
	}
	d.runs = b.runTimes(d.runs[:0])
	if !slices.Equal(d.runs, h.Times) {
		return bad(tagTimes.String(), "times differ from the header's bounds", 0)
	}
	var m Header
	m.setMarks(b.marks)
	if m.MarkMin != h.MarkMin || m.MarkMax != h.MarkMax || m.Ended != h.Ended || m.End != h.End {
		return bad(tagMarks.String(), "marks differ from the header's bounds", 0)
	}
	if log != nil {
		if at, reason := d.log.decode(log, b, d.z); reason != "" {
			return bad(tagLog.String(), reason, at)
		}
	}
	if !d.o.Verify {
		return fault{}
	}
	d.sum.Sum(d.tmp[:0])
	if d.tmp != h.Facts {
		return bad("body", "hash of the facts does not match", 0)
	}
	if !d.rowsAre(h, b) {
		return bad(tagPayload.String(), "hash of the rows does not match", 0)
	}
	if log != nil && logHash(d.sum, b.log) != log.Hash {
		return bad(tagLog.String(), "hash of the line log does not match", 0)
	}
	return fault{}
}
