package capfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/moldtape/moldtape/moldcast"
	"pgregory.net/rapid"
)

const noon = moldcast.Stamp(1473799831523595123)

// Every container carries the same two datagrams.
func TestContainers(t *testing.T) {
	a, b := mold("S", 1, "one"), mold("S", 2, "two", "three")
	fa, fb := ethernet(t, ipUDP(t, groupA, a)), ethernet(t, ipUDP(t, groupA, b))
	le, be := binary.LittleEndian, binary.BigEndian
	second := noon + 1e9
	rs := []record{{stamp: noon, data: fa}, {stamp: second, data: fb}}
	ng := func(order binary.AppendByteOrder, options []byte, units func(moldcast.Stamp) uint64) []byte {
		return cat(section(order), iface(order, linkEthernet, options...),
			enhanced(order, 0, units(noon), fa), enhanced(order, 0, units(second), fb))
	}
	nano := ng(le, option(le, ngOptResol, 9), func(s moldcast.Stamp) uint64 { return uint64(s) })
	var gz, zst bytes.Buffer
	z := gzip.NewWriter(&gz)
	z.Write(nano)
	z.Close()
	zs, _ := zstd.NewWriter(&zst)
	zs.Write(pcapEth(rs...))
	zs.Close()
	for _, c := range []struct {
		name string
		file []byte
		unit moldcast.Stamp // of its times
	}{
		{"pcap µs le", pcapOf(le, magicMicro, linkEthernet, rs...), 1e3},
		{"pcap µs be", pcapOf(be, magicMicro, linkEthernet, rs...), 1e3},
		{"pcap ns le", pcapOf(le, magicNano, linkEthernet, rs...), 1},
		{"pcap ns be", pcapOf(be, magicNano, linkEthernet, rs...), 1},
		{"pcap with FCS bits", pcapOf(le, magicNano, linkEthernet|0x14000000, rs...), 1},
		{"pcapng ns", nano, 1},
		{"pcapng ns be", ng(be, option(be, ngOptResol, 9), func(s moldcast.Stamp) uint64 { return uint64(s) }), 1},
		{"pcapng default µs", ng(le, nil, func(s moldcast.Stamp) uint64 { return uint64(s) / 1e3 }), 1e3},
		{"pcapng s", ng(le, option(le, ngOptResol, 0), func(s moldcast.Stamp) uint64 { return uint64(s) / 1e9 }), 1e9},
		{"pcapng 100 ps", ng(le, option(le, ngOptResol, 10), func(s moldcast.Stamp) uint64 { return uint64(s) * 10 }), 1},
		{"pcapng 2^-20 s", ng(le, option(le, ngOptResol, 0x80|20), func(s moldcast.Stamp) uint64 {
			return uint64(s/1e9)<<20 + uint64(s%1e9)<<20/1e9
		}), 954},
		{"pcapng offset", ng(le, cat(option(le, ngOptResol, 9), option(le, ngOptOffset, le.AppendUint64(nil, 1473799000)...)), func(s moldcast.Stamp) uint64 { return uint64(s) - 1473799000e9 }), 1},
		{"pcapng two sections and interfaces", cat(
			section(be), iface(be, linkRaw), iface(be, linkEthernet, option(be, ngOptResol, 9)...), enhanced(be, 1, uint64(noon), fa),
			block(be, 5, []byte("statistics")), block(be, 0x0bad, bytes.Repeat([]byte{1}, 1<<20)),
			section(le), iface(le, linkRaw, option(le, ngOptResol, 9)...), enhanced(le, 0, uint64(second), fb[14:])), 1},
		{"pcapng gz", gz.Bytes(), 1},
		{"pcap zst", zst.Bytes(), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, r := range []io.Reader{bytes.NewReader(c.file), iotest.OneByteReader(bytes.NewReader(c.file))} {
				got, err := readAll(t, r)
				if err != nil || len(got) != 2 {
					t.Fatalf("%d packets, %v", len(got), err)
				}
				for i, p := range got {
					want := rs[i].stamp
					if d := want - p.Stamp; d < 0 || d >= c.unit {
						t.Errorf("packet %d: stamp %d, want %d to %d ns", i, p.Stamp, want, c.unit)
					}
					if p.Src != sender || p.Dst != groupA || p.Fault != Whole || p.Frame != int64(i+1) {
						t.Errorf("packet %d: %+v", i, p)
					}
				}
				if !bytes.Equal(got[0].Payload, a) || !bytes.Equal(got[1].Payload, b) {
					t.Errorf("payloads %q, %q", got[0].Payload, got[1].Payload)
				}
			}
		})
	}
}

