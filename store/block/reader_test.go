package block

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/moldtape/moldtape/moldcast"
)

// secondReader reads a block by the text of the package documentation alone:
// it shares no code with the codec, takes everything on trust that it does
// not need, and is as plain as can be. That it agrees with the Decoder shows
// that the documentation is the format.
type secondReader struct {
	t    testing.TB
	zstd *zstd.Decoder
	b    []byte // what is left of the part that is being read
	log  *secondLog
}

func newSecondReader(t testing.TB) *secondReader {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Close)
	return &secondReader{t: t, zstd: z}
}

func (r *secondReader) take(n int) []byte {
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}
func (r *secondReader) u8() int     { return int(r.take(1)[0]) }
func (r *secondReader) u16() int    { return int(binary.BigEndian.Uint16(r.take(2))) }
func (r *secondReader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *secondReader) uv() (v uint64) {
	for shift := 0; ; shift += 7 {
		c := r.take(1)[0]
		v |= uint64(c&0x7F) << shift
		if c < 0x80 {
			return v
		}
	}
}

func (r *secondReader) sv() int64 {
	u := r.uv()
	if u%2 == 1 {
		return -int64(u/2) - 1
	}
	return int64(u / 2)
}

func (r *secondReader) sum(b []byte) uint32 {
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

type secondRun struct {
	First, Messages  uint64
	Min, Max         int64
	Live             bool
	LiveFrom, LiveTo int64
}

func (r *secondReader) read(header, body []byte) (runs []secondRun, pieces []flat, marks []moldcast.Mark) {
	t := r.t
	if r.sum(header[:len(header)-4]) != binary.BigEndian.Uint32(header[len(header)-4:]) {
		t.Fatal("second reader: checksum of the header")
	}
	r.b = header[:len(header)-4]
	if string(r.take(4)) != "MTbk" || r.u8() != 1 {
		t.Fatal("second reader: magic or version")
	}
	r.take(1 + 1 + 1 + 10)
	rowBytes, bodyBytes, bodySum := r.u32(), r.u32(), r.u32()
	rows, facts := r.take(32), r.take(32)
	nPieces, nMarks := r.u32(), r.u32()
	if int(bodyBytes) != len(body) || bodySum != r.sum(body) {
		t.Fatal("second reader: length or checksum of the body")
	}
	var next uint64
	var at int64
	for n := r.uv(); n > 0; n-- {
		var run secondRun
		run.First = next + r.uv()
		run.Messages = r.uv()
		run.Min = at + r.sv()
		run.Max = run.Min + int64(r.uv())
		if r.u8() == 1 {
			run.Live = true
			run.LiveFrom = run.Min + int64(r.uv())
			run.LiveTo = run.Min + int64(r.uv())
		}
		next, at = run.First+run.Messages, run.Max
		runs = append(runs, run)
	}
	if nMarks > 0 {
		r.uv()
		r.uv()
		if r.u8() == 1 {
			r.uv()
		}
	}
	r.log = nil
	for n := r.uv(); n > 0; n-- {
		id := r.uv()
		if r.u8()&1 == 1 {
			t.Fatal("second reader: required field")
		}
		if field := r.take(int(r.uv())); id == 1 {
			r.log = &secondLog{field: field}
		}
	}
	if len(r.b) != 0 {
		t.Fatal("second reader: header fields")
	}

	section := map[int][]byte{}
	factSum := sha256.New()
	for len(body) > 0 {
		r.b = body
		tag := r.u16()
		flags := r.u8()
		codec, raw, stored, sum := r.u8(), r.u32(), r.u32(), r.u32()
		data := r.take(int(stored))
		if r.sum(append(bytes.Clone(body[:12]), data...)) != sum {
			t.Fatalf("second reader: checksum of section %d", tag)
		}
		body = r.b
		if tag > 6 || tag == 6 && r.log == nil {
			if flags&1 == 1 {
				t.Fatalf("second reader: required section %d", tag)
			}
			continue
		}
		if codec == 1 {
			var err error
			if data, err = r.zstd.DecodeAll(data, nil); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case codec >= 2 && codec <= 4 && tag == 1:
			data = r.columns(data, int(raw))
		case codec == 5 && tag == 3:
			data = r.lagged(data, section[1], section[2])
		}
		if len(data) != int(raw) {
			t.Fatalf("second reader: length of section %d", tag)
		}
		if tag == 6 {
			r.log.data = data
			continue
		}
		section[tag] = data
		if tag >= 2 {
			factSum.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, uint16(tag)), raw))
			factSum.Write(data)
		}
	}
	if !bytes.Equal(factSum.Sum(nil), facts) || int(rowBytes) != len(section[1]) {
		t.Fatal("second reader: hash of the facts or length of the rows")
	}

	rowSum := sha256.New()
	if r.b = section[2]; len(r.b) > 0 {
		payload := section[1]
		next = 0
		for n := r.uv(); n > 0; n-- {
			first := next + r.uv()
			next = first
			var run []byte
			for k := r.uv(); k > 0; k-- {
				p := flat{First: moldcast.Seq(next), N: int(r.uv())}
				size := 0
				for range p.N {
					size += 2 + int(binary.BigEndian.Uint16(payload[size:]))
				}
				p.Framed, payload = string(payload[:size]), payload[size:]
				run = append(run, p.Framed...)
				next += uint64(p.N)
				pieces = append(pieces, p)
			}
			rowSum.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, first), next))
			rowSum.Write(run)
		}
	}
	if !bytes.Equal(rowSum.Sum(nil), rows) || int(nPieces) != len(pieces) {
		t.Fatal("second reader: hash of the rows or count of the pieces")
	}
	if r.b = section[3]; len(r.b) > 0 {
		unit := map[int]int64{0: 1, 3: 1e3, 6: 1e6, 9: 1e9}[r.u8()]
		var at int64
		for i := range pieces {
			at += r.sv()
			pieces[i].Time = moldcast.Stamp(at * unit)
			pieces[i].Heard = pieces[i].Time
		}
		i := 0
		for n := r.uv(); n > 0; n-- {
			i += int(r.uv())
			pieces[i].Heard = pieces[i].Time + moldcast.Stamp(r.sv()*unit)
			i++
		}
	}
	for r.b, next = section[4], 0; len(r.b) > 0; {
		line, flags := uint8(r.u8()), moldcast.PieceFlags(r.u8())
		for n := r.uv(); n > 0; n-- {
			pieces[next].Line, pieces[next].Flags = line, flags
			next++
		}
	}
	var seq uint64
	var stamp int64
	for r.b = section[5]; len(r.b) > 0; {
		kind, line := moldcast.Kind(r.u8()), uint8(r.u8())
		seq += uint64(r.sv())
		stamp += r.sv()
		marks = append(marks, moldcast.Mark{Kind: kind, Next: moldcast.Seq(seq), Stamp: moldcast.Stamp(stamp), Line: line})
	}
	if int(nMarks) != len(marks) {
		t.Fatal("second reader: count of the marks")
	}
	return runs, pieces, marks
}

// agree wants the second reader to read what the header and block say.
func (r *secondReader) agree(header, body []byte, h Header, b *Block) {
	r.t.Helper()
	runs, pieces, marks := r.read(header, body)
	var want []secondRun
	for i, run := range h.Runs {
		t := h.Times[i]
		want = append(want, secondRun{uint64(run.First), run.Len(), int64(t.Min), int64(t.Max), t.Live, int64(t.First), int64(t.Last)})
	}
	if diff := cmp.Diff(want, runs); diff != "" {
		r.t.Error("second reader: runs: ", diff)
	}
	if diff := cmp.Diff(blockPieces(b), pieces); diff != "" {
		r.t.Error("second reader: pieces: ", diff)
	}
	if diff := cmp.Diff(append([]moldcast.Mark(nil), b.Marks()...), marks); diff != "" {
		r.t.Error("second reader: marks: ", diff)
	}
	r.agreeLog(pieces, b)
}
