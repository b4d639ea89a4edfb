// Package block is the codec of a block: the unit in which an archive
// compresses, checks and stores the messages of a session. A Builder is an
// open block in memory, an Encoder makes its stored form, a Decoder a Block of
// it again. Everything here is pure: no disk, clock, lock or goroutine.
//
// A block holds pieces: runs of consecutive messages of one packet, with
// their time, the time they were heard, line and flags. The sequences that it
// covers are a set of runs: a hole does not end a block, and so a block may
// hold what came before and behind a gap, and what filled it later. It also
// holds the marks of its time, heartbeats and ends of session, and where that
// is asked for the line log: every datagram as each line brought it.
//
// Invariants: pieces of a block never overlap; equal content has equal bytes,
// but for the compressor; every byte of the stored form is under a checksum,
// so that a changed one is found, never served; a reader holds no more memory
// than it was allowed, whatever the bytes say.
//
// # Format, version 1
//
// A block is stored in two parts, under two keys: a header, enough to list,
// find by sequence or time, and account for the block, and a body. Fixed
// integers are unsigned and big-endian. uv is an unsigned LEB128 number (7
// bits a byte, the lowest first, the top bit set on all bytes but the last)
// in its shortest form; sv a signed one, zigzag (0, -1, 1, -2 … as uv 0, 1, 2,
// 3 …). Differences are taken modulo 2^64, so that any two values have one.
// Checksums are CRC-32C (Castagnoli, as in RFC 3720).
//
// A stamp is i64 ns since 1970-01-01T00:00:00Z. Ranges are half-open.
//
// # Header
//
//	at  size
//	 0   4   "MTbk"
//	 4   1   version: 1
//	 5   1   flags: bit 0 patch (the block replaces a damaged one and may
//	         overlap others); bits 1-3 are refused where set, 4-7 ignored
//	 6   1   codec of the payload section; 0 without messages
//	 7   1   0
//	 8  10   session
//	18   4   bytes of rows (the raw bytes of the payload), at most 17 MiB
//	22   4   bytes of the body, at most 64 MiB
//	26   4   checksum of the body
//	30  32   rows: SHA-256 of the canonical row form
//	62  32   facts: SHA-256 of the other sections
//	94   4   pieces, at most 2^18
//	98   4   marks, at most 2^16
//	102      uv runs, then for each, in order of sequence:
//	           uv first - the run before's next (0 before the first run); >= 1
//	           uv messages; >= 1
//	           sv least time - the run before's greatest (0 …)
//	           uv greatest time - least
//	           u8 live: 1 where any piece is not repaired, else 0; if 1:
//	             uv time of the first live piece - least time
//	             uv time of the last live piece - least time
//	         where marks is not 0:
//	           uv lowest sequence of a mark
//	           uv highest - lowest
//	           u8 ended: 1 where an End of Session is among them, else 0; if 1:
//	             uv sequence of the last one
//	         uv further fields (0 in what this version writes), for each:
//	           uv id, u8 flags, uv length, bytes
//	           a reader that does not know the id skips the field, or refuses
//	           the block where bit 0 of its flags is set; 1, optional, is that of
//	           a line log
//	end  4   checksum of all header bytes before it
//
// In every version the magic is first and the checksum last: a reader checks
// both before it looks at the version, and so can tell a damaged header from
// a newer one.
//
// # Body
//
// The body is a row of sections in ascending order of their tags, each:
//
//	 0   2   tag
//	 2   1   flags: bit 0 required; the rest 0, ignored
//	 3   1   codec of the stored bytes: 0 raw bytes as they are, 1 one frame of
//	         zstd (RFC 8878, no dictionary); of the payload also 2, 3 and 4, all
//	         of them columns; of the times also 5, lags (both below); others are
//	         refused
//	 4   4   raw bytes
//	 8   4   stored bytes
//	12   4   checksum of the section's bytes 0-11 and its stored bytes
//	16       stored bytes
//
// A section is left out where its raw bytes would be none. A reader skips a
// section that it does not know, or refuses the block where it is required.
// A codec is of bytes: whatever it is, the raw bytes are those below.
//
//	tag             required
//	1  payload      yes   the rows: messages in order of sequence, each {length
//	                      u16, data}, as on the wire
//	2  boundaries   yes   uv runs; for each run: uv first - the run before's
//	                      next (0 …), uv pieces, for each piece: uv messages
//	3  times        yes   u8 unit: 0, 3, 6 or 9: stamps are counts of 10^unit ns,
//	                      the greatest that divides all
//	                      for each piece: sv time - the piece before's (0 …)
//	                      uv pieces whose heard differs from their time; for
//	                      each: uv pieces between it and the one before, sv
//	                      heard - time
//	4  origins      yes   left out where every piece is of line 0, flags 0;
//	                      else for each row of equal pieces: u8 line, u8 flags,
//	                      uv pieces
//	5  marks        no    in order of arrival: u8 kind (1 heartbeat, 2 end), u8
//	                      line, sv sequence - the mark before's (0 …), sv
//	                      stamp - the mark before's (0 …)
//	6  line log     no    where the header has its field: when and on which line
//	                      each datagram came (below)
//	7                     reserved
//
// Pieces are in order of sequence everywhere. Flags of a piece: bit 0
// repaired; line 255 is an answer to a request. The boundaries name their runs
// again, so that a body can be read when its header is lost.
//
// # Columns
//
// A payload in columns is stored part by part, each of at most 2^16 messages,
// and of no message more than makes it 1 MiB or longer:
//
//	uv   raw bytes: rows of whole messages
//	uv   messages
//	u32  bytes of the part that follow: a bundle of planes
//
// A plane is bytes that mean the same, of one message each. A bundle:
//
//	u8   how script (bits 0-3) and group (4-7) are stored: 0 as they are, 1 one
//	     frame of zstd, 2 one block of S2 (the block format of Snappy with
//	     repeat offsets, github.com/klauspost/compress/s2)
//	uv   raw bytes of the script, at most 256 KiB
//	uv   raw bytes of the group
//	uv   stored bytes of the script, and these
//	uv   stored bytes of the group, and these
//	     coded planes, to the end
//
// What is in a bundle says which planes there are, in which order, and how long
// each is. One of no bytes is not there at all. For every other one the script
// has, where it comes to it:
//
//	u8   mode: 0 all bytes are one, u8, that follows here
//	           1 the bytes are the next of the coded planes
//	           2 the bytes are the next of the group
//	           3 uv: so many coded bytes are a Huffman tree description and one
//	             stream, as of the literals in zstd (RFC 8878, 4.2)
//	           4 the same with four streams behind a jump table
//	           5 uv: so many coded bytes are a finite state entropy table and
//	             stream of two states in turn, as of the weights of Huffman trees in
//	             zstd (4.1, 4.2.1.2), but for symbols to 255 and an accuracy
//	             of up to 12 bits
//	           6 u8: what all bytes are but uv of them, for each: uv bytes
//	             between it and the one before, u8 what it is
//
// Modes 3 to 5 are of at most 2^16 bytes. A plane that is split by another one
// of the same length is two planes: the bytes where that one is 0, then the
// others, from the last to the first.
//
// Messages of one length, 1 to 255, and one first byte may be of one shape.
// The script of a part begins so:
//
//	uv   shapes, at most 250
//	uv   tables, at most 16; for each: u8 width of its keys, 1 to 8
//	     for each shape:
//	       u8 length, u8 first byte, uv messages
//	       u8 steps, at most 64, for each:
//	         u8 kind (bits 5-7), little-endian (bit 4), bytes (0-3: 1 to 8)
//	         u8 at, where the field begins in the message
//	         kind 3: u8 from, u8 shape; kind 4: u8 from; kind 5: u8 table;
//	         else, and in kind 5, from is at
//	       u8 feeds, at most 4, for each: u8 table, u8 at
//	       u8 splits, for each, in order of planes: u8 plane, u8 by which, a
//	         lower one
//
// Planes follow: where there are shapes, the shape of each message by its
// place in the list, or how many there are for a message of none; for messages
// of none the high and the low bytes of their lengths, and all their bytes in a
// row; then shape by shape the planes 1 to length-1, each of one byte of its
// messages, split as it says. Plane 0 is the first byte, which is not stored.
//
// What is in the planes is made the messages one after the other, by the steps
// of their shape in turn. A step of kind 1 to 4 has a field in another message:
// the one of the shape before (1), the message before (2), the last one of the
// named shape (3), or that which the lookup before has found (4). In place of a
// field of one byte there is its difference to the byte at from there, modulo
// 2^8. For one of more bytes there is the difference of the two numbers, modulo
// 2^(8·bytes), signed, as by sv (0, -1, 1, -2 … as 0, 1, 2, 3 …), and
// big-endian; both are little-endian numbers where the step says so. Where
// there is no other message, or where it ends before the field does, that
// counts as 0. Fields of steps do not overlap.
//
// Kind 5 looks up the bytes of its field in a table. A table has 2^b slots: b is
// the bits of the number of messages that feed it, and one more, within 6 to
// 14. With h = key·9E3779B97F4A7C15 (hex) modulo 2^64, of the key as a big-endian
// number, the slot is the highest b bits of h, and the tag the 11 below. It
// finds what its slot has where that has its tag, else nothing. After all steps
// of a message are done it is put into the slots of the keys that its shape
// feeds. Each part begins with empty tables.
//
// # Lags
//
// Times whose packets carry the feed's own time, or not, in place of the deltas
// of the raw form:
//
//	u8   clocks; for each: u8 length, u8 first byte of messages, u8 bytes of the
//	     field (bits 0-3), little-endian (4; 5-7 are 0), u8 at, u8 exponent: counts of
//	     10^exponent ns, 0 to 9
//	u8   unit, as in the raw form
//	uv   the first difference
//	u8   width: bytes of the differences that follow
//	uv   bytes of the raw form behind the times of pieces
//	     a bundle: width planes of one byte of all differences but the first,
//	     highest bytes first, each split by the one before it; then what is behind
//	     the times, as it is
//
// A difference (as by sv) is of the time to what was expected. Without clocks
// that is the time before (0 …). With clocks it is feed + mean. Feed is the time
// in the last message of the piece, in units, rounded down (before it, the
// product of field and exponent is modulo 2^64); where that is of no clock, that
// of the piece before (0 …). Mean is 0 for the first piece, then its difference,
// then grows by an eighth of each, rounded down.
//
// # Line log
//
// A log is of a session, from when its writer began. What a block has of it is
// a part: of the datagrams that were heard while it was the open one, whatever
// their sequences, since a line may bring again what lies in a block before. A
// part counts those before it, those that it has and those that it lost, so
// that what is missing shows, and says where the log was ended. A block has
// several where blocks were merged. The header's field:
//
//	32   SHA-256 (see Hashes)
//	uv   parts, 1 to 2^12; for each:
//	       sv id - the part before's (0 …): the log, by a stamp of when it began
//	       uv datagrams before, uv datagrams lost
//	       u8 flags: bit 0 the log ends here; bit 1 the block also has messages
//	       that were heard and stored under no log; others are refused
//	       u8 lines: one more than the highest that brought one, at most 64
//	       uv datagrams, at most 2^17 in a block; if not 0:
//	         sv lowest stamp - id, uv highest - lowest
//
// The section, stored as it is (codec 0):
//
//	u8   unit, as of the times: of all its stamps, and those of the pieces
//	uv   bytes of ops
//	uv   differences in planes
//	u8   width: bytes of each
//	     a bundle (see Columns): width planes of one byte of all differences,
//	     highest bytes first, each split by the one before it; then the ops
//
// The ops are, part by part and line by line (0 to lines-1):
//
//	uv   datagrams, in the order in which the line brought them; then, until there
//	     are so many, in turn:
//	       uv datagrams that are as expected
//	       unless there are all: one that is not: sv first sequence - the expected,
//	       uv count as on the wire (0 a heartbeat, 65535 an end), u8 flags (bit 0:
//	       it had other bytes than what is stored)
//	uv   stored copies with another stamp; for each: uv stored copies between it
//	     and the one before, sv units that it is later than that stamp
//
// Expected is a datagram of no flags with the sequence behind the messages of
// the one before, or what that carried where it had none (0 at first), and as
// many messages as the piece of the block that begins there has, or else the
// last one with messages had (0 at first).
//
// Stamps: a datagram with messages, without flags, at whose sequence a piece of
// flag bit 0 clear begins is its stored copy where that is of the same line: the
// stamp is the piece's heard, but for those listed. Every other has a
// difference (as by sv) in the planes: to the piece's heard + mean, where there
// is one, of another line; then mean, at first 0, grows by an eighth of it,
// rounded down; else to the stamp before on this line, in this part (the part's
// lowest at first). All in units, modulo 2^64.
//
// # Records of a stream
//
// What is to be durable before it makes a block is stored as small records
// (StreamEncoder). They form streams: a record is compressed with what came
// before in its stream as history, and the first one needs nothing. One that is
// damaged costs those that follow in its stream, of 64 KiB of raw bytes and one
// record more at most.
//
//	 0    1   kind: bit 7 set; bit 0: begins a stream; bit 1: modelled, as is all
//	          of the stream; others are refused where set
//	 1   10   session, where it begins a stream
//	     uv   raw bytes, at most 64 KiB where modelled
//	          the stored form of the raw bytes
//	end   4   checksum of all before it, continued from that of the record
//	          before in the stream (0 where it begins one)
//
// Raw bytes are four sections, each uv length and its bytes, none where there
// is nothing to say: boundaries, times, origins and marks, in the form of
// sections 2 to 5 of a body, marks with their number (uv) before them; then the
// rows. Differences to 0 are to the record before in the stream instead: the
// first run counts from the end of its last one, the first time from its last;
// the first mark from the end and last time of all messages until then. At the
// beginning of a stream these are 0.
//
// The stored form of a stream that is not modelled is one frame of zstd, cut
// where the compressor was flushed behind each record; the last block of the
// frame never comes. A window of at most 128 KiB.
//
// A modelled one is coded by an arithmetic coder, bit by bit, each with the
// likelihood that what came before in the stream gives it. The coder: lo = 0 and
// hi = 2^32-1 at the beginning of each record. A bit of which p/2^16 is the
// likelihood to be 1 splits the range at mid = lo + (hi-lo)·p/2^16, rounded
// down: hi = mid for 1, lo = mid+1 for 0. Then p grows by (65535-p)/16 for 1, or
// shrinks by p/16 for 0, both rounded down. While lo and hi agree in their
// highest byte, that is stored, lo = lo·2^8, hi = hi·2^8+255. At the end as many
// bytes as are needed (0 to 4) of the number in the range that ends in the most
// zero bytes, the highest of those; a reader takes zeros for what follows.
//
// Every likelihood is 2^15 at the beginning of a stream, or where a shape is
// taken up. A byte by a set of likelihoods is its bits from the highest, each
// by a likelihood of its own for the bits above it. Numbers (uv, sv) of the
// sections are coded byte by byte, by a set for each of the four sections and
// one for their lengths, and in each for the 1st to 10th byte of a number; a
// byte is the first of a number where the one before it was below 128, or ten
// came, or the section began. The rows message by message:
//
//	7 bits    shape: of those that the stream took up, by number, up to 64; one more
//	          than there are: it takes up another; 127: none
//	2 bytes   length, of one that is taken up, or none; by the set "text"
//	1 byte    the first, of one that is taken up and longer than 0; "text"
//	          bytes, of none: all, by "text"; else all but the first: 1 bit whether
//	          it is that of the message of the shape before (0 for the first), and if
//	          not, the byte, both by sets for this byte of the shape, the bit also by
//	          whether the two bytes before it in the message were (two at its start
//	          count as not)
//
// A shape is a length and a first byte. A stream takes up another where it has
// fewer than 64, and the length of that and of all before it, each of those
// less its first byte, are 4096 together at most.
//
// # Hashes
//
// The canonical row form is, for each run: first u64, next u64, and its rows.
// So rows depends on the messages and their sequences alone, not on pieces,
// order of arrival, times or codec. facts is over sections 2 to 5, those that
// are there, in order: tag u16, raw length u32, raw bytes. Header.Digest binds
// both to the session. That of a line log is in its field, and not part of the
// digest: for each part 'p', id u64, before u64, lost u64, lines u8, flags u8; for
// each of its lines: datagrams u32; for each: stamp u64, first u64, count u16,
// flags u8.
//
// Content is another hash: of any range of messages, across blocks.
package block
