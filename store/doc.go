// Package store is the archive: recorded sessions in compressed, checked,
// crash-safe segments, written by one Writer a session and read through Views
// and Cursors, live or long after.
//
// # Layout
//
//	ARCHIVE/
//	  moldtape.json                    {"format":1, "node":…, "made":…}
//	  node.json                        {"format":1, "id":…, "starts":…}: who the archive is to others, once a capture acknowledged (Identify)
//	  audit.log                        removals and holds, a JSON object a line
//	  reserve                          room allocated for the last writes on a full disk
//	  CHANNEL/SESSION@TAKE/            the session in its printed form
//	    session.json                   identity, first sequence, groups of the lines, what the sender does (moldcast.Feed), newest seal
//	    000001.seg/                    a Pebble store, numbered by order of creation
//	      seal.json                    once sealed
//	    damaged/000001-123.json        block 123 of that segment failed its checks
//	    snapshots/N.snap               snapshot of an application's state, N its sequence in 20 digits
//	    000002.seg/ …
//	    000001.pruned                  in place of 000001.seg, once retention removed it
//	    000001.leaves                  leaves of the content hash over it
//	    000001.seg.gone/               a pruned segment until it is unlinked
//	    hold.json                      nothing of the session may be removed
//
// moldtape.json, node.json, session.json, hold.json, seal.json and those under damaged
// are written beside their place, synced and renamed. All but the seal begin
// with a member sum, SHA-256 of what comes after it: what does not match it is
// not believed; moldtape.json and session.json are made again by Mend, or by
// the next writer. session.json says nothing that the segments do not,
// but for the newest seal, so that a loss of the last segments shows, and
// is written again from them when it is lost. A segment holds whatever ranges
// were stored while it was the newest one; only that one is written, whatever
// the sequences are: a fill from the first minute of a day goes to the segment
// that is open when it comes. A sealed segment never changes.
//
// seal.json is one JSON object: identity, coverage (inclusive ranges), counts,
// times, hole records, lines, the digest of every block (block.Header.Digest)
// in key order, records of what was brought in later and of what captures measured, what became
// of a segment that was to be merged, and prev, the sum of the seal before. Its first member, sum,
// is SHA-256 in hexadecimal of all bytes of the file after it. So seals are a
// chain of custody over all that a session holds.
//
// # Retention
//
// Archive.Prune removes whole sealed segments, the oldest first by the time of
// their seals, those of a session by number. What is removed is planned from
// seals and holds alone, by a function that depends on nothing else. One
// segment at a time:
//
//	keep       000001.leaves, then 000001.pruned: written, synced; without meaning while the segment is there
//	lease      the exclusive lease of the segment, or it is left
//	announce   under the lock of the archive: no hold, the seal is the one planned with, a line in audit.log, synced
//	rename     to 000001.seg.gone, and the directory synced: from here on it is pruned
//	unlink     seal.json last
//	tell       under the lock of the archive: a second line in audit.log, synced
//
// 000001.pruned is a seal without the digests of blocks and without what was
// damaged, with seal_sum, the sum of the seal that was: so that coverage, end,
// holes and the chain of seals outlive the segment. What it covers and nothing
// else holds is pruned: known as held once, no hole, never stored again; reads
// of it give *PrunedError. The session then begins at the lowest sequence that
// is still held, or damaged, or at its head. Numbers of segments are not used again.
//
// 000001.leaves has the leaves of the content hash (package block) that the
// segment held part of: whole ones as hashes; of a leaf that goes on beyond
// the segment, the state of SHA-256 behind what the segment held. Where a hole
// within a leaf that was pruned in part is filled later, that leaf is lost to
// the hash, and Root gives the run in parts.
//
// A lease is flock on seal.json: shared while a reader uses the segment, or
// holds a Lease of a range; exclusive for who removes it.
//
// Each line of audit.log begins with prev, SHA-256 of the line before it
// without its end. A last line without an end was cut short by a crash before
// it was confirmed, and is replaced by the next. Lines are appended, and holds
// made and ended, under flock(LOCK_EX) on the archive's directory.
//
// # Snapshots
//
// A snapshot is opaque bytes that an application stored with a recording: its
// state after all messages below the sequence N of the snapshot, so that what
// follows it is [N, …). Another take has its own. The file:
//
//	  0  magic[8]     "moldsnap"
//	  8  format u16   1
//	 10  session[10]
//	 20  take u32
//	 24  seq u64      N, from 1
//	 32  made i64     when it was stored, ns since 1970
//	 40  size u64     of the application's bytes
//	 48  sha256[32]   of the same
//	 80  channel[64]  padded with NUL
//	144  crc32c u32   of the 144 bytes before
//	148  pieces: 32 KiB of the bytes (the last the rest), then crc32c u32 of
//	     where the piece begins in them, u64, and the piece
//
// Storing one takes no lock of the recording, so that it may be captured
// meanwhile, in any process:
//
//	write      PID.RANDOM.tmp, under a lease of its own, synced every 4 MiB and at the end, and
//	           given up where it would leave less than 64 MiB and the reserve of the disk
//	rename     under the lock of the archive, after a look whether something at or after N is
//	           pruned, or another is there; the directory synced
//	tell       a line "snapshot" in audit.log, with its SHA-256, synced: then it is on record
//
// Prune renames segments under the same lock, and looks for snapshots after it.
// So a snapshot comes before, and that Prune removes it, or after, and is refused.
//
// What is stored is never overwritten, but where it is damaged, by the same
// bytes. Prune removes a snapshot once a message at or after N is pruned, since
// what follows it is not whole then, never of a session on hold; its bytes count
// in Retention.MaxBytes. A line "snapshot_removed" in audit.log, for all from
// first_seq to last_seq, comes first. Who reads one that is removed reads on to
// its end. Verify reads every snapshot, and compares it with the audit log: the
// newest line for N says what is to be there. Each piece is checked before a
// byte of it is given out: *SnapshotError, and the next older one can be asked for.
//
// # Keys of a segment
//
//	'h' first u64          header of a block (package block); first is its lowest sequence
//	'b' first u64          its body
//	'm' id u64             a block without messages, of heartbeats, ends and line log: u32 length of header, header, body
//	't' id, n              tail record: pieces of block id, not yet written
//	'o' time u64, first u64   hole record (JSON); the newest for a sequence holds
//	'f' time u64, first u64   record of what was brought in later, and from where (JSON)
//	'c' began u64          what a capture that began then measured (JSON): began_ns, until_ns, node, stats;
//	                       the newest of a capture holds, in whatever segment
//	'x' name               facts: segment, facts, lines; merged: what became of a segment that was to
//	                       be; sealed: when and by which node (JSON)
//
// All integers are big-endian; id and n of a tail record are as many bytes as
// they need, with their count (u8) before. Headers lie apart from bodies, so that
// listings, coverage, times and holes are read without them; bodies lie in
// tables that hold nothing else and are ingested: they never pass through the
// log, and no compaction rewrites them (there is none). A block is
// found by the runs of the headers, which are in memory for the open segment
// and for those sealed ones that are open (64 at most).
//
// # How a message becomes durable
//
//	Append     copies into the open block, under the session's lock; readable at once
//	worker     compresses a block that is full (BlockSize): well, or fast while four wait for it;
//	           by encoders that all of an archive share, as many as there are processors
//	learner    finds out by what messages of a recording are foretold: one at a time of an
//	           archive, where nothing that is known will do
//	committer  decides what is written: blocks as a table, or tail records to the log
//	ingester   writes the bodies of a table, syncs and ingests it, then hands the
//	           headers and the deletion of tail records to the log in one batch
//	waiter     after the sync of the log: moves the watermarks, frees memory
//	sealer     merges what is to be merged; flushes, closes and seals what was rolled
//
// When Options.Sync falls due and at least 256 KiB compressed waits that no
// sync covers, the open block is cut and all becomes a table: it is written
// once. Less is compressed and written as tail records, with sync; such blocks
// wait in memory until 1 MiB is together or the oldest is BlockAge old, so that
// slow data is written twice, and in tables that are worth their three syncs.
// 4 MiB make a table whatever is due. (Sizes are smaller where segments are.)
// A table that is being written holds up neither Append nor tail records.
//
// Tail records of one block are streams (package block, records of a stream):
// each is compressed with those before it as history, and what one adds to the
// log is little more than what its messages are worth. In order they are
// written and in order the log keeps them, so that what a record builds on is
// there when it is, and they are deleted together. After a failed write, and
// every 64 KiB, a new stream begins. Records of up to 16 KiB of messages (less
// where Options.Sync is below 32 ms: 512 KiB a second at most) are modelled,
// which takes longer and comes to a third less, or are compressed like larger
// ones where that comes to less.
//
// What each setting of Options.Sync costs, in bytes written for each compressed
// one, seals included, at 1000 and 5000 messages of 30 bytes a second one a
// packet, 1 MB/s of them eight a packet, and 25 MB/s and as fast as it goes of
// what cannot be compressed (BenchmarkSync; TestWriteAmplification… assert at
// most 2.1 for slow feeds at 50 ms, 1.2 from 20 MB/s on, 1.05 for an import):
//
//	       1000/s  5000/s  1 MB/s  25 MB/s  full
//	0       3.39    2.49    2.16    1.24    1.01
//	5 ms    2.25    2.10    2.09    1.63    1.00
//	50 ms   1.84    1.74    2.05    1.01    1.00
//	1 s     2.07    2.04    1.01    1.00    1.00
//
// A body is nothing until its header is there, and a tail record is of use
// until then. What of a tail record a block holds is ignored, so that nothing
// between the two need be atomic.
//
// A roll opens the next segment first, then cuts the open block; what came
// before goes to the old one, which is sealed behind the pipeline. Append
// never waits for a disk: at QueueBytes it answers ErrBusy (or waits, with
// Options.Wait).
//
// # Line log
//
// Writer.Heard takes every datagram of a line, to be replayed as it was heard.
// It belongs to the block that is open when it is heard, whatever it brings: a
// late copy of line B is in the log of a later block than its messages. It waits
// without a lock, 256 datagrams at most, until something is stored or marked, so
// that a packet and what the log says of it lie in one block. Memory is bounded
// by QueueBytes together with messages, which may have the last quarter alone:
// what has no room is counted as lost in the part. A block is cut at one
// datagram for two bytes of BlockSize, and at 2^17.
//
// The log is durable with its block, not before: tail records have none of it,
// and Flush does not wait for it. After a crash the parts of blocks that were
// written are there, and what tail records bring back is stored under no log.
// Parts count datagrams from the first of a Writer, and Close ends its log, so
// that View.Log can say of all that is missing where it is: lost, pruned, cut
// short, or stored under none. A merge moves parts with the blocks that they
// were in, and compares the datagrams that came out with those that went in;
// a block that it makes of messages with and without a log says so, and counts
// as one without. A fill, a repair and a patch were heard on no line, and have no
// log.
//
// # Merging
//
// A segment that is no longer written may have small blocks (a slow feed), and
// runs of one place in many (late fills, a backfill beside the live feed). By
// its index alone it is known what reading it whole, by a Cursor, costs: the
// raw bytes decoded, and an eighth of BlockSize for each block; and what it
// would cost in blocks of the usual size in the order of sequences. Where that
// saves the share Options.MergeSaves, and a block at least, it is merged before
// it is sealed: in the background, while the next segment is written, one segment of an archive
// at a time for two processors. With
// CodecAuto it is also where an eighth of its raw bytes, and a block at least,
// was stored fast: all of it is compressed anew, each block by what was learned
// of the segment's messages, or as rows where those are smaller. The hashes of
// a block and of content are of rows, so that none changes.
//
//	read       each block once, in the order of sequences, in a window of 32 MiB of
//	           decoded blocks; one that would have to be read more than four times is left
//	write      table-merge-1.tmp … with the bodies, of 64 MiB, and table-merge-0.tmp with all else;
//	           pieces as they are, patches in blocks of their own, marks where their blocks began
//	compare    what is read back: every piece and mark, by a hash in order; records; counts, coverage, bounds
//	swap       the tables take the place of all there was, in one edit of the manifest
//	seal       as any other
//
// A piece is never split or joined; no hole, record, line or time changes. What is
// damaged is left as it is, so that its hole stays named. Half of the time a
// merge rests. At most 3 segments wait for one: then it ends, and they are
// sealed as they are; so also beyond 256 MiB while closing (512 MiB of an archive), and without room on the
// disk. The seal says so (merge.left), or how many blocks there were and how many
// bytes were written (merge.blocks, merge.bytes_stored, merge.bytes_written):
// these are not part of what a capture writes. A reader that recovers a
// segment does not merge it.
//
// Until the seal nobody but this process reads the segment, and there is no
// lease of it. A reader within the process that found a place in a block before the swap and
// reads after it is told that the segment is gone, and looks again.
//
// # Invariants
//
//   - What is stored is never overwritten: Append stores only what is not held.
//   - No two blocks hold the same sequence, but for one that replaces a damaged one.
//   - durable moves only after a sync that succeeded, and neither it nor next
//     passes a hole. Both move down only when a lower first sequence comes up,
//     or damage is found.
//   - Holes are the complement of coverage between first and head (the end, of
//     an ended session): records only give reasons. But where the facts say that
//     numbers only rise, only what the disk gave back wrong is a hole: numbers
//     that were not heard need not exist. next is the head (the end) there.
//   - The end is the highest that a mark gives, unless data lies beyond it; once
//     one was withdrawn (Writer.Withdraw), what the facts say, which each mark
//     of an end sets from then on. The record with the highest rev holds.
//   - A byte that no checksum vouches for is not served: every block is checked
//     when it is decoded, beyond what Pebble checks.
//
// # Versions
//
// moldtape.json, session.json and seal.json have format 1, and so does what is
// sealed. The record "segment" of a segment has format 2 since tail records are
// streams. In format 1 each was a block of its own ('t' id u64, n u32: u32
// length of header, header, body); it is read, and becomes 2 when the segment is
// opened for writing. A program that knows 1 only does not write to 2.
//
// # Damage
//
// A block that fails its checks, when it is read or verified, is put on record
// in a file of its own under damaged/, by whoever met it, and in memory. From
// then on what it holds is not covered: it is a hole, with the reason damaged,
// readers get a *CorruptError with the range, and durable and next stand
// before it. A disk that cannot be read at the moment damages nothing. What
// Append is given for such a range goes into a block of another segment that
// is flagged as a patch: the only kind that may overlap others, and it prevails.
// The seal lists what patches hold. So coverage, holes and hashes are right
// again, in every process that reads the new seal; Verify goes on listing the
// damage, as replaced. A block on record that Verify reads well is taken off it.
//
// A tail record that fails its checks costs what it held and what follows in
// its stream, 64 KiB of messages and one record more at most, while no block
// holds it. It is kept, also in the segment once sealed, and Verify names it: as a
// fault while there is a hole in or beside what the segment holds, else as a note.
//
// Pebble takes the first place in its log that is not sound for the end of it.
// Where sound records lie behind, they are written again when the segment is
// opened for writing, so that the damage costs what it hit: a stream of tail
// records at most, as above, which is a hole where something behind it is held.
// Verify names it before.
//
// Values are stored as they are, each in one piece, and so a flipped bit in what
// Pebble keeps around them (manifest, options, indexes, footers, keys) costs no
// message: what the store of a sealed segment does not give is looked for in its
// files, by how headers and bodies begin, their checksums, and the digests in
// the seal. Verify names that as a fault until Rewrite has stored it anew.
//
// Of a segment that is not sealed there is no such seal, and its store must be
// opened. Its OPTIONS, and the marker of its format, which all segments have the
// same, say nothing of the messages: it is opened without, and who opens it for
// writing makes them anew. Verify names it before.
//
// Of the files around the messages, each has a hash of its own or is named by
// that of another. So Mend can try every bit of a small one, and know when it is
// right: SHA-256 leaves no doubt. In the audit log, the line after tells it. Other
// damage of a seal: all but when and by whom follows from what the segment
// holds, and that is in the segment too (key xsealed); what comes out is to be
// what the next seal or session.json names. A newest one that nothing names
// has a member rebuilt, which Verify notes for ever. Of the last line of the
// audit log, and of a pruned segment, nothing else is kept: what is beyond one
// bit is named, and stays.
//
// # Crashes, one by one
//
//	making a segment        its directory without a store: opened as an empty one
//	making a manifest       its marker is made only after the directory was synced, so that none
//	                        names a manifest whose entry was lost
//	writing a table         a file table-….tmp, removed when the segment is opened for writing
//	between body and header a body without a header: deleted when the segment is recovered; what was
//	                        durable of it is in tail records
//	writing a batch         Pebble's log ends in a torn record: cut when it is opened; nothing of it
//	                        was below the durable watermark
//	between block and tail  what a block holds of a tail record is ignored; the rest becomes blocks
//	during that             bodies without headers, again: it is done once more
//	rolling                 two unsealed segments: both are recovered, the older one sealed first
//	merging                 tables that are in no manifest: removed when the segment is opened for writing;
//	                        it is as it was, and merged by the next writer
//	swapping                the edit of the manifest is there, and the segment is merged, or it is not; what is
//	                        then obsolete is removed when it is opened or sealed
//	between swap and seal   merged, and sealed when it is recovered
//	sealing                 no seal.json: recovered and sealed again; seal.json.tmp is written over. Where
//	                        others name it, it was lost later: it is made again, to the byte
//	writing session.json    the old one, or it is made again
//	copying to a new take   what it has in common with the one before is in session.json before
//	                        anything of it is stored: the next capture goes on, or repair
//	pruning, before the rename   the segment is as it was; the next Prune logs what it announced as cancelled
//	pruning, after it       the segment is pruned; readers ignore what is left, the next Prune unlinks and tells it
//	appending to audit.log  a line without its end is none
//	storing a snapshot      before the rename: none, and a file .tmp that the next Prune removes; after it:
//	                        there, whole, and served; the same put, or the next Prune, puts it on record
//	removing snapshots      on record as removed: the next Prune removes what is left
//	noting damage           the file is there or not: the next who reads the block writes it
//	replacing damage        until the patch is durable the record of the damage holds
//
// # Failed writes
//
// A write or sync that fails, or what Pebble calls fatal, marks the segment's
// store as dead: it is fenced off the directory, and opened anew when writing
// is tried again (after 0.1 s, doubling to 5 s; within half a second of when
// there is room again, or the archive, that was missing). Until all that waited by then
// is durable, Err and Trouble say why; durable stands still, and what comes is
// taken up to QueueBytes and served from memory. Blocks that were on their way
// are written again, under the same keys and in the same segment, which is not
// sealed before they are durable: what failed may be there all the same.
//
// The fence goes up in the instant of the failure. Pebble goes on after a
// fatal error as if the edit of its manifest had been written, and would next
// remove the log whose tables only that edit names. Failures of its log it is
// not even told: where it cannot close one or begin the next it panics without
// a lock that its caller then unlocks, which ends the process.
//
// Pebble ends no open, flush or Close of a store before its flushes succeed. So
// once nobody reads what is behind the fence, any more or yet, it is told that
// they do: nothing of that reaches the directory, and nothing is believed. What
// is read fails instead, so that it stays in memory.
//
// A segment is opened for writing only while the archive is there, on a disk
// with room for what its log holds and 4 MiB at least. An archive that was
// unmounted or moved away is missed within a second of the next write; nothing
// is made in its place. Closing takes two tries, 0.1 s apart.
//
// Options.Reserve bytes of the disk are allocated to the file reserve. When a
// seal finds the disk full, or a Writer is closed on a full one, the file is
// removed and the write tried again at once. It is made anew after that seal,
// and else after the next where there is room for two. What a Close could not write is
// counted in its error; the next capture has it repaired.
//
// # Processes
//
// A Writer holds flock(LOCK_EX) on the session directory. Sealed segments are
// read without any lock but their leases, through a file system that refuses every write. What
// is not sealed is read by other processes only when no writer holds the lock: a
// View recovers and seals it first, or reads it as it is while other readers
// hold the lock (shared), Sessions and Show only look. A writer that comes then
// may merge what they read as it lay: a View reads it anew once it is sealed, and
// takes nothing of it for damaged before. Verify holds it, shared,
// while it reads what is not sealed, and not longer.
//
// # Assumptions
//
//   - fsync makes what was written durable, or fails. After a failure the store
//     is opened anew and everything not known to be durable is written again.
//   - rename is atomic, and durable after the directory was synced.
//   - flock works on the file system: it is local, or a network one with locks.
//   - Pebble replays its log up to the first record that is torn.
//   - Callers parsed what they store: framing is not checked by Append.
//
// # Limitations
//
//   - Nothing protects against a disk that loses what it confirmed, but the
//     next Verify says so.
//   - In a segment that was not sealed (after a crash) a flipped bit in the last
//     records of Pebble's log cannot be told from a torn write: it costs them.
//   - A segment that is missing, or whose store cannot be opened at all, is
//     named and left as it is (View.Faults); what it held is then missing,
//     unless its seal says what it covers, or its files
//     still give it. A store whose manifest was lost is
//     such a one: it is never made anew. Segments are numbered without a gap
//     but for those of which NNNNNN.pruned says that they were pruned, and no
//     number is used twice.
//   - The loss of a last segment that was not yet sealed is not noticed.
//   - Pebble panics where a file of bodies is missing or cut short. That is
//     caught, costs some memory once a block, and is damage of these blocks.
//   - What comes slower than 256 KiB compressed in Options.Sync is written twice:
//     as tail records and as blocks. Around each tail record the log writes about
//     45 bytes, which shows where few messages come in Options.Sync. Headers (0.2 %)
//     are always written twice.
//   - What a crash left of a table that never became blocks takes its room in
//     the segment until that is pruned: 8 MiB at most.
package store
