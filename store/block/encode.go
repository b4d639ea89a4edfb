package block

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math/bits"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

// Level is how hard an Encoder tries.
type Level uint8

// The levels of an Encoder. Every Decoder reads all of them.
const (
	Default Level = iota // about zstd -3
	Fastest              // about zstd -1: when the queue grows
	Better               // about zstd -7: for what was stored fast before
	None                 // sections are stored as they are
	Dense                // foretold columns, or rows where those are smaller: the fewest bytes
	Planes               // columns as they are: twice as fast as Fastest, and smaller for most feeds
	Hasty                // the same, with S2: in overload
)

// EncoderOptions are the settings of an Encoder.
type EncoderOptions struct {
	// BlockSize is the usual size of the rows of a block, and so the window
	// of the compressor: 0 is 256 KiB, at most MaxTarget. Any block can be
	// encoded whatever it is.
	BlockSize int
	Level     Level

	// Learn has an encoder of level Dense learn by itself, in Encode, from the
	// first block and where messages change. Without it they are foretold by
	// what UsePlans gives it.
	Learn bool
}

// Encoder turns open blocks into stored ones. It keeps its buffers: one a
// worker, not for use by several goroutines at once.
type Encoder struct {
	z    *zstd.Encoder // nil at level None
	col  *columns      // of the levels that make them
	log  logWriter
	view Block
	rows []byte
	raw  []byte
	h    Header
	sum  hash.Hash
	tmp  [32]byte
}

// NewEncoder is an encoder with the given settings.
func NewEncoder(o EncoderOptions) (*Encoder, error) {
	if o.BlockSize == 0 {
		o.BlockSize = 256 << 10
	}
	if o.BlockSize < 1 || o.BlockSize > MaxTarget {
		return nil, fmt.Errorf("block: size %d, want 1..%d", o.BlockSize, MaxTarget)
	}
	e := &Encoder{sum: sha256.New()}
	level := zstd.SpeedDefault
	switch o.Level {
	case Default:
	case Dense:
		e.col = newColumns(o)
	case Planes, Hasty:
		e.col = newColumns(o)
		level = zstd.SpeedFastest
	case Fastest:
		level = zstd.SpeedFastest
	case Better:
		level = zstd.SpeedBetterCompression
	case None:
		return e, nil
	default:
		return nil, fmt.Errorf("block: level %d is not known", o.Level)
	}
	window := max(32<<10, 1<<bits.Len(uint(o.BlockSize-1)))
	z, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(level),
		zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(window),
		// The block has its own checksums.
		zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	e.z = z
	return e, nil
}

// EncodeOptions are the facts of one block that its content does not show.
type EncodeOptions struct {
	Patch bool // it replaces a damaged block, and may overlap others
}

// Encode appends the stored form of b to dst: the body, then the header, of
// which both are returned; they are kept under two keys. body[:0] is the
// buffer to pass the next time, once both were copied. b is only read: its
// readers may go on. Errors: it wraps ErrFraming.
func (e *Encoder) Encode(dst []byte, b *Builder, o EncodeOptions) (header, body []byte, err error) {
	e.rows, _ = b.view(&e.view, e.rows)
	e.view.log = b.log
	reason, at := e.view.index()
	if reason != "" {
		err = fmt.Errorf("%w: %s at byte %d", ErrFraming, reason, at)
	} else {
		header, body = e.encode(dst, &e.view, o)
	}
	e.view.rows, e.view.log = nil, nil // may be the memory of b
	return header, body, err
}

// EncodeBlock is Encode for a block that was decoded: to compress it anew.
func (e *Encoder) EncodeBlock(dst []byte, b *Block, o EncodeOptions) (header, body []byte) {
	return e.encode(dst, b, o)
}