func TestOldAndSimplePacketBlocks(t *testing.T) {
	le := binary.LittleEndian
	f := ethernet(t, ipUDP(t, groupA, mold("S", 1, "one")))
	old := le.AppendUint16(nil, 0) // interface
	old = le.AppendUint16(old, 3)  // drops
	old = le.AppendUint32(old, uint32(uint64(noon/1e3)>>32))
	old = le.AppendUint32(old, uint32(int64(noon/1e3)&(1<<32-1)))
	old = le.AppendUint32(old, uint32(len(f)))
	old = le.AppendUint32(old, uint32(len(f)))
	simple := le.AppendUint32(nil, uint32(len(f)))
	got, err := readAll(t, bytes.NewReader(cat(section(le), iface(le, linkEthernet),
		block(le, ngOldPacket, cat(old, f)), block(le, ngSimple, cat(simple, f)))))
	if err != nil || len(got) != 2 {
		t.Fatalf("%d packets, %v", len(got), err)
	}
	for i, p := range got {
		// A simple packet has no time: it goes with the one before.
		if p.Fault != Whole || p.Stamp != noon/1e3*1e3 || !bytes.Equal(p.Payload, mold("S", 1, "one")) {
			t.Errorf("packet %d: %+v", i, p)
		}
	}
}

func TestLinkTypes(t *testing.T) {
	payload := mold("S", 7, "seven")
	for _, dst := range []netip.AddrPort{groupA, group6} {
		ip := ipUDP(t, dst, payload)
		v6 := ip[0]>>4 == 6
		ether, families := []byte{0x08, 0x00}, []uint32{2}
		if v6 {
			ether, families = []byte{0x86, 0xdd}, []uint32{10, 24, 28, 30}
		}
		sll := cat([]byte{0, 1, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0}, ether, ip)
		sll2 := cat(ether, []byte{0, 0, 0, 0, 0, 2, 0, 1, 1, 6, 1, 2, 3, 4, 5, 6, 0, 0}, ip)
		type linkCase struct {
			name string
			link uint32
			data []byte
		}
		cases := []linkCase{
			{"ethernet", linkEthernet, ethernet(t, ip)},
			{"vlan", linkEthernet, ethernet(t, ip, 141)},
			{"qinq", linkEthernet, ethernet(t, ip, 100, 141)},
			{"three tags", linkEthernet, ethernet(t, ip, 1, 2, 3)},
			{"trailer", linkEthernet, cat(ethernet(t, ip), []byte("12345678"))},
			{"raw", linkRaw, ip},
			{"raw bsd", linkRawBSD, ip},
			{"raw openbsd", linkRawOpen, ip},
			{"sll", linkSLL, sll},
			{"sll2", linkSLL2, sll2},
		}
		if v6 {
			cases = append(cases, linkCase{"ipv6", linkIPv6, ip})
		} else {
			cases = append(cases, linkCase{"ipv4", linkIPv4, ip})
		}
		for _, f := range families {
			cases = append(cases,
				linkCase{fmt.Sprint("null le ", f), linkNull, cat(binary.LittleEndian.AppendUint32(nil, f), ip)},
				linkCase{fmt.Sprint("null be ", f), linkNull, cat(binary.BigEndian.AppendUint32(nil, f), ip)},
				linkCase{fmt.Sprint("loop ", f), linkLoop, cat(binary.BigEndian.AppendUint32(nil, f), ip)})
		}
		for _, c := range cases {
			t.Run(fmt.Sprintf("%v %s", dst.Addr(), c.name), func(t *testing.T) {
				for _, file := range [][]byte{
					pcapOf(binary.BigEndian, magicNano, c.link, record{stamp: noon, data: c.data}),
					cat(section(binary.BigEndian), iface(binary.BigEndian, uint16(c.link)), enhanced(binary.BigEndian, 0, uint64(noon/1e3), c.data)),
				} {
					got, err := readAll(t, bytes.NewReader(file))
					if err != nil || len(got) != 1 {
						t.Fatalf("%d packets, %v", len(got), err)
					}
					if p := got[0]; p.Dst != dst || p.Fault != Whole || !bytes.Equal(p.Payload, payload) {
						t.Errorf("%+v", p)
					}
				}
				// Cut anywhere, it is never taken for whole.
				for n := 0; n < len(c.data)-1; n += 1 + n/12 {
					if c.name == "trailer" && n >= len(c.data)-8 {
						break
					}
					got, err := readAll(t, bytes.NewReader(pcapOf(binary.BigEndian, magicNano, c.link, record{stamp: noon, data: c.data[:n], orig: len(c.data)})))
					if err != nil || len(got) > 1 || len(got) == 1 && got[0].Fault == Whole {
						t.Fatalf("cut to %d bytes: %+v, %v", n, got, err)
					}
				}
			})
		}
	}
}

