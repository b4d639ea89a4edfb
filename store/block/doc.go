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
