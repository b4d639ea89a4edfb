package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"

	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
)

const (
	day     = int64(1_772_445_600_000_000_000) // when the recordings begin
	headers = 14 + 20 + 8                      // Ethernet, IPv4, UDP
)

// record makes a capture file (pcap, ns) of so many packets, and an archive of
// it. A tenth of the packets comes in bursts 5 µs apart, the others at
// exponential distances: rate is the mean.
func (b *bench) record(name string, packets int, rate float64) (capture, error) {
	c := capture{file: b.path(name + ".pcap"), archive: b.path(name), stamps: map[uint64]int64{}}
	f, err := os.Create(c.file)
	if err != nil {
		return c, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	head := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d)
	head = binary.LittleEndian.AppendUint32(head, 2|4<<16)
	head = append(head, make([]byte, 8)...)
	head = binary.LittleEndian.AppendUint32(head, 65535)
	w.Write(binary.LittleEndian.AppendUint32(head, 1)) // the error is Flush's
	sess, err := moldcast.ParseSession(session)
	if err != nil {
		return c, err
	}
	rng, gen := rand.New(rand.NewPCG(1, 2)), itch.NewGenerator(1<<40, 1)
	seq, at, burst := moldcast.Seq(1), day, 0
	var frame, payload []byte
	for range packets {
		n := 1 + rng.IntN(7)
		payload = moldcast.AppendHeader(payload[:0], sess, seq, uint16(n))
		for range n {
			m, _ := gen.Next()
			payload = moldcast.AppendMessage(payload, m)
		}
		frame = appendFrame(frame[:0], payload)
		rec := binary.LittleEndian.AppendUint32(nil, uint32(at/1e9))
		rec = binary.LittleEndian.AppendUint32(rec, uint32(at%1e9))
		rec = binary.LittleEndian.AppendUint32(rec, uint32(len(frame)))
		w.Write(binary.LittleEndian.AppendUint32(rec, uint32(len(frame))))
		w.Write(frame)
		c.stamps[uint64(seq)] = at
		c.order = append(c.order, uint64(seq))
		seq += moldcast.Seq(n)
		switch {
		case burst > 0:
			burst--
			at += 5000
		default:
			at += int64(rng.ExpFloat64() * 1e9 / rate / 0.9)
			if rng.IntN(180) == 0 {
				burst = 20
			}
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return c, err
	}
	out, err := exec.Command(b.program, "import", c.file, "--archive", c.archive, "--channel", "peers", "--log-level", "warn").CombinedOutput()
	if err != nil {
		return c, fmt.Errorf("import: %w: %s", err, out)
	}
	return c, nil
}

func appendFrame(b, payload []byte) []byte {
	to, from := group.Addr().As4(), source.Addr().As4()
	b = append(b, 1, 0, 0x5e, to[1]&0x7f, to[2], to[3], 2, 0, 0, 0, 0, 2, 8, 0)
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 1, 17, 0, 0}
	ip = append(append(ip, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, source.Port())
	b = binary.BigEndian.AppendUint16(b, group.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...) // UDP checksum: none
}

// seen reads a capture file of tcpdump's: stamps by sequence, of packets with
// messages.
func seen(file string) (map[uint64]int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(head[:]) != 0xa1b23c4d || binary.LittleEndian.Uint32(head[20:]) != 1 {
		return nil, fmt.Errorf("%s is no capture of Ethernet with stamps in ns", file)
	}
	out := map[uint64]int64{}
	buf := make([]byte, 0, 65536)
	for {
		var rec [16]byte
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return out, nil // cut short by the signal that ended it
			}
			return nil, err
		}
		buf = buf[:binary.LittleEndian.Uint32(rec[8:])]
		if _, err := io.ReadFull(r, buf); err != nil {
			return out, nil
		}
		if len(buf) < headers+moldcast.HeaderSize {
			continue
		}
		p := buf[headers:]
		if n := binary.BigEndian.Uint16(p[18:]); n == 0 || n == moldcast.EndCount {
			continue
		}
		out[binary.BigEndian.Uint64(p[10:])] = int64(binary.LittleEndian.Uint32(rec[:]))*1e9 + int64(binary.LittleEndian.Uint32(rec[4:]))
	}
}