func (e *Encoder) encode(dst []byte, b *Block, o EncodeOptions) (header, body []byte) {
	h := &e.h
	*h = Header{
		Session: b.session, Patch: o.Patch, Packets: b.Pieces(), Marks: len(b.marks), RawLen: len(b.rows),
		Runs: b.runs, Times: b.runTimes(h.Times[:0]),
	}
	h.setMarks(b.marks)
	// Room for everything that does not shrink, so that dst grows once.
	start := len(dst)
	dst = slices.Grow(dst, len(b.rows)+len(b.rows)/64+8*b.Pieces()+24*len(h.Runs)+8*len(b.marks)+512)
	h.Rows = e.rowsHash(b)
	if len(b.rows) > 0 {
		dst = e.payload(dst, b)
		h.Codec = Codec(dst[start+3])
	}
	e.sum.Reset()
	fact := func(t tag, flags byte) {
		if len(e.raw) > 0 {
			dst = e.section(dst, t, flags, e.raw)
			e.fact(t, e.raw)
		}
	}
	e.raw = b.appendBoundaries(e.raw[:0], 0)
	fact(tagBoundaries, sectionRequired)
	e.raw = b.appendTimes(e.raw[:0], 0)
	if e.col != nil && len(b.times) >= leastLags {
		dst = e.times(dst, b)
		e.fact(tagTimes, e.raw)
	} else {
		fact(tagTimes, sectionRequired)
	}
	e.raw = b.appendOrigins(e.raw[:0])
	fact(tagOrigins, sectionRequired)
	e.raw = b.appendMarks(e.raw[:0], 0, 0)
	fact(tagMarks, 0)
	e.sum.Sum(h.Facts[:0])
	if h.Log = logInfo(e.sum, b.log); h.Log != nil {
		at := len(dst)
		dst = e.log.encode(append(dst, make([]byte, sectionHeader)...), b, e.z)
		sealSection(dst[at:], tagLog, 0, Stored, len(dst)-at-sectionHeader)
	}

	end := len(dst)
	h.StoredLen, h.BodyCRC = end-start, crc(dst[start:end])
	dst = h.Append(dst)
	h.Runs = nil
	// The capacity of both goes to the body, which is the buffer to reuse.
	return dst[end:len(dst):len(dst)], dst[start:end]
}

// section appends one section: compressed where that makes it smaller.
func (e *Encoder) section(dst []byte, t tag, flags byte, raw []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, sectionHeader)...)
	codec := Zstd
	if e.z != nil {
		dst = e.z.EncodeAll(raw, dst)
	}
	if n := len(dst) - at - sectionHeader; n == 0 || n >= len(raw) {
		codec = Stored
		dst = append(dst[:at+sectionHeader], raw...)
	}
	sealSection(dst[at:], t, flags, codec, len(raw))
	return dst
}

// sealSection writes the header of a section before its stored bytes.
func sealSection(s []byte, t tag, flags byte, codec Codec, raw int) {
	binary.BigEndian.PutUint16(s, uint16(t))
	s[2], s[3] = flags, byte(codec)
	binary.BigEndian.PutUint32(s[4:], uint32(raw))
	binary.BigEndian.PutUint32(s[8:], uint32(len(s)-sectionHeader))
	binary.BigEndian.PutUint32(s[12:], sectionCRC(s))
}

// sectionCRC is the checksum of a section: of its header before the checksum,
// and its stored bytes.
func sectionCRC(s []byte) uint32 {
	return crcAdd(crc(s[:12]), s[sectionHeader:])
}

// rowsHash is the SHA-256 of the canonical row form.
func (e *Encoder) rowsHash(b *Block) [32]byte { return rowsHash(e.sum, &e.tmp, b) }

func rowsHash(sum hash.Hash, tmp *[32]byte, b *Block) (out [32]byte) {
	sum.Reset()
	for i, r := range b.runs {
		binary.BigEndian.PutUint64(tmp[:], uint64(r.First))
		binary.BigEndian.PutUint64(tmp[8:], uint64(r.Next))
		sum.Write(tmp[:16])
		sum.Write(b.runRows(i))
	}
	sum.Sum(tmp[:0])
	return *tmp
}

// runRows is the rows of the i-th run; the pieces are indexed.
func (b *Block) runRows(i int) []byte {
	at, end := b.ats[last(b.ords, b.runOrd[i])], uint32(len(b.rows))
	if i+1 < len(b.runs) {
		end = b.ats[last(b.ords, b.runOrd[i+1])]
	}
	return b.rows[at:end]
}

