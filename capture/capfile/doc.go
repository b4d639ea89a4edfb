// Package capfile reads UDP datagrams out of capture files, finds the
// sequenced streams among them, and writes such files.
//
// # Reading
//
// [NewReader] takes pcap (microsecond and nanosecond, both byte orders) and
// pcapng (any resolution and offset, several sections and interfaces), plain
// or compressed with gzip or zstd. The format is told by the first bytes,
// never by a name. Link types: Ethernet with any depth of VLAN tags, raw IP,
// Linux cooked (SLL, SLL2), null and loopback. IPv4 and IPv6, fragments
// reassembled. A datagram ends where its UDP length says: padding, trailers
// and frame check sequences after it are not looked at.
//
// Link, IPv4 and UDP headers are decoded, and files written, by gopacket, which
// only this package imports. Where it misreads or trusts a file, code of this
// package stands in, and says why at its place; and for the frames that nearly
// all of a feed are, which are read the same several times as fast.
//
// # What is relied on
//
// The bytes are foreign. No length in them is believed before it is checked
// against a fixed cap ([MaxFrame]) and against what the file holds, so memory
// is bounded whatever a file claims. Records are read in order; the first one
// that cannot be whole ends the reading with a [*FormatError] that names its
// byte position, and everything before it has been yielded. A frame that is
// whole as a record but whose datagram is not (cut by the snap length, a wrong
// checksum, a missing fragment) is yielded with its [Fault], so that a caller
// can name it. Byte positions count in the uncompressed file.
//
// # Finding streams
//
// [Survey] looks at every datagram of a file and judges each flow (one
// destination address and port): a flow is MoldUDP64 or IEX-TP when its
// datagrams are framed exactly so, consistently, and its session names are
// plausible; else it says why not.
package capfile
