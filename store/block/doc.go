// Package block is the codec of a block: the unit in which an archive
// compresses, checks and stores the messages of a session. A Builder is an
// open block in memory, an Encoder makes its stored form, a Decoder a Block of
// it again. Everything here is pure: no disk, clock, lock or goroutine.
//
// A block holds pieces: runs of consecutive messages of one packet, with
// their time, the time they were heard, line and flags. The sequences that it
// covers are a set of runs: a hole does not end a block, and so a block may
// hold what came before and behind a gap, and what filled it later. It also
// holds the marks of its time: heartbeats and ends of session.
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
//	           the block where bit 0 of its flags is set
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
//	         zstd (RFC 8878, no dictionary); others are refused
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
//	6                     reserved: when and on which line each packet came
//	7                     reserved: shapes of messages, for codecs by column
//
// Pieces are in order of sequence everywhere. Flags of a piece: bit 0
// repaired; line 255 is an answer to a request. The boundaries name their runs
// again, so that a body can be read when its header is lost.
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
// both to the session. Later sections will bring hashes of their own.
//
// Content is another hash: of any range of messages, across blocks.
package block
