package block

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/moldtape/moldtape/moldcast"
)

// RunTimes are the times of the messages of one run.
type RunTimes struct {
	Min, Max moldcast.Stamp

	// First and Last are the times of the first and last message that was
	// heard live, not repaired, when Live is set: what a repaired
	// neighbour's time is interpolated from.
	First, Last moldcast.Stamp
	Live        bool
}

// Header is what an archive knows of a block without its body.
type Header struct {
	Session moldcast.Session
	Patch   bool  // the block replaces a damaged one, and may overlap others
	Codec   Codec // of the payload

	Runs     []moldcast.Range // sorted, not empty, with a hole before each but the first
	Times    []RunTimes       // of each run
	Messages int
	Packets  int // pieces
	MinTime  moldcast.Stamp
	MaxTime  moldcast.Stamp // both 0 without messages

	Marks   int
	MarkMin moldcast.Seq // lowest and highest sequence that a mark carried; 0 without marks
	MarkMax moldcast.Seq
	Ended   bool         // an End of Session is among the marks
	End     moldcast.Seq // sequence of the last one, when Ended

	Log *LogInfo // of the line log; nil: there is none

	RawLen    int    // bytes of rows
	StoredLen int    // bytes of the body
	BodyCRC   uint32 // crc32c of the body

	Rows  [32]byte // SHA-256 of the messages in canonical row form
	Facts [32]byte // SHA-256 of boundaries, times, origins and marks
}

// Range is from the first message of h to one past its last, holes included;
// zero without messages.
func (h *Header) Range() moldcast.Range {
	if len(h.Runs) == 0 {
		return moldcast.Range{}
	}
	return moldcast.Range{First: h.Runs[0].First, Next: h.Runs[len(h.Runs)-1].Next}
}

// First is the sequence of the first message, or of a block without messages
// the lowest sequence of a mark: where the block belongs among others.
func (h *Header) First() moldcast.Seq {
	if len(h.Runs) == 0 {
		return h.MarkMin
	}
	return h.Runs[0].First
}

// Digest identifies the content of a block, whatever its codec: SHA-256 over
// session, Rows and Facts. It is what a chain of custody is made over.
func (h *Header) Digest() [32]byte {
	var b [moldcast.SessionSize + 64]byte
	copy(b[:], h.Session[:])
	copy(b[moldcast.SessionSize:], h.Rows[:])
	copy(b[moldcast.SessionSize+32:], h.Facts[:])
	return sha256.Sum256(b[:])
}

const (
	headerFixed = 4 + 4 + moldcast.SessionSize + 3*4 + 2*32 + 2*4
	headerMin   = headerFixed + 2 + 4
)

// Append appends the stored form of h. Messages, MinTime and MaxTime are not
// looked at: they follow from Runs and Times.
func (h *Header) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, magic...)
	var flags byte
	if h.Patch {
		flags |= flagPatch
	}
	dst = append(dst, version, flags, byte(h.Codec), 0)
	dst = append(dst, h.Session[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.RawLen))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.StoredLen))
	dst = binary.BigEndian.AppendUint32(dst, h.BodyCRC)
	dst = append(dst, h.Rows[:]...)
	dst = append(dst, h.Facts[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Packets))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Marks))

	dst = binary.AppendUvarint(dst, uint64(len(h.Runs)))
	var next moldcast.Seq
	var at moldcast.Stamp
	for i, r := range h.Runs {
		t := h.Times[i]
		dst = binary.AppendUvarint(dst, uint64(r.First-next))
		dst = binary.AppendUvarint(dst, uint64(r.Next-r.First))
		dst = binary.AppendVarint(dst, int64(t.Min-at))
		dst = binary.AppendUvarint(dst, uint64(t.Max-t.Min))
		if t.Live {
			dst = append(dst, 1)
			dst = binary.AppendUvarint(dst, uint64(t.First-t.Min))
			dst = binary.AppendUvarint(dst, uint64(t.Last-t.Min))
		} else {
			dst = append(dst, 0)
		}
		next, at = r.Next, t.Max
	}
	if h.Marks > 0 {
		dst = binary.AppendUvarint(dst, uint64(h.MarkMin))
		dst = binary.AppendUvarint(dst, uint64(h.MarkMax-h.MarkMin))
		if h.Ended {
			dst = append(dst, 1)
			dst = binary.AppendUvarint(dst, uint64(h.End))
		} else {
			dst = append(dst, 0)
		}
	}
	if h.Log == nil {
		dst = append(dst, 0) // no further fields
	} else {
		field := h.Log.appendField(nil)
		dst = append(dst, 1, fieldLog, 0)
		dst = binary.AppendUvarint(dst, uint64(len(field)))
		dst = append(dst, field...)
	}
	return binary.BigEndian.AppendUint32(dst, crc(dst[start:]))
}

