package retransmit

import (
	"errors"
	"io"
	"sync"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// Snapshots is a Recording with which snapshots of an application's state are
// stored. One that has no such method has none.
type Snapshots interface {
	// Snapshot opens the newest snapshot at or before q, 0: the newest, of those
	// that the messages of the recording reach, and from which on none was pruned.
	// It may read a disk. The errors are ErrNoSnapshot, or a failure to read.
	Snapshot(q moldcast.Seq) (Snapshot, error)
}

// Snapshot is one that is being read, by one goroutine at a time.
type Snapshot interface {
	Seq() moldcast.Seq // the state is that after all messages below
	Size() uint64      // bytes
	Sum() [32]byte     // SHA-256 of them
	// Next appends the next bytes, soup.MaxSnapshotData at most; io.EOF: there
	// are no more. Any other error is damage, or a failure to read.
	Next(dst []byte) ([]byte, error)
	Close() error
}

// ErrNoSnapshot: none to begin with.
var ErrNoSnapshot = errors.New("retransmit: no snapshot")

// sending is the snapshot that a reader is being sent, a piece at a time: it is
// read in line, as messages are, once the piece before is on its way.
type sending struct {
	mu   sync.Mutex // held while a piece is read
	snap Snapshot
	gone bool

	// Of the reader.
	at    uint64
	piece *piece // that is being read; nil: none is
}

type piece struct {
	done chan struct{}
	b    []byte
	err  error
}

// read is called in line.
func (s *sending) read(p *piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.err = io.ErrClosedPipe; !s.gone {
		p.b, p.err = s.snap.Next(nil)
	}
	close(p.done)
}

func (s *sending) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.gone = true
		s.snap.Close()
	}
}

// begin finds what a login begins with that asks for a snapshot.
func (f *found) begin(w *wire, q moldcast.Seq) {
	f.asked = true
	err := ErrNoSnapshot
	if has, ok := f.rec.(Snapshots); ok {
		var snap Snapshot
		if snap, err = has.Snapshot(q); err == nil {
			f.snap = &sending{snap: snap}
			f.first = snap.Seq()
			return
		}
	}
	if !errors.Is(err, ErrNoSnapshot) {
		f.err = err
		return
	}
	f.first = w.first(f.rec, 1)
}

// hand gives f to the reader, which may have left.
func (r *reader) hand(f found, to chan found) {
	to <- f
	select {
	case <-r.done:
		takeBack(to)
	default:
	}
}

// takeBack closes the snapshot of a login that nobody will accept.
func takeBack(from chan found) {
	select {
	case f := <-from:
		if f.snap != nil {
			f.snap.close()
		}
	default:
	}
}

// announce says with which snapshot the stream begins.
func (r *reader) announce(f found) {
	switch {
	case f.snap != nil:
		r.snap = f.snap
		r.m.Snapshot(soup.SnapshotPacket{Kind: soup.SnapshotBegin, Seq: f.first, Size: f.snap.snap.Size(), Sum: f.snap.snap.Sum()})
	case f.asked:
		r.m.Snapshot(soup.SnapshotPacket{Kind: soup.SnapshotNone})
	}
}

// nextPiece has the next piece sent, or tells when it is read; nil: what is
// pending says how it went.
func (r *reader) nextPiece() (wake <-chan struct{}) {
	s := r.snap
	if s.piece == nil {
		p := &piece{done: make(chan struct{})}
		s.piece = p
		r.s.line.put(func() { s.read(p) })
	}
	p := s.piece
	select {
	case <-p.done:
	default:
		r.show(ReaderHistory)
		return p.done
	}
	s.piece = nil
	switch p.err {
	case nil:
		r.m.Snapshot(soup.SnapshotPacket{Kind: soup.SnapshotData, At: s.at, Data: p.b})
		s.at += uint64(len(p.b))
		r.s.bytes.Add(uint64(len(p.b)))
	case io.EOF:
		r.m.Snapshot(soup.SnapshotPacket{Kind: soup.SnapshotEnd, Size: s.at})
		r.endSnapshot()
	default:
		if r.s.maySay(StreamFailed) {
			r.s.cfg.Log.Error("a snapshot cannot be read for the recovery stream", "session", r.session, "seq", r.m.Next(), "error", p.err)
		}
		r.close(StreamFailed, "the snapshot cannot be read; log in again for the one before")
	}
	return nil
}

func (r *reader) endSnapshot() {
	if r.snap != nil {
		r.snap.close()
		r.snap = nil
	}
}