// fragments cuts an IPv4 or IPv6 datagram into fragments of at most size bytes.
func fragments(t testing.TB, dst netip.AddrPort, id uint16, payload []byte, size int) [][]byte {
	body := udpFor(t, dst, payload)
	var out [][]byte
	for off := 0; off < len(body); off += size {
		end := min(off+size, len(body))
		more := end < len(body)
		if dst.Addr().Is4() {
			b := ipUDP(t, dst, nil)[:20]
			binary.BigEndian.PutUint16(b[2:], uint16(20+end-off))
			binary.BigEndian.PutUint16(b[4:], id)
			frag := uint16(off / 8)
			if more {
				frag |= 0x2000
			}
			binary.BigEndian.PutUint16(b[6:], frag)
			b[10], b[11] = 0, 0
			binary.BigEndian.PutUint16(b[10:], ^fold(sum(b, 0)))
			out = append(out, cat(b, body[off:end]))
			continue
		}
		b := ipUDP(t, dst, nil)[:40]
		binary.BigEndian.PutUint16(b[4:], uint16(8+end-off))
		b[6] = 44
		frag := uint16(off)
		if more {
			frag |= 1
		}
		h := binary.BigEndian.AppendUint16([]byte{protoUDP, 0}, frag)
		h = binary.BigEndian.AppendUint32(h, uint32(id))
		out = append(out, cat(b, h, body[off:end]))
	}
	return out
}

func TestFragments(t *testing.T) {
	big := mold("S", 1, strings.Repeat("x", 4000), strings.Repeat("y", 900))
	for _, dst := range []netip.AddrPort{groupA, group6} {
		t.Run(dst.Addr().String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				// Several datagrams, their fragments in any order, some twice.
				n := rapid.IntRange(1, 4).Draw(rt, "datagrams")
				var all [][]byte
				for i := range n {
					p := bytes.Clone(big)
					p[30] = byte(i)
					all = append(all, fragments(t, dst, uint16(i), p, rapid.SampledFrom([]int{8, 64, 1480}).Draw(rt, "size"))...)
				}
				all = rapid.Permutation(all).Draw(rt, "order")
				var rs []record
				for i, f := range all {
					rs = append(rs, record{stamp: noon + moldcast.Stamp(i), data: ethernet(t, f)})
				}
				got, err := readAll(t, bytes.NewReader(pcapEth(rs...)))
				if err != nil || len(got) != n {
					rt.Fatalf("%d datagrams of %d, %v", len(got), n, err)
				}
				seen := map[byte]bool{}
				for _, p := range got {
					seen[p.Payload[30]] = true
					p.Payload[30] = big[30]
					if p.Fault != Whole && p.Fault != BadUDPSum || p.Dst != dst || !bytes.Equal(p.Payload, big) {
						rt.Fatalf("%v %v, %d bytes", p.Dst, p.Fault, len(p.Payload))
					}
				}
				if len(seen) != n {
					rt.Fatalf("%d different", len(seen))
				}
			})
		})
	}
}

