package block

import (
	"unsafe"

	"github.com/moldtape/moldtape/moldcast"
)

// Block is a decoded block. It does not change until a Decoder, or Freeze,
// is given it again: any number of readers may share it until then, and what
// it returned is valid until then. The zero value is an empty block.
//
// In memory it takes its rows and about 16 bytes a piece.
type Block struct {
	session moldcast.Session
	runs    []moldcast.Range
	runOrd  []uint32 // ordinal of the first message of each run
	ords    []uint32 // ordinal of the first message of each piece, then the count of all
	ats     []uint32 // where it lies in rows, then len(rows)
	times   []moldcast.Stamp
	lines   []uint8               // of each piece; empty where all are line 0
	flags   []moldcast.PieceFlags // of each piece; empty where all are 0
	odd     []uint32              // pieces whose heard differs from their time
	heard   []moldcast.Stamp      // theirs
	marks   []moldcast.Mark
	log     []logPart // where it was asked for
	rows    []byte
	every   []uint32 // where each stride-th message lies in rows
	msgs    int
}

// stride is how many message blocks a lookup walks over at most.
const stride = 16

func (b *Block) reset(s moldcast.Session) {
	b.session = s
	b.runs, b.runOrd = b.runs[:0], b.runOrd[:0]
	b.ords, b.ats, b.times = b.ords[:0], b.ats[:0], b.times[:0]
	b.lines, b.flags = b.lines[:0], b.flags[:0]
	b.odd, b.heard = b.odd[:0], b.heard[:0]
	b.marks, b.rows, b.every = b.marks[:0], b.rows[:0], b.every[:0]
	b.log = b.log[:0]
	b.msgs = 0
}

// addPiece adds a piece that lies behind all others.
func (b *Block) addPiece(first moldcast.Seq, n int, time, heard moldcast.Stamp, line uint8, flags moldcast.PieceFlags) {
	i := len(b.ords)
	b.addRange(first, n)
	b.times = append(b.times, time)
	if heard != time {
		b.odd = append(b.odd, uint32(i))
		b.heard = append(b.heard, heard)
	}
	if line != 0 || len(b.lines) > 0 {
		b.lines = extend(b.lines, i)
		b.lines = append(b.lines, line)
	}
	if flags != 0 || len(b.flags) > 0 {
		b.flags = extend(b.flags, i)
		b.flags = append(b.flags, flags)
	}
}

// extend makes b n long, with zeros.
func extend[T ~uint8](b []T, n int) []T {
	for len(b) < n {
		b = append(b, 0)
	}
	return b
}

// addRange adds the sequences of a piece that lies behind all others.
func (b *Block) addRange(first moldcast.Seq, n int) {
	next := first + moldcast.Seq(n)
	if k := len(b.runs); k > 0 && b.runs[k-1].Next == first {
		b.runs[k-1].Next = next
	} else {
		b.runs = append(b.runs, moldcast.Range{First: first, Next: next})
		b.runOrd = append(b.runOrd, uint32(b.msgs))
	}
	b.ords = append(b.ords, uint32(b.msgs))
	b.msgs += n
}

// index checks the framing of the rows and finds where each piece lies in
// them. It answers with what is wrong, and where.
func (b *Block) index() (reason string, at int) {
	b.ats, b.every = b.ats[:0], b.every[:0]
	rows := b.rows
	k := 0
	for i := range b.ords {
		b.ats = append(b.ats, uint32(at))
		end := b.msgs
		if i+1 < len(b.ords) {
			end = int(b.ords[i+1])
		}
		for ; k < end; k++ {
			if k%stride == 0 {
				b.every = append(b.every, uint32(at))
			}
			if len(rows)-at < moldcast.LengthSize {
				return "rows end before the messages do", at
			}
			if at += frame(rows, at); at > len(rows) {
				return "message runs beyond the rows", at
			}
		}
	}
	if at != len(rows) {
		return "rows go on behind the last message", at
	}
	if len(b.ords) > 0 {
		b.ords = append(b.ords, uint32(b.msgs))
		b.ats = append(b.ats, uint32(at))
	}
	return "", 0
}

// Session is the session whose messages b holds.
func (b *Block) Session() moldcast.Session { return b.session }

// Runs is the coverage of b: sorted ranges with holes between. Read only.
func (b *Block) Runs() []moldcast.Range { return b.runs }

// Range is from the first message to one past the last, holes included; zero
// when there is none.
func (b *Block) Range() moldcast.Range {
	if len(b.runs) == 0 {
		return moldcast.Range{}
	}
	return moldcast.Range{First: b.runs[0].First, Next: b.runs[len(b.runs)-1].Next}
}

// Count is the number of messages.
func (b *Block) Count() int { return b.msgs }

// Pieces is the number of pieces.
func (b *Block) Pieces() int { return len(b.times) }

// Marks is the heartbeats and ends of b in the order of their arrival. Read
// only.
func (b *Block) Marks() []moldcast.Mark { return b.marks }

// Rows is all messages of b in the order of their sequences, framed. Read
// only.
func (b *Block) Rows() []byte { return b.rows }

