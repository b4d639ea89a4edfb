package capfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"github.com/moldtape/moldtape/moldcast"
)

// Fault says why a datagram is not whole.
type Fault uint8

// The faults of a datagram.
const (
	Whole      Fault = iota
	Cut              // the frame holds less than its lengths say
	BadHeader        // an IP or UDP header that contradicts itself
	BadIPSum         // IPv4 header checksum wrong
	BadUDPSum        // UDP checksum wrong
	Incomplete       // fragments are missing
	Disagree         // fragments overlap with different bytes
)

func (f Fault) String() string {
	switch f {
	case Whole:
		return "whole"
	case Cut:
		return "the captured frame is shorter than the datagram"
	case BadHeader:
		return "the IP or UDP header contradicts itself"
	case BadIPSum:
		return "the IP header checksum is wrong"
	case BadUDPSum:
		return "the UDP checksum is wrong"
	case Incomplete:
		return "fragments of the datagram are missing"
	case Disagree:
		return "fragments of the datagram disagree"
	}
	return fmt.Sprintf("fault(%d)", uint8(f))
}

// Packet is one UDP datagram of a file.
type Packet struct {
	Stamp    moldcast.Stamp // of the frame (of the last fragment); 0 where the file has none
	Src, Dst netip.AddrPort // port 0 where it was not captured; both invalid where the IP header was not
	Payload  []byte         // by the UDP length; valid until the next call of Next or Read
	Pos      int64          // byte position of the frame's record in the uncompressed file
	Frame    int64          // number of the frame, from 1 as Wireshark counts
	Fault    Fault          // Whole, or Payload is only what is there
}

// Stats counts what a Reader met.
type Stats struct {
	Frames    int64 // records
	Datagrams int64 // UDP datagrams yielded, faulty ones included
	Other     int64 // frames that are not UDP over IP
	Fragments int64 // frames that were fragments
	Faulty    int64 // datagrams yielded with a Fault
}

// Options of a Reader.
type Options struct {
	// Checksums turns on the check of IPv4 header and UDP checksums. A
	// datagram with a wrong one is yielded with its Fault.
	Checksums bool
}

// Reader yields the UDP datagrams of a capture file. It is not safe for
// concurrent use, and owns its file position and buffers.
type Reader struct {
	s      source
	f      framer
	frame  frame
	o      Options
	dec    decoder
	frag   defrag
	err    error
	stats  Stats
	format string
	close  func()

	general bool // tests: no frame is taken for a plain one
}

// NewReader reads r as a capture file; see the package doc for what it takes.
// Errors: *FormatError, or what reading r gives. Close frees the decoder.
func NewReader(r io.Reader, o Options) (*Reader, error) {
	in, compressed, closer, err := Decompress(r)
	if err != nil {
		if compressed {
			return nil, &FormatError{Err: ErrCompressed, Detail: err.Error()}
		}
		return nil, err
	}
	x := &Reader{s: newSource(in, compressed), o: o, close: closer}
	x.dec.init()
	if err := x.open(); err != nil {
		closer()
		return nil, err
	}
	return x, nil
}

func (r *Reader) open() error {
	b, err := r.s.peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	switch sniff(b) {
	case "pcap":
		p, err := newPcap(&r.s)
		if err != nil {
			return err
		}
		r.f, r.format = p, "pcap"
	case "pcapng":
		r.f, r.format = newPcapng(), "pcapng"
	default:
		detail := fmt.Sprintf("it begins with %x", b)
		if len(b) == 0 {
			detail = "it is empty"
		}
		return &FormatError{Err: ErrFormat, Detail: detail}
	}
	return nil
}

// sniff tells the format by the first four bytes; "" for others.
func sniff(b []byte) string {
	if len(b) < 4 {
		return ""
	}
	switch binary.BigEndian.Uint32(b) {
	case magicMicro, magicNano, 0xd4c3b2a1, 0x4d3cb2a1:
		return "pcap"
	case ngSection:
		return "pcapng"
	}
	return ""
}

// Sniff tells whether content that begins with b is "pcap" or "pcapng"; "" for
// neither. Four bytes are enough. Compressed content must be given
// decompressed.
func Sniff(b []byte) string { return sniff(b) }

// Format is "pcap" or "pcapng".
func (r *Reader) Format() string { return r.format }

// Stats is what was met so far.
func (r *Reader) Stats() Stats { return r.stats }

// Pos is the byte position reached in the uncompressed file.
func (r *Reader) Pos() int64 { return r.s.pos }

// Close frees the decoder; the file stays the caller's.
func (r *Reader) Close() { r.close() }

// Next gives the next datagram: Read, by value.
func (r *Reader) Next() (p Packet, err error) {
	err = r.Read(&p)
	return p, err
}

// Read sets p to the next datagram. It ends with io.EOF, with a *FormatError
// where the file cannot be read further, or with the error of the underlying
// reader; every later call gives the same again, and p is zero. It never panics.
func (r *Reader) Read(p *Packet) (err error) {
	if r.err != nil {
		return r.rest(p)
	}
	at, num := r.s.pos, r.stats.Frames+1
	defer func() {
		if v := recover(); v != nil {
			r.err = &FormatError{Pos: at, Frame: num, Err: errInternal, Detail: fmt.Sprint(v)}
			*p, err = Packet{}, r.err
		}
	}()
	for {
		at, num = r.s.pos, r.stats.Frames+1
		if len(r.frag.out) > 0 {
			return r.rest(p)
		}
		if err := r.f.next(&r.s, &r.frame); err != nil {
			r.err = err
			return r.rest(p)
		}
		r.stats.Frames++
		if !r.general && r.plain(&r.frame, p) {
			r.stats.Datagrams++
			return nil
		}
		if q, ok := r.decode(&r.frame); ok {
			r.yield(p, &q)
			return nil
		}
	}
}

func (r *Reader) yield(p, found *Packet) {
	r.stats.Datagrams++
	if found.Fault != Whole {
		r.stats.Faulty++
	}
	*p = *found
}

// rest gives datagrams that miss fragments and were given up; at the end of the
// file, also those that still wait, then the error.
func (r *Reader) rest(p *Packet) error {
	q, ok := r.frag.evicted()
	if !ok && r.err != nil {
		q, ok = r.frag.oldest()
	}
	if !ok {
		*p = Packet{}
		return r.err
	}
	r.yield(p, &q)
	return nil
}
