package capture

import "github.com/moldtape/moldtape/moldcast"

// Sink is where a channel's sessions are stored.
type Sink interface {
	// Open takes up a take of a session for writing, on the engine's goroutine:
	// it may read what is known of it, and must not wait for anything slow. Take
	// 0 is the latest, or the first; one beyond the latest is new, and the one
	// before it still open. groups are the lines' addresses, for the record.
	Open(channel string, s moldcast.Session, take int, groups []string) (SessionSink, error)
}

// SessionSink stores one take of a session. All methods but Durable, Compare,
// Read and Close are called on the engine's goroutine and must not block.
type SessionSink interface {
	// Take is which recording of the session name it is, from 1.
	Take() int
	// Held is what is stored already.
	Held() moldcast.Held
	// Start says that nothing below first is wanted: where coverage begins
	// until something lower is stored.
	Start(first moldcast.Seq)
	// Append stores a piece, copying it, and says how many messages were new.
	// An error means that nothing was stored.
	Append(p moldcast.Piece) (stored int, err error)
	// Covers is the leading part of r that is stored wholly (true), or not at
	// all.
	Covers(r moldcast.Range) (part moldcast.Range, held bool)
	// Holes is how many ranges are missing, up to the end where that is known.
	Holes() int
	// Mark records a heartbeat or End of Session.
	Mark(m moldcast.Mark)
	// Heard takes a datagram of a line into the line log, before what of it is
	// stored; with Config.LineLog only.
	Heard(h moldcast.Heard)
	// Withdraw takes back the End of Session that was recorded last.
	Withdraw()
	// Supersede records that the sender goes on as another take or session, by
	// its name in the archive. Nothing but Read and Close follows.
	Supersede(by string)
	// Share records, durably, that ranges are the same in an older take, and are
	// to be copied from there. It is called before anything is stored.
	Share(take int, ranges []moldcast.Range) error
	// Shared is what is missing of those, when the session is opened.
	Shared() (take int, missing []moldcast.Range)
	// Older reads another take of the session, as Read does. It may open it, and
	// is called on another goroutine.
	Older(take int, dst []byte, first moldcast.Seq, count, size int) (out []byte, n int, err error)
	// Hole records a range that was given up.
	Hole(h moldcast.Hole)
	// Captured puts on record what was measured of the session from when the
	// capture took it up: a JSON document, again and again, the last of which
	// holds.
	Captured(began, until moldcast.Stamp, stats []byte)
	// Segments is how many segments the session lies in.
	Segments() int
	// Watermarks: no hole below next; the same and synced, durable; one past
	// the highest stored, head.
	Watermarks() (next, durable, head moldcast.Seq)
	// Floor is one past what retention removed below what is left: nothing lower is
	// wanted any more. 0: nothing was removed. It never falls.
	Floor() moldcast.Seq
	// Durable is what is held without a hole from the first message held on, and
	// synced; empty where the first is not. It is called on another goroutine,
	// also after Close.
	Durable() moldcast.Range
	// Compare compares m with what is stored from first on; what is not stored
	// agrees with anything. differs says that at is the first with other bytes.
	// It may read the disk, and is called on another goroutine.
	Compare(first moldcast.Seq, m moldcast.Messages) (at moldcast.Seq, differs bool, err error)
	// Read appends to dst up to count stored messages from first on, framed, of
	// up to size bytes together, and says how many; 0 only with an error. It
	// may read the disk, and is called on another goroutine.
	Read(dst []byte, first moldcast.Seq, count, size int) (out []byte, n int, err error)
	// Room reports whether Append takes something again, and not only a little; it
	// is asked after one has failed.
	Room() bool
	// Trouble is why nothing can be made durable at the moment; it is called
	// often, and for each Status.
	Trouble() Trouble
	// Close makes everything durable and ends the writing. It may take long,
	// and is called on another goroutine, as the last method but Durable.
	Close() error
}