// ParseHeader reads the stored form of a header; b is exactly one. The result
// does not alias b. Errors: *CorruptError, *UnsupportedError.
func ParseHeader(b []byte) (Header, error) {
	bad := func(at int, reason string) (Header, error) {
		return Header{}, &CorruptError{Part: "header", At: at, Reason: reason}
	}
	switch {
	case len(b) < headerMin:
		return bad(len(b), "cut short")
	case len(b) > MaxHeader:
		return bad(MaxHeader, "too long")
	case string(b[:4]) != magic:
		return bad(0, "no block header")
	}
	body := b[:len(b)-4]
	if crc(body) != binary.BigEndian.Uint32(b[len(body):]) {
		return bad(len(body), "checksum does not match")
	}
	if b[4] != version {
		return Header{}, &UnsupportedError{What: "version", Value: int(b[4])}
	}
	if u := b[5] &^ (flagPatch | flagsOptional); u != 0 {
		return Header{}, &UnsupportedError{What: "header flag", Value: int(u)}
	}
	if b[7] != 0 {
		return bad(7, "reserved byte is not 0")
	}
	var h Header
	h.Patch = b[5]&flagPatch != 0
	h.Codec = Codec(b[6])
	copy(h.Session[:], b[8:])
	f := b[8+moldcast.SessionSize:]
	raw := binary.BigEndian.Uint32(f)
	stored := binary.BigEndian.Uint32(f[4:])
	h.BodyCRC = binary.BigEndian.Uint32(f[8:])
	copy(h.Rows[:], f[12:])
	copy(h.Facts[:], f[44:])
	pieces := binary.BigEndian.Uint32(f[76:])
	marks := binary.BigEndian.Uint32(f[80:])
	if raw > MaxRaw || stored > MaxStored || pieces > MaxPieces || marks > MaxMarks {
		return bad(8+moldcast.SessionSize, "sizes beyond the limits of the format")
	}
	h.RawLen, h.StoredLen, h.Packets, h.Marks = int(raw), int(stored), int(pieces), int(marks)

	s := scanner{b: body, at: headerFixed}
	if n := s.uvarint(); n > uint64(pieces) || n > uint64(len(body)-s.at) {
		s.fail("more runs than pieces")
	} else if n > 0 {
		h.Runs = make([]moldcast.Range, 0, min(n, uint64(len(body)-s.at)/minRunSize+1))
		h.Times = make([]RunTimes, 0, cap(h.Runs))
		h.readRuns(&s, int(n))
	}
	if marks > 0 && s.reason == "" {
		h.readMarks(&s)
	}
	if s.reason == "" {
		if v := h.readFields(&s); v != nil {
			return Header{}, v
		}
	}
	if s.end(); s.reason != "" {
		return bad(s.bad, s.reason)
	}
	switch {
	case h.Messages < h.Packets, (h.Packets == 0) != (len(h.Runs) == 0):
		return bad(headerFixed, "counts of messages and pieces do not fit")
	case h.Messages*moldcast.LengthSize > h.RawLen, h.Messages == 0 && h.RawLen != 0:
		return bad(headerFixed, "count of messages does not fit the length of the rows")
	}
	return h, nil
}

// minRunSize is the least a run takes in a header.
const minRunSize = 5

func (h *Header) readRuns(s *scanner, n int) {
	var next moldcast.Seq
	var at moldcast.Stamp
	var total uint64
	for i := range n {
		gap, size := s.uvarint(), s.uvarint()
		first := next + moldcast.Seq(gap)
		switch {
		case s.reason != "":
			return
		case gap == 0, first < next, size == 0, size > uint64(^first):
			s.fail("runs are not in order")
			return
		}
		if total += size; total > MaxRaw {
			s.fail("more messages than bytes")
			return
		}
		var t RunTimes
		t.Min = at + moldcast.Stamp(s.varint())
		span := s.uvarint()
		t.Max = t.Min + moldcast.Stamp(span)
		if t.Max < t.Min {
			s.fail("times run backwards")
		}
		switch s.byte() {
		case 0:
		case 1:
			a, z := s.uvarint(), s.uvarint()
			if a > span || z > span {
				s.fail("live times outside the run's")
			}
			t.Live, t.First, t.Last = true, t.Min+moldcast.Stamp(a), t.Min+moldcast.Stamp(z)
		default:
			s.fail("live is neither 0 nor 1")
		}
		if s.reason != "" {
			return
		}
		next, at = first+moldcast.Seq(size), t.Max
		h.Runs = append(h.Runs, moldcast.Range{First: first, Next: next})
		h.Times = append(h.Times, t)
		if i == 0 {
			h.MinTime, h.MaxTime = t.Min, t.Max
		}
		h.MinTime, h.MaxTime = min(h.MinTime, t.Min), max(h.MaxTime, t.Max)
	}
	h.Messages = int(total)
}

// setMarks sets what the header says of marks.
func (h *Header) setMarks(marks []moldcast.Mark) {
	h.Marks = len(marks)
	for i, m := range marks {
		if i == 0 {
			h.MarkMin, h.MarkMax = m.Next, m.Next
		}
		h.MarkMin, h.MarkMax = min(h.MarkMin, m.Next), max(h.MarkMax, m.Next)
		if m.Kind == moldcast.End {
			h.Ended, h.End = true, m.Next
		}
	}
}

func (h *Header) readMarks(s *scanner) {
	h.MarkMin = moldcast.Seq(s.uvarint())
	h.MarkMax = h.MarkMin + moldcast.Seq(s.uvarint())
	switch s.byte() {
	case 0:
	case 1:
		h.Ended, h.End = true, moldcast.Seq(s.uvarint())
	default:
		s.fail("ended is neither 0 nor 1")
	}
	if s.reason == "" && (h.MarkMin == 0 || h.MarkMax < h.MarkMin || h.Ended && (h.End < h.MarkMin || h.End > h.MarkMax)) {
		s.fail("sequences of the marks do not fit")
	}
}

// readFields reads the further fields; it skips those that later versions may
// add.
func (h *Header) readFields(s *scanner) error {
	for n := s.uvarint(); n > 0 && s.reason == ""; n-- {
		id, flags := s.uvarint(), s.byte()
		b := s.bytes(s.uvarint())
		if s.reason == "" && id == fieldLog {
			var l LogInfo
			reason := "line log twice"
			if h.Log == nil {
				reason = l.read(b)
			}
			if h.Log = &l; reason != "" {
				s.fail(reason)
			}
			continue
		}
		if s.reason == "" && flags&fieldRequired != 0 {
			return &UnsupportedError{What: "header field", Value: int(id)}
		}
	}
	return nil
}