func (e *Encoder) fact(t tag, raw []byte) { hashFact(e.sum, &e.tmp, t, raw) }

// hashFact adds one section to the hash of the facts: tag u16, length u32,
// raw bytes.
func hashFact(sum hash.Hash, tmp *[32]byte, t tag, raw []byte) {
	binary.BigEndian.PutUint16(tmp[:], uint16(t))
	binary.BigEndian.PutUint32(tmp[2:], uint32(len(raw)))
	sum.Write(tmp[:6])
	sum.Write(raw)
}

// appendBoundaries appends the section; the first run counts from next.
func (b *Block) appendBoundaries(dst []byte, next moldcast.Seq) []byte {
	if len(b.runs) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(b.runs)))
	piece := 0
	for r, run := range b.runs {
		end := b.Pieces()
		if r+1 < len(b.runs) {
			end = last(b.ords, b.runOrd[r+1])
		}
		dst = binary.AppendUvarint(dst, uint64(run.First-next))
		dst = binary.AppendUvarint(dst, uint64(end-piece))
		for ; piece < end; piece++ {
			dst = binary.AppendUvarint(dst, uint64(b.ords[piece+1]-b.ords[piece]))
		}
		next = run.Next
	}
	return dst
}

// units are the exponents of ten that stamps may be multiples of: clocks of
// ns, µs, ms and s.
var units = [...]struct {
	exp byte
	ns  moldcast.Stamp
}{{9, 1e9}, {6, 1e6}, {3, 1e3}, {0, 1}}

func (b *Block) unit() (exp byte, ns moldcast.Stamp) {
	u := 0
	for _, s := range [2][]moldcast.Stamp{b.times, b.heard} {
		for _, t := range s {
			for t%units[u].ns != 0 {
				if u++; u == len(units)-1 {
					return units[u].exp, units[u].ns
				}
			}
		}
	}
	return units[u].exp, units[u].ns
}

// appendTimes appends the section; the first time counts from prev.
func (b *Block) appendTimes(dst []byte, prev moldcast.Stamp) []byte {
	if len(b.times) == 0 {
		return dst
	}
	exp, ns := b.unit()
	dst = append(dst, exp)
	prev /= ns
	for _, t := range b.times {
		if ns > 1 {
			t /= ns
		}
		dst = binary.AppendVarint(dst, int64(t-prev))
		prev = t
	}
	return b.appendHeard(dst, ns)
}

// appendHeard appends the end of the section, of counts of ns.
func (b *Block) appendHeard(dst []byte, ns moldcast.Stamp) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b.odd)))
	next := uint32(0)
	for k, i := range b.odd {
		dst = binary.AppendUvarint(dst, uint64(i-next))
		dst = binary.AppendVarint(dst, int64(b.heard[k]/ns-b.times[i]/ns))
		next = i + 1
	}
	return dst
}

// origin is the line and flags of the i-th piece.
func (b *Block) origin(i int) (line uint8, flags moldcast.PieceFlags) {
	if len(b.lines) > 0 {
		line = b.lines[i]
	}
	if len(b.flags) > 0 {
		flags = b.flags[i]
	}
	return line, flags
}

func (b *Block) appendOrigins(dst []byte) []byte {
	if len(b.lines) == 0 && len(b.flags) == 0 {
		return dst
	}
	for i, n := 0, b.Pieces(); i < n; {
		line, flags := b.origin(i)
		k := i + 1
		for ; k < n; k++ {
			if l, f := b.origin(k); l != line || f != flags {
				break
			}
		}
		dst = append(dst, line, byte(flags))
		dst = binary.AppendUvarint(dst, uint64(k-i))
		i = k
	}
	return dst
}

// appendMarks appends the section; the first mark counts from next and at.
func (b *Block) appendMarks(dst []byte, next moldcast.Seq, at moldcast.Stamp) []byte {
	for _, m := range b.marks {
		dst = append(dst, byte(m.Kind), m.Line)
		dst = binary.AppendVarint(dst, int64(m.Next-next))
		dst = binary.AppendVarint(dst, int64(m.Stamp-at))
		next, at = m.Next, m.Stamp
	}
	return dst
}