func TestFragmentFaults(t *testing.T) {
	big := mold("S", 1, strings.Repeat("x", 4000))
	frame := func(b []byte) record { return record{stamp: noon, data: ethernet(t, b)} }
	fs := fragments(t, groupA, 1, big, 1480)
	check := func(name string, want []Fault, rs ...record) {
		t.Helper()
		got, err := readAll(t, bytes.NewReader(pcapEth(rs...)))
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d datagrams, %v", name, len(got), err)
		}
		for i, p := range got {
			if p.Fault != want[i] {
				t.Errorf("%s: %d: %v, want %v", name, i, p.Fault, want[i])
			}
		}
	}
	check("one missing", []Fault{Incomplete}, frame(fs[0]), frame(fs[2]))
	check("one twice", []Fault{Whole}, frame(fs[0]), frame(fs[1]), frame(fs[1]), frame(fs[2]))
	other := bytes.Clone(fs[1])
	other[500] ^= 1
	check("overlap disagrees", []Fault{Disagree}, frame(fs[0]), frame(fs[1]), frame(other), frame(fs[2]))
	late := frame(fs[2])
	late.stamp += moldcast.Stamp(partialAge) + 1
	check("identification used again", []Fault{Incomplete, Incomplete}, frame(fs[0]), frame(fs[1]), late)

	// The address of one that misses fragments is told where the first is there.
	got, _ := readAll(t, bytes.NewReader(pcapEth(frame(fs[1]), frame(fs[0]))))
	if len(got) != 1 || got[0].Dst != groupA || got[0].Frame != 1 {
		t.Errorf("%+v", got)
	}

	// Any number of datagrams that stay incomplete take bounded memory; each is named.
	var rs []record
	const n = 3000
	for i := range n {
		rs = append(rs, frame(fragments(t, groupA, uint16(i), big, 1480)[0]))
	}
	x, err := NewReader(bytes.NewReader(pcapEth(rs...)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for {
		p, err := x.Next()
		if err == io.EOF {
			break
		}
		if err != nil || p.Fault != Incomplete {
			t.Fatal(p, err)
		}
		if count++; len(x.frag.order) > maxPartial || len(x.frag.out) > 2 || len(x.frag.free) > maxPartial {
			t.Fatal("unbounded", len(x.frag.order), len(x.frag.out), len(x.frag.free))
		}
	}
	if count != n {
		t.Errorf("%d named, want %d", count, n)
	}
}

func TestDatagramFaults(t *testing.T) {
	good := ethernet(t, ipUDP(t, groupA, mold("S", 1, "one")))
	mutate := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	ip := 14
	udp := ip + 20
	for _, c := range []struct {
		name string
		data []byte
		want Fault
	}{
		{"good", good, Whole},
		{"ip version", mutate(ip, 0x65), BadHeader},
		{"header length", mutate(ip, 0x44), BadHeader},
		{"source address", mutate(ip+12, 1), BadIPSum},
		{"ip length beyond the frame", mutate(ip+2, 0x10), BadIPSum},
		{"udp length beyond the packet", mutate(udp+4, 0x10), BadHeader},
		{"udp length below 8", mutate(udp+5, 7), BadHeader},
		{"payload", mutate(udp+8+21, 'x'), BadUDPSum},
		{"port", mutate(udp+2, 1), BadUDPSum},
	} {
		got, err := readAll(t, bytes.NewReader(pcapEth(record{stamp: noon, data: c.data})))
		if err != nil || len(got) != 1 || got[0].Fault != c.want {
			t.Errorf("%s: %+v, %v, want %v", c.name, got, err, c.want)
		}
	}
	// A UDP checksum of 0 is none (IPv4).
	none := mutate(udp+6, 0)
	none[udp+7] = 0
	if got, _ := readAll(t, bytes.NewReader(pcapEth(record{data: none}))); len(got) != 1 || got[0].Fault != Whole {
		t.Errorf("without checksum: %+v", got)
	}
	// The datagram ends by the UDP length also where the IP packet goes on.
	long := cat(good, []byte("trailer!"))
	binary.BigEndian.PutUint16(long[ip+2:], uint16(len(long)-ip))
	long[ip+10], long[ip+11] = 0, 0
	binary.BigEndian.PutUint16(long[ip+10:], ^fold(sum(long[ip:udp], 0)))
	if got, _ := readAll(t, bytes.NewReader(pcapEth(record{data: long}))); len(got) != 1 || got[0].Fault != Whole || !bytes.Equal(got[0].Payload, mold("S", 1, "one")) {
		t.Errorf("trailer within the IP packet: %+v", got)
	}
	// Checksums are not looked at unless asked for.
	x, err := NewReader(bytes.NewReader(pcapEth(record{data: mutate(udp+8+21, 'x')})), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := x.Next(); err != nil || p.Fault != Whole {
		t.Errorf("unchecked: %v, %v", p.Fault, err)
	}
}

// TestFileFaults: each fault is named with its kind and the position of the
// record, and the frames before it are there.
func TestFileFaults(t *testing.T) {
	le := binary.LittleEndian
	f := ethernet(t, ipUDP(t, groupA, mold("S", 1, "one")))
	r := record{stamp: noon, data: f}
	two := pcapEth(r, r)
	rec := 16 + len(f)
	patch := func(b []byte, at int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], v)
		return b
	}
	ng := cat(section(le), iface(le, linkEthernet), enhanced(le, 0, 1, f), enhanced(le, 0, 2, f))
	ifaceAt := len(section(le))
	firstAt := ifaceAt + len(iface(le, linkEthernet))
	secondAt := firstAt + len(enhanced(le, 0, 1, f))
	huge := []byte{0, 0, 0, 0x40}
	for _, c := range []struct {
		name   string
		file   []byte
		want   error
		pos    int
		frames int
	}{
		{"empty", nil, ErrFormat, 0, 0},
		{"text", []byte("no capture"), ErrFormat, 0, 0},
		{"short header", two[:20], ErrTruncated, 0, 0},
		{"version", patch(two, 4, 3), ErrVersion, 4, 0},
		{"link type", patch(two, 20, 105), ErrLinkType, 20, 0},
		{"cut in the record header", two[:24+rec+7], ErrTruncated, 24 + rec, 1},
		{"cut in the frame", two[:len(two)-1], ErrTruncated, 24 + rec, 1},
		{"1 GB claimed", patch(two, 24+rec+8, huge...), ErrLength, 24 + rec, 1},
		{"256 KiB claimed", patch(two, 24+rec+8, 0, 0, 4, 0), ErrTruncated, 24 + rec, 1},
		{"fraction", patch(two, 24+rec+4, 0xff, 0xff, 0xff, 0xff), ErrTime, 24 + rec, 1},
		{"ng magic", patch(ng, 8, 9), ErrBlock, 0, 0},
		{"ng version", patch(ng, 12, 2), ErrVersion, 0, 0},
		{"ng cut", ng[:len(ng)-5], ErrTruncated, secondAt, 1},
		{"ng cut header", ng[:secondAt+3], ErrTruncated, secondAt, 1},
		{"ng 1 GB block", patch(ng, secondAt+4, huge...), ErrLength, secondAt, 1},
		{"ng odd block", patch(ng, secondAt+4, 33), ErrLength, secondAt, 1},
		{"ng empty block", patch(ng, secondAt+4, 0, 0, 0, 0), ErrLength, secondAt, 1},
		{"ng lengths differ", patch(ng, len(ng)-4, 12), ErrBlock, secondAt, 1},
		{"ng interface", patch(ng, secondAt+8, 1), ErrBlock, secondAt, 1},
		{"ng captured", patch(ng, secondAt+20, 0xff), ErrLength, secondAt, 1},
		{"ng captured 1 GB", patch(ng, secondAt+20, huge...), ErrLength, secondAt, 1},
		{"ng time", patch(ng, secondAt+12, 0xff, 0xff, 0xff, 0xff), ErrTime, secondAt, 1},
		{"ng resolution", cat(section(le), iface(le, linkEthernet, option(le, ngOptResol, 0x7f)...)), ErrBlock, ifaceAt, 0},
		{"ng unknown block cut", cat(ng, block(le, 77, make([]byte, 1000))[:500]), ErrTruncated, len(ng), 2},
		{"ng unknown 1 GB", cat(ng, patch(block(le, 77, make([]byte, 8)), 4, huge...)), ErrTruncated, len(ng), 2},
	} {
		got, err := readAll(t, bytes.NewReader(c.file))
		var fe *FormatError
		if !errors.As(err, &fe) || !errors.Is(err, c.want) || fe.Pos != int64(c.pos) || len(got) != c.frames {
			t.Errorf("%s: %d frames, %v; want %d frames, %v at byte %d", c.name, len(got), err, c.frames, c.want, c.pos)
		}
	}
	// Each prefix gives the whole records in it.
	for n := 24; n <= len(two); n++ {
		got, err := readAll(t, bytes.NewReader(two[:n]))
		if want := (n - 24) / rec; len(got) != want || (err == nil) != ((n-24)%rec == 0) {
			t.Fatalf("prefix of %d: %d frames, %v", n, len(got), err)
		}
	}
	// So does damaged compression.
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(two)
	z.Flush()
	got, err := readAll(t, bytes.NewReader(b.Bytes()))
	if !errors.Is(err, ErrCompressed) || len(got) != 2 {
		t.Errorf("cut gzip: %d frames, %v", len(got), err)
	}
	// An error of the system is not one of the file.
	var fe *FormatError
	_, err = readAll(t, io.MultiReader(bytes.NewReader(two), iotest.ErrReader(io.ErrClosedPipe)))
	if !errors.Is(err, io.ErrClosedPipe) || errors.As(err, &fe) {
		t.Errorf("system error: %v", err)
	}
}

