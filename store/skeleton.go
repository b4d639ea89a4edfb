package store

import (
	"context"
	"errors"

	"github.com/moldtape/moldtape/moldcast"
)

var errNotYet = errors.New("not yet")

// Archive is an open archive: the directory, what it holds, and what its
// readers share. Its methods may be called from any goroutine.
type Archive struct{}

// Open opens an existing archive. Errors wrap ErrNotArchive or are *VersionError.
func Open(dir string, o Options) (*Archive, error) { return nil, errNotYet }

// Create makes an archive: dir must not exist or be empty. Errors wrap ErrExists.
func Create(dir string, o Options) (*Archive, error) { return nil, errNotYet }

// OpenOrCreate opens the archive at dir, or makes one where dir does not exist or is empty.
func OpenOrCreate(dir string, o Options) (*Archive, error) { return nil, errNotYet }

// Close closes what readers share. Writers must be closed before.
func (a *Archive) Close() error { return errNotYet }

// Sessions describes every recording, ordered by channel, session, take.
func (a *Archive) Sessions() ([]Info, error) { return nil, errNotYet }

// Show describes one recording in full.
func (a *Archive) Show(r Ref) (Detail, error) { return Detail{}, errNotYet }

// Find resolves CHANNEL/SESSION, SESSION, either with @TAKE; without it take 1.
func (a *Archive) Find(name string) (Ref, error) { return Ref{}, errNotYet }

// Latest finds the newest take of a session; ok is false when channel holds none.
func (a *Archive) Latest(channel string, s moldcast.Session) (r Ref, ok bool) { return Ref{}, false }

// Writer opens a session for writing.
func (a *Archive) Writer(channel string, s moldcast.Session, take int) (*Writer, error) {
	return nil, errNotYet
}

// View opens a session for reading.
func (a *Archive) View(r Ref) (*View, error) { return nil, errNotYet }

// Verify re-reads everything of the sessions named (none: all).
func (a *Archive) Verify(ctx context.Context, refs []Ref, progress func(Progress)) (Report, error) {
	return Report{}, errNotYet
}

// Progress is how far Verify has come.
type Progress struct{ Done, Total int }

// Report is what Verify found.
type Report struct {
	Sessions int     `json:"sessions"`
	Segments int     `json:"segments"`
	Blocks   int     `json:"blocks"`
	Messages uint64  `json:"messages"`
	Faults   []Fault `json:"faults"`
}

// Fault is one thing that is wrong.
type Fault struct {
	Session  string       `json:"session"`
	Segment  string       `json:"segment,omitempty"`
	FirstSeq moldcast.Seq `json:"first_seq,omitempty"` // with LastSeq: what is lost or in doubt
	LastSeq  moldcast.Seq `json:"last_seq,omitempty"`
	Problem  string       `json:"problem"`
}

// RunHash is the content hash of one run of coverage.
type RunHash struct {
	Range moldcast.Range
	Hash  [32]byte
}

// Root is the content hash of each run of coverage within r.
func Root(ctx context.Context, v *View, r moldcast.Range) ([]RunHash, error) { return nil, errNotYet }

// Writer writes one recording.
type Writer struct{}

// Ref names the recording.
func (w *Writer) Ref() Ref { return Ref{} }

// Held is what the session holds.
func (w *Writer) Held() moldcast.Held { return moldcast.Held{} }

// Start puts first on record as where the session begins, when it begins later so far.
func (w *Writer) Start(first moldcast.Seq) {}

// Append stores of p what is not held.
func (w *Writer) Append(p moldcast.Piece) (stored int, err error) { return 0, errNotYet }

// Compare compares m with what is stored from first on.
func (w *Writer) Compare(first moldcast.Seq, m moldcast.Messages) (conflictAt moldcast.Seq, differs bool, err error) {
	return 0, false, errNotYet
}

// Mark records a heartbeat or End of Session.
func (w *Writer) Mark(m moldcast.Mark) {}

// Hole puts a hole on record.
func (w *Writer) Hole(h moldcast.Hole) {}

// Lines records the groups of the lines.
func (w *Writer) Lines(groups []string) {}

// Watermarks: see the package doc.
func (w *Writer) Watermarks() (next, durable, head moldcast.Seq) { return 0, 0, 0 }

// Flush returns when everything stored so far is durable.
func (w *Writer) Flush(ctx context.Context) error { return errNotYet }

// Err is why nothing can be made durable at the moment; nil when all is well.
func (w *Writer) Err() error { return nil }

// Close makes everything durable, seals the segment and unlocks the session.
func (w *Writer) Close() error { return errNotYet }

// View is a live view.
func (w *Writer) View() *View { return nil }

// View reads one recording.
type View struct{}

// Info describes the session.
func (v *View) Info() Info { return Info{} }

// Bounds is first and head.
func (v *View) Bounds() (first, head moldcast.Seq) { return 0, 0 }

// Ended reports End of Session, and one past the last message.
func (v *View) Ended() (end moldcast.Seq, ok bool) { return 0, false }

// Groups of the lines.
func (v *View) Groups() []string { return nil }

// Coverage is what is held, in order.
func (v *View) Coverage() []moldcast.Range { return nil }

// Holes is what is missing.
func (v *View) Holes() []moldcast.Hole { return nil }

// Append appends framed messages.
func (v *View) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) (out []byte, n int, err error) {
	return dst, 0, errNotYet
}

// SeqAt finds a time.
func (v *View) SeqAt(t moldcast.Stamp) moldcast.Seq { return 0 }

// Close releases the view.
func (v *View) Close() error { return nil }

// Cursor reads on from a sequence.
func (v *View) Cursor(from moldcast.Seq) *Cursor { return nil }

// Cursor is a reader by pieces.
type Cursor struct{}

// Next is the next piece.
func (c *Cursor) Next() (moldcast.Piece, error) { return moldcast.Piece{}, errNotYet }