// Size is the memory that b holds, in bytes, whatever part of it is in use.
func (b *Block) Size() int {
	log := 0
	for _, p := range b.log[:cap(b.log)] {
		log += int(unsafe.Sizeof(p))
		for _, l := range p.lines[:cap(p.lines)] {
			log += int(unsafe.Sizeof(moldcast.Heard{})) * cap(l)
		}
	}
	return int(unsafe.Sizeof(*b)) + log + cap(b.rows) +
		16*cap(b.runs) + 4*(cap(b.runOrd)+cap(b.ords)+cap(b.ats)+cap(b.odd)+cap(b.every)) +
		8*(cap(b.times)+cap(b.heard)) + cap(b.lines) + cap(b.flags) +
		int(unsafe.Sizeof(moldcast.Mark{}))*cap(b.marks)
}

// run is the index of the first run that ends beyond first.
func (b *Block) run(first moldcast.Seq) int {
	lo, hi := 0, len(b.runs)
	for lo < hi {
		if m := (lo + hi) / 2; b.runs[m].Next > first {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// last is the index of the last element of s that is at most v; s[0] <= v.
func last(s []uint32, v uint32) int {
	lo, hi := 1, len(s)
	for lo < hi {
		if m := (lo + hi) / 2; s[m] > v {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo - 1
}

// Messages is up to count messages from first on that take up to size bytes
// framed; fewer where a hole or the end of the block follows. It is false
// where first is not held, and true with no messages where the first alone
// exceeds size.
func (b *Block) Messages(first moldcast.Seq, count, size int) (moldcast.Messages, bool) {
	r := b.run(first)
	if r == len(b.runs) || b.runs[r].First > first {
		return moldcast.Messages{}, false
	}
	left := b.runs[r].Next - first
	k := int(b.runOrd[r]) + int(first-b.runs[r].First)
	at := int(b.every[k/stride])
	for range k % stride {
		at += frame(b.rows, at)
	}
	if moldcast.Seq(count) > left && count > 0 {
		count = int(left)
	}
	start, n := at, 0
	for n < count {
		f := frame(b.rows, at)
		if at+f-start > size {
			break
		}
		at += f
		n++
	}
	return moldcast.MessagesOf(b.rows[start:at:at], n), true
}

// Find is the index of the piece that holds first, or else of the first piece
// beyond it (Pieces when there is none), and whether it holds it.
func (b *Block) Find(first moldcast.Seq) (i int, held bool) {
	r := b.run(first)
	if r == len(b.runs) {
		return b.Pieces(), false
	}
	ord := b.runOrd[r]
	if held = b.runs[r].First <= first; held {
		ord += uint32(first - b.runs[r].First)
	}
	return last(b.ords, ord), held
}

// PieceAt is the i-th piece by sequence, 0 <= i < Pieces.
func (b *Block) PieceAt(i int) moldcast.Piece {
	ord := b.ords[i]
	r := last(b.runOrd, ord)
	at, end := b.ats[i], b.ats[i+1]
	p := moldcast.Piece{
		First: b.runs[r].First + moldcast.Seq(ord-b.runOrd[r]),
		Msgs:  moldcast.MessagesOf(b.rows[at:end:end], int(b.ords[i+1]-ord)),
		Time:  b.times[i],
	}
	p.Heard = p.Time
	if len(b.odd) > 0 {
		if k := last(b.odd, uint32(i)); b.odd[k] == uint32(i) {
			p.Heard = b.heard[k]
		}
	}
	if len(b.lines) > 0 {
		p.Line = b.lines[i]
	}
	if len(b.flags) > 0 {
		p.Flags = b.flags[i]
	}
	return p
}

// PiecesFrom calls fn for the pieces of b in sequence order, from the message
// first on (a piece that begins before it is cut), until fn returns false.
func (b *Block) PiecesFrom(first moldcast.Seq, fn func(moldcast.Piece) bool) {
	i, _ := b.Find(first)
	for ; i < b.Pieces(); i++ {
		p := b.PieceAt(i)
		if p.First < first {
			_, p.Msgs = p.Msgs.Split(int(first - p.First))
			p.First = first
		}
		if !fn(p) {
			return
		}
	}
}

// SeqAt is the first message, by sequence, whose Time is at or after t.
func (b *Block) SeqAt(t moldcast.Stamp) (moldcast.Seq, bool) {
	for i, u := range b.times {
		if u >= t {
			return b.PieceAt(i).First, true
		}
	}
	return 0, false
}

// runTimes appends the times of each run to dst.
func (b *Block) runTimes(dst []RunTimes) []RunTimes {
	i := 0
	for r := range b.runs {
		end := uint32(b.msgs)
		if r+1 < len(b.runs) {
			end = b.runOrd[r+1]
		}
		t := RunTimes{Min: b.times[i], Max: b.times[i]}
		for ; i < len(b.times) && b.ords[i] < end; i++ {
			u := b.times[i]
			t.Min, t.Max = min(t.Min, u), max(t.Max, u)
			if len(b.flags) == 0 || b.flags[i]&moldcast.Repaired == 0 {
				if !t.Live {
					t.Live, t.First = true, u
				}
				t.Last = u
			}
		}
		dst = append(dst, t)
	}
	return dst
}