// A small file that claims much gets little memory.
func TestLyingLengthAllocatesLittle(t *testing.T) {
	f := pcapEth(record{data: make([]byte, 60)})
	copy(f[24+8:], []byte{0, 0, 0, 0x40})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readAll(t, bytes.NewReader(f)); err == nil {
		t.Fatal("taken")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return
	}
	f := ethernet(t, ipUDP(t, groupA, mold("S", 1, "one", "two")), 141)
	rs := make([]record, 3000)
	for i := range rs {
		rs[i] = record{stamp: noon, data: f}
	}
	for _, general := range []bool{false, true} {
		x, err := NewReader(bytes.NewReader(pcapEth(rs...)), Options{Checksums: true})
		if err != nil {
			t.Fatal(err)
		}
		x.general = general
		if n := testing.AllocsPerRun(2000, func() {
			if p, err := x.Next(); err != nil || p.Fault != Whole {
				t.Fatal(p, err)
			}
		}); n != 0 {
			t.Errorf("general %v: %v allocations a packet", general, n)
		}
	}
}

func fuzzReader(t *testing.T, b []byte) {
	x, err := NewReader(bytes.NewReader(b), Options{Checksums: true})
	if err != nil {
		return
	}
	defer x.Close()
	general, err := NewReader(bytes.NewReader(b), Options{Checksums: true})
	if err != nil {
		t.Fatal(err)
	}
	defer general.Close()
	general.general = true
	s := NewSurvey(SurveyOptions{})
	last := int64(-1)
	for {
		p, err := x.Next()
		if diff := differ(p, err, general); diff != "" {
			t.Fatal(diff)
		}
		if err != nil {
			if errors.Is(err, errInternal) {
				t.Fatal(err)
			}
			if _, again := x.Next(); again != err {
				t.Fatalf("%v became %v", err, again)
			}
			break
		}
		if p.Pos < 0 || p.Pos >= int64(len(b)) || len(p.Payload) > 65535 {
			t.Fatalf("%+v in a file of %d", p, len(b))
		}
		if p.Fault == Whole && p.Pos < last && p.Frame == 0 {
			t.Fatal("position went back")
		}
		last = p.Pos
		s.Add(&p)
	}
	s.Finish()
	s.Channels()
}

