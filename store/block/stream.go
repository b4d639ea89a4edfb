package block

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	// streamLimit is how many raw bytes a stream takes before the next record
	// begins another: what one damaged record costs at most, beyond itself.
	streamLimit = 64 << 10

	// streamWindow is that of the compressor: a stream and a record more.
	streamWindow = 128 << 10

	// MaxModelled is the most bytes of rows of a record that an encoder models.
	// With so many pieces (of at most 45 bytes) and marks (22) it is not above
	// maxModelRaw, the most raw bytes that a reader takes.
	MaxModelled       = 16 << 10
	maxModelledPieces = 512
	maxModelledMarks  = 512
	maxModelRaw       = 64 << 10

	// StreamRecord is set in the first byte of a record of a stream.
	StreamRecord = 0x80

	recordBegins   = 1 << 0 // a stream
	recordModelled = 1 << 1 // so is all of the stream
	recordFlags    = recordBegins | recordModelled

	recordCRC = 4

	// recordSections are the boundaries, times, origins and marks.
	recordSections = 4
)

// maxRecordRaw is the most raw bytes of a record.
const maxRecordRaw = MaxRaw + 64 + 48*MaxPieces + 24*MaxMarks

// streamState is what records of a stream have in common, on both sides: it
// is known once the record before was read.
type streamState struct {
	session moldcast.Session
	crc     uint32
	next    moldcast.Seq   // one past the last message
	time    moldcast.Stamp // of the last piece
	model   model
}

func (s *streamState) begin(session moldcast.Session) {
	s.session, s.crc, s.next, s.time = session, 0, 0, 0
}

// took moves on behind b.
func (s *streamState) took(b *Block) {
	if n := len(b.runs); n > 0 {
		s.next, s.time = b.runs[n-1].Next, b.times[len(b.times)-1]
	}
}

// StreamEncoder makes records of what is stored a little at a time. They are
// in streams: each record is compressed with those before it in its stream as
// history, and can be read behind them only. It keeps its buffers: not for use
// by several goroutines at once.
type StreamEncoder struct {
	streamState
	z        *zstd.Encoder
	out      sink
	bits     bitCoder
	raw      []byte
	section  []byte
	view     Block
	rows     []byte
	begun    bool
	modelled bool // the stream
	taken    int  // raw bytes of the stream
	most     int  // bytes of rows of a record that is modelled
	way      wayChoice
}

// sink is where the compressor writes to.
type sink []byte

func (s *sink) Write(p []byte) (int, error) {
	*s = append(*s, p...)
	return len(p), nil
}

// NewStreamEncoder is an encoder whose first record begins a stream. Records
// of up to so many bytes of rows, MaxModelled at most, are modelled where that
// makes them smaller: it takes about 30 ns a byte, three to five times as long
// as the compressor takes for larger ones.
func NewStreamEncoder(modelled int) (*StreamEncoder, error) {
	if modelled < 0 || modelled > MaxModelled {
		return nil, fmt.Errorf("block: %d bytes to be modelled, want 0..%d", modelled, MaxModelled)
	}
	z, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(streamWindow),
		zstd.WithEncoderCRC(false)) // records have their own
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	e := &StreamEncoder{z: z, most: modelled}
	e.model.ids = map[uint32]byte{}
	return e, nil
}

// Break has the next record begin a stream: records from here on can be read
// without those before.
func (e *StreamEncoder) Break() { e.begun = false }

// Encode appends the record of what b holds to dst. b is only read. Errors: it
// wraps ErrFraming, and the next record begins a stream.
func (e *StreamEncoder) Encode(dst []byte, b *Builder) ([]byte, error) {
	dst, err := e.encode(dst, b)
	if err != nil {
		e.Break()
	}
	return dst, err
}

