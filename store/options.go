package store

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// Options configure an Archive and every Writer and View that comes from it.
// The zero value of a field means its default; EnsureDefaults fills it in.
type Options struct {
	// FS is the file system. Default: the system's, with flock(2) on session
	// directories; any other one is locked with its own Lock.
	FS vfs.FS

	// Log receives what an operator should know. Default: discarded.
	Log *slog.Logger

	// Quiet logs at debug level that a segment was sealed: for an import, which
	// has a result of its own to tell.
	Quiet bool

	// Node is this node's name, recorded where an archive or segment is made.
	Node string

	// SegmentSize is how many stored bytes of blocks a segment takes before the
	// next one is opened. 16 KiB at least. Default 1 GiB.
	SegmentSize int64

	// SegmentTime rolls a segment that is this old and not empty. Default 0: never.
	SegmentTime time.Duration

	// BlockSize cuts a block at this many raw bytes (framed messages and what
	// is kept of their packets). 1 KiB..16 MiB. Default 256 KiB.
	BlockSize int

	// BlockAge cuts a block that was begun this long ago. Default 30 s.
	BlockAge time.Duration

	// Sync is the longest time a stored message is not yet durable. 0 makes it
	// durable as soon as it is stored, as fast as the disk allows. Default:
	// see DefaultOptions; a zero Options has Sync 0.
	Sync time.Duration

	// QueueBytes bounds what is in memory and not yet durable, raw. Default
	// 64 MiB. At the bound Append answers ErrBusy, or waits if Wait is set.
	QueueBytes int64

	// Wait makes Append wait for room in place of ErrBusy: for imports.
	Wait bool

	// TailBytes is how much of the newest, durable already, stays in memory
	// undecoded for readers. Default 8 MiB.
	TailBytes int64

	// CacheBytes bounds the decoded blocks kept for View.Append. Default 64 MiB.
	CacheBytes int64

	// Workers compress blocks, for each writer. Default 1.
	Workers int

	// Reserve is how many bytes of the disk are kept free for sealing and for
	// stopping in order when it is full: the file ARCHIVE/reserve, made when a
	// recording is opened for writing. 0..1 GiB. Default: see DefaultOptions; a
	// zero Options has none.
	Reserve int64

	// Codec is in which form blocks are stored. Default: see DefaultOptions; a
	// zero Options has rows.
	Codec Codec

	// NoVerify has blocks stored without being decoded, and compared with what
	// they were made from, before.
	NoVerify bool

	// MergeSaves has a segment that is no longer written merged before it is
	// sealed: its blocks written anew in the order of sequences, in the usual
	// size, where reading it whole then costs less by at least this share.
	// Negative: never. At most 1. Default 0.33.
	MergeSaves float64

	// MergeLevel is how hard merged blocks are compressed. Default: as others
	// when none waits.
	MergeLevel block.Level

	behind    int  // tests: so many blocks wait more than there are
	noSalvage bool // tests: what a store does not give is not looked for in its files

	// Clock is the wall clock. Default: the system's.
	Clock func() time.Time
}

// DefaultOptions is the zero Options with Sync at its default of 50 ms,
// Reserve at its default of 16 MiB, and CodecAuto.
func DefaultOptions() Options {
	o := Options{Sync: DefaultSync, Reserve: DefaultReserve, Codec: CodecAuto}
	o.EnsureDefaults()
	return o
}

// DefaultSync is the default of --sync.
const DefaultSync = 50 * time.Millisecond

// EnsureDefaults sets what is not set.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = 1 << 30
	}
	if o.BlockSize == 0 {
		o.BlockSize = 256 << 10
	}
	if o.BlockAge == 0 {
		o.BlockAge = 30 * time.Second
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	if o.TailBytes == 0 {
		o.TailBytes = 8 << 20
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.MergeSaves == 0 {
		o.MergeSaves = DefaultMergeSaves
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
}

// Validate reports the first value out of its range.
func (o *Options) Validate() error {
	switch {
	case o.SegmentSize < 16<<10:
		return fmt.Errorf("segment size %d: want at least 16KiB", o.SegmentSize)
	case o.SegmentTime < 0:
		return fmt.Errorf("segment time %v: want 0 or more", o.SegmentTime)
	case o.BlockSize < 1<<10 || o.BlockSize > 16<<20:
		return fmt.Errorf("block size %d: want 1KiB..16MiB", o.BlockSize)
	case o.BlockAge < 0:
		return fmt.Errorf("block age %v: want more than 0", o.BlockAge)
	case o.Sync < 0:
		return fmt.Errorf("sync %v: want 0 or more", o.Sync)
	case o.QueueBytes < int64(moldcast.MaxDatagram):
		return fmt.Errorf("queue %d bytes: want at least one datagram, %d", o.QueueBytes, moldcast.MaxDatagram)
	case o.TailBytes < 0 || o.CacheBytes < 0:
		return errors.New("tail and cache bytes: want 0 or more")
	case o.Reserve < 0 || o.Reserve > 1<<30:
		return fmt.Errorf("reserve %d bytes: want 0..1GiB", o.Reserve)
	case !(o.MergeSaves <= 1):
		return fmt.Errorf("share that merging saves %v: want at most 1", o.MergeSaves)
	case int(o.Codec) >= len(codecNames):
		return fmt.Errorf("codec %d: not known", o.Codec)
	case o.MergeLevel > block.Hasty:
		return fmt.Errorf("level of merged blocks %d: not known", o.MergeLevel)
	case o.Workers < 1 || o.Workers > 64:
		return fmt.Errorf("workers %d: want 1..64", o.Workers)
	}
	return nil
}