// differ says how what a Reader gave differs from what another gives next.
func differ(p Packet, err error, other *Reader) string {
	q, oerr := other.Next()
	switch {
	case fmt.Sprint(err) != fmt.Sprint(oerr):
		return fmt.Sprintf("%v, and %v", err, oerr)
	case !reflect.DeepEqual(p, q):
		return fmt.Sprintf("%+v, and %+v", p, q)
	case cap(p.Payload) != cap(q.Payload):
		return fmt.Sprintf("%d bytes are reached, and %d", cap(p.Payload), cap(q.Payload))
	}
	return ""
}

func seeds(f *testing.F) []record {
	m := mold("S", 1, "one", "")
	var rs []record
	rs = append(rs, record{stamp: noon, data: ethernet(f, ipUDP(f, groupA, iex(0x43cd0000, 1, "one", "")))}, record{stamp: noon, data: ethernet(f, ipUDP(f, groupA, iex(0x43cd0000, 3)))})
	for _, dst := range []netip.AddrPort{groupA, group6} {
		rs = append(rs, record{stamp: noon, data: ethernet(f, ipUDP(f, dst, m))}, record{stamp: noon, data: ethernet(f, ipUDP(f, dst, m), 1, 2)})
		for _, p := range fragments(f, dst, 5, mold("S", 3, strings.Repeat("z", 300)), 64) {
			rs = append(rs, record{stamp: noon, data: ethernet(f, p)})
		}
	}
	return rs
}

func FuzzPcap(f *testing.F) {
	rs := seeds(f)
	f.Add(pcapEth(rs...))
	f.Add(pcapOf(binary.BigEndian, magicMicro, linkEthernet, rs[:2]...))
	for _, link := range []uint32{linkNull, linkRaw, linkSLL, linkSLL2, linkLoop} {
		f.Add(pcapOf(binary.LittleEndian, magicNano, link, record{data: rs[0].data[:60]}))
	}
	f.Fuzz(fuzzReader)
}

func FuzzPcapng(f *testing.F) {
	rs := seeds(f)
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		file := cat(section(order), iface(order, linkEthernet, cat(option(order, ngOptResol, 9), option(order, ngOptOffset, 0, 0, 0, 0, 0, 0, 0, 1))...), iface(order, linkSLL2))
		for _, r := range rs {
			file = append(file, enhanced(order, 0, uint64(r.stamp), r.data)...)
		}
		file = append(file, block(order, ngSimple, cat(order.AppendUint32(nil, uint32(len(rs[0].data))), rs[0].data))...)
		file = append(file, block(order, 0xbad, []byte("x"))...)
		f.Add(file)
	}
	f.Fuzz(fuzzReader)
}