func (e *StreamEncoder) encode(dst []byte, b *Builder) ([]byte, error) {
	v := &e.view
	e.rows, _ = b.view(v, e.rows)
	defer func() { v.rows = nil }() // may be the arena of b
	if reason, at := v.index(); reason != "" {
		return nil, fmt.Errorf("%w: %s at byte %d", ErrFraming, reason, at)
	}
	start := len(dst)
	kind := byte(StreamRecord)
	small := len(v.rows) <= e.most && v.Pieces() <= maxModelledPieces && len(v.marks) <= maxModelledMarks
	if !e.begun || e.taken >= streamLimit || e.session != b.session || e.modelled && !small {
		kind |= recordBegins
		e.begin(b.session)
		e.begun, e.taken = true, 0
		if e.modelled = small && e.way.model(); e.modelled {
			e.model.begin()
		} else {
			e.z.Reset(&e.out)
		}
	}
	e.raw = e.appendRecord(e.raw[:0], v)
	if e.modelled {
		kind |= recordModelled
	}
	dst = append(dst, kind)
	if kind&recordBegins != 0 {
		dst = append(dst, e.session[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.raw)))
	if e.modelled {
		e.bits.encode(dst)
		if !e.model.code(&e.bits, e.raw) {
			return nil, fmt.Errorf("%w: no form of a record", ErrFraming) // it was made above
		}
		dst = e.bits.end()
	} else {
		e.out = dst
		_, err := e.z.Write(e.raw)
		if err == nil {
			err = e.z.Flush()
		}
		if err != nil {
			return nil, fmt.Errorf("block: %w", err)
		}
		dst = e.out
	}
	e.crc = crcAdd(e.crc, dst[start:])
	dst = binary.BigEndian.AppendUint32(dst, e.crc)
	e.taken += len(e.raw)
	if small {
		e.way.came(e.modelled, len(e.raw), len(dst)-start)
	}
	return dst, nil
}

// appendRecord appends the raw form of a record, and moves the state on.
func (e *StreamEncoder) appendRecord(dst []byte, b *Block) []byte {
	section := func(s []byte) {
		dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
		e.section = s[:0]
	}
	section(b.appendBoundaries(e.section, e.next))
	section(b.appendTimes(e.section, e.time))
	section(b.appendOrigins(e.section))
	e.took(b)
	if n := len(b.marks); n > 0 {
		section(b.appendMarks(binary.AppendUvarint(e.section, uint64(n)), e.next, e.time))
	} else {
		section(e.section)
	}
	return append(dst, b.rows...)
}

// wayChoice is whether a stream of small records is modelled: where less came
// of that of late. The other way is tried now and then.
type wayChoice struct {
	streams uint
	sums    [2]struct{ raw, out int } // of the compressor, of the model
}

const (
	tryOther = 16      // streams, of which one goes the other way
	wayMind  = 1 << 20 // raw bytes that are remembered
)

func (c *wayChoice) model() bool {
	z, m := &c.sums[0], &c.sums[1]
	better := m.out*z.raw <= z.out*m.raw
	c.streams++
	return better != (c.streams%tryOther == 2)
}

func (c *wayChoice) came(modelled bool, raw, out int) {
	s := &c.sums[0]
	if modelled {
		s = &c.sums[1]
	}
	s.raw += raw
	s.out += out
	if s.raw > wayMind {
		s.raw /= 2
		s.out /= 2
	}
}

// StreamDecoder reads records in the order in which they were made. It keeps
// its buffers: not for use by several goroutines at once.
type StreamDecoder struct {
	streamState
	z        *zstd.Decoder
	in       source
	bits     bitCoder
	raw      []byte
	begun    bool
	modelled bool // the stream
}

// source is what the decompressor reads: the record at hand.
type source struct{ b []byte }

func (s *source) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

// NewStreamDecoder is a decoder that waits for the beginning of a stream.
func NewStreamDecoder() (*StreamDecoder, error) {
	z, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(streamWindow))
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	return &StreamDecoder{z: z}, nil
}

// Close frees the decoder; it must not be used afterwards.
func (d *StreamDecoder) Close() { d.z.Close() }

// Decode reads the next record into a block, whose memory is used again. After
// an error into is empty, and so it is for every record up to the next that
// begins a stream: they are all *CorruptError, or *UnsupportedError.
func (d *StreamDecoder) Decode(record []byte, into *Block) error {
	into.reset(d.session)
	err := d.decode(record, into)
	if err != nil {
		d.begun = false
		into.reset(d.session)
	}
	return err
}

func (d *StreamDecoder) decode(record []byte, into *Block) error {
	corrupt := func(at int, reason string) error {
		return &CorruptError{Session: d.session, Part: "record", At: at, Reason: reason}
	}
	s := scanner{b: record}
	kind := s.byte()
	if begins := kind&recordBegins != 0; begins && kind&StreamRecord != 0 {
		var session moldcast.Session
		copy(session[:], s.bytes(uint64(len(session))))
		d.begin(session)
		into.reset(session)
	} else if !d.begun {
		return corrupt(0, "what came before it in its stream is damaged or missing")
	}
	end := len(record) - recordCRC
	if end < s.at || s.reason != "" {
		return corrupt(len(record), "cut short")
	}
	sum := crcAdd(d.crc, record[:end])
	if sum != binary.BigEndian.Uint32(record[end:]) {
		return corrupt(end, "checksum does not match, or not what came before")
	}
	if kind&^recordFlags != StreamRecord {
		return &UnsupportedError{What: "kind of record", Value: int(kind)}
	}
	d.crc = sum
	s.b = record[:end]
	modelled := kind&recordModelled != 0
	n := s.uvarint()
	switch {
	case s.reason != "":
		return corrupt(s.bad, s.reason)
	case modelled != d.modelled && kind&recordBegins == 0:
		return corrupt(0, "not of the kind of its stream")
	case n > maxRecordRaw || modelled && n > maxModelRaw:
		return corrupt(s.at, "larger than any record")
	}
	d.modelled = modelled
	if modelled {
		if kind&recordBegins != 0 {
			d.model.begin()
		}
		d.bits.decode(record[s.at:end])
		d.raw = slices.Grow(d.raw[:0], int(n))[:n]
		if !d.model.code(&d.bits, d.raw) {
			return corrupt(s.at, "not of the form of a record")
		}
	} else {
		d.in.b = record[s.at:end]
		if kind&recordBegins != 0 {
			if err := d.z.Reset(&d.in); err != nil {
				return fmt.Errorf("block: %w", err)
			}
		}
		if err := d.unpack(int(n)); err != nil || len(d.in.b) > 0 {
			return corrupt(s.at, "does not decompress to its length")
		}
	}
	d.begun = true
	if at, reason := d.parse(into); reason != "" {
		return corrupt(at, reason)
	}
	return nil
}

// unpack decompresses n bytes into raw, whose memory grows with what comes.
func (d *StreamDecoder) unpack(n int) error {
	d.raw = d.raw[:0]
	for step := streamLimit; len(d.raw) < n; step *= 2 {
		at := len(d.raw)
		d.raw = append(d.raw, make([]byte, min(n-at, step))...)
		if _, err := io.ReadFull(d.z, d.raw[at:]); err != nil {
			return err
		}
	}
	return nil
}

// parse reads the raw form of a record, and moves the state on. It answers
// with what is wrong, and where.
func (d *StreamDecoder) parse(b *Block) (at int, reason string) {
	s := scanner{b: d.raw}
	var h Header
	section := func(read func(in *scanner)) {
		n := s.uvarint()
		in := scanner{b: s.bytes(n)}
		if n > 0 && s.reason == "" {
			read(&in)
			in.end()
			if in.reason != "" {
				s.at -= len(in.b) - in.bad
				s.fail(in.reason)
			}
		}
	}
	section(func(in *scanner) { h.Packets = readPieces(in, b, d.next) })
	section(func(in *scanner) { readTimes(in, &h, b, d.time) })
	section(func(in *scanner) { readOrigins(in, &h, b) })
	if s.reason == "" && len(b.times) != h.Packets {
		s.fail("pieces without times")
	}
	if s.reason != "" {
		return s.bad, s.reason
	}
	d.took(b)
	section(func(in *scanner) {
		if n := in.uvarint(); n == 0 || n > MaxMarks {
			in.fail("number of marks")
		} else {
			h.Marks = int(n)
		}
		readMarks(in, &h, b, d.next, d.time)
	})
	if s.reason == "" && len(s.b)-s.at > MaxRaw {
		s.fail("more rows than in any record")
	}
	if s.reason == "" {
		b.rows = append(b.rows, s.b[s.at:]...)
		s.reason, s.bad = b.index()
	}
	return s.bad, s.reason
}

// readPieces reads boundaries that no header vouches for, the first counted
// from next. It answers with the number of pieces.
func readPieces(s *scanner, b *Block, next moldcast.Seq) (pieces int) {
	runs := s.uvarint()
	if runs == 0 || runs > uint64(len(s.b)) {
		s.fail("number of runs")
	}
	for i := uint64(0); i < runs && s.reason == ""; i++ {
		first := next + moldcast.Seq(s.uvarint())
		n := s.uvarint()
		if first == 0 || i > 0 && first <= next || n == 0 || n > uint64(MaxPieces-pieces) {
			s.fail("run of no messages, or not behind the one before")
		}
		pieces += int(n)
		for next = first; n > 0 && s.reason == ""; n-- {
			k := s.uvarint()
			if k == 0 || k > uint64(MaxRaw/moldcast.LengthSize-b.msgs) || k > math.MaxUint64-uint64(next) {
				s.fail("piece of no messages, or of too many")
				break
			}
			b.addRange(next, int(k))
			next += moldcast.Seq(k)
		}
	}
	return pieces
}
