package capfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// What gopacket would read or write wrongly, and this package must not.

// appendFrame appends the frame that a Writer makes.
func appendFrame(b []byte, dst netip.AddrPort, payload []byte) []byte {
	var e encoder
	return e.append(b, dst, len(payload), [][]byte{payload})
}

func TestLayersThatGopacketMisreads(t *testing.T) {
	be := binary.BigEndian
	m := mold("S", 1, "one")
	v4, v6 := ipUDP(t, groupA, m), ipUDP(t, group6, m)
	patch := func(b []byte, at int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], v)
		return b
	}
	mac := make([]byte, 12)
	tags := func(types ...uint16) []byte {
		b := bytes.Clone(mac)
		for _, typ := range types {
			b = be.AppendUint16(b, typ)
			b = append(b, 0, 9)
		}
		return cat(be.AppendUint16(b, 0x0800), v4)
	}
	withOptions := func(options ...byte) []byte {
		b := cat(v4[:20], options, v4[20:])
		b[0] += byte(len(options) / 4)
		be.PutUint16(b[2:], uint16(len(b)))
		b[10], b[11] = 0, 0
		be.PutUint16(b[10:], ^fold(sum(b[:20+len(options)], 0)))
		return b
	}
	resum := func(b []byte) []byte {
		b[10], b[11] = 0, 0
		be.PutUint16(b[10:], ^fold(sum(b[:20], 0)))
		return b
	}
	tunnel := func(proto byte) []byte {
		b := cat(v4[:20], v4)
		b[9] = proto
		be.PutUint16(b[2:], uint16(len(b)))
		return resum(b)
	}
	hop := cat(v6[:40], []byte{protoUDP, 0, 1, 4, 0, 0, 0, 0}, v6[40:])
	hop[6] = 0
	be.PutUint16(hop[4:], uint16(len(hop)-40))
	const none = Fault(255)
	for _, c := range []struct {
		name string
		link uint32
		data []byte
		want Fault
		dst  netip.AddrPort
	}{
		{"older QinQ", linkEthernet, tags(0x9100, 0x9200, 0x9300), Whole, groupA},
		{"twelve tags", linkEthernet, tags(0x88a8, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100, 0x8100), Whole, groupA},
		{"bridged Ethernet", linkEthernet, cat(mac, []byte{0x65, 0x58}, ethernet(t, v4)), none, netip.AddrPort{}},
		{"cut behind Ethernet", linkEthernet, ethernet(t, v4)[:14], Cut, netip.AddrPort{}},
		{"cut behind IPv4", linkRaw, v4[:20], Cut, netip.AddrPortFrom(groupA.Addr(), 0)},
		{"SLL with a long address", linkSLL, cat([]byte{0, 1, 0, 32, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0}, v4), Whole, groupA},
		{"SLL with an address length that wraps", linkSLL, cat([]byte{0, 1, 0, 32, 0xff, 0xfb, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0}, v4), Whole, groupA},
		{"IPv6 as IPv4", linkIPv4, v6, BadHeader, netip.AddrPort{}},
		{"IPv4 without a length", linkRaw, resum(patch(v4, 2, 0, 0)), Whole, groupA},
		{"IPv4 options", linkRaw, withOptions(0x94, 4, 0, 0), Whole, groupA},
		{"IPv4 option of two bytes", linkRaw, withOptions(0x99, 2, 0, 0), Whole, groupA},
		{"IPv4 option beyond the header", linkRaw, withOptions(0x99, 40, 0, 0), Whole, groupA},
		{"cut in the options", linkRaw, withOptions(0x94, 4, 0, 0)[:22], Cut, netip.AddrPortFrom(groupA.Addr(), 0)},
		{"IPv4 in IPv4", linkRaw, tunnel(4), none, netip.AddrPort{}},
		{"IPv4 in IPIP", linkRaw, tunnel(94), none, netip.AddrPort{}},
		{"UDP length 0", linkRaw, patch(v4, 24, 0, 0), BadHeader, groupA},
		{"UDP length 5", linkRaw, patch(v4, 24, 0, 5), BadHeader, groupA},
		{"IPv6 without a length", linkRaw, patch(v6, 4, 0, 0), Whole, group6},
		{"IPv6 hop by hop", linkRaw, hop, Whole, group6},
		{"IPv6 hop by hop and a trailer", linkRaw, cat(hop, mac), Whole, group6},
	} {
		got, err := readAll(t, bytes.NewReader(pcapOf(binary.LittleEndian, magicNano, c.link, record{stamp: noon, data: c.data})))
		switch {
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == none && len(got) != 0, c.want != none && len(got) != 1:
			t.Errorf("%s: %+v", c.name, got)
		case c.want == none:
		case got[0].Fault != c.want || got[0].Dst != c.dst || c.want == Whole && !bytes.Equal(got[0].Payload, m):
			t.Errorf("%s: %+v, want %v to %v", c.name, got[0], c.want, c.dst)
		}
	}
}

// A record may claim a shorter original, and the header any snap length.
func TestPcapLengthsThatGopacketRefuses(t *testing.T) {
	f := pcapEth(record{stamp: noon, data: ethernet(t, ipUDP(t, groupA, mold("S", 1, "one")))})
	copy(f[24+12:], []byte{1, 0, 0, 0})
	for _, snap := range [][]byte{{0, 0, 0, 0}, {20, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}} {
		copy(f[16:], snap)
		if got, err := readAll(t, bytes.NewReader(f)); err != nil || len(got) != 1 || got[0].Fault != Whole {
			t.Errorf("snap length %x: %+v, %v", snap, got, err)
		}
	}
}

// A short frame is padded, and read back by its UDP length.
func TestWriterPads(t *testing.T) {
	for n := range 20 {
		payload := bytes.Repeat([]byte{'x'}, n)
		if f := appendFrame(nil, groupA, payload); len(f) != max(60, 42+n) || !bytes.Equal(f[42:42+n], payload) || bytes.Trim(f[42+n:], "\x00") != nil {
			t.Errorf("%d bytes: %x", n, f)
		}
	}
	// Padding is not left over from a longer frame.
	var e encoder
	b := e.append(nil, groupA, 100, [][]byte{bytes.Repeat([]byte{0xff}, 100)})
	if f := e.append(b[:0], groupA, 0, nil); bytes.Trim(f[42:], "\x00") != nil {
		t.Errorf("padding %x", f[42:])
	}
}

// An IPv4 address in IPv6 clothes goes as IPv4, its lengths too.
func TestWriterMappedAddress(t *testing.T) {
	mapped := netip.AddrPortFrom(netip.AddrFrom16(groupA.Addr().As16()), groupA.Port())
	for _, f := range []Format{Pcap, Pcapng} {
		got, err := readAll(t, bytes.NewReader(write(t, f, []sent{{noon, mapped, mold("S", 1, "one")}, {noon, group6, mold("S", 2)}})))
		if err != nil || len(got) != 2 || got[0].Dst != groupA || got[0].Fault != Whole || got[1].Dst != group6 {
			t.Errorf("%+v, %v", got, err)
		}
		w, _ := NewWriter(io.Discard, f)
		if err := w.Write(noon, mapped, make([]byte, moldcast.MaxDatagram+1)); !errors.Is(err, ErrTooLong) {
			t.Errorf("more than IPv4 carries: %v", err)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What the system says is told as it is, from each format and each record.
func TestWriterKeepsErrors(t *testing.T) {
	for _, f := range []Format{Pcap, Pcapng} {
		w, err := NewWriter(full{}, f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; err == nil && i < 1000; i++ {
			err = w.Write(noon, groupA, make([]byte, 1400))
		}
		for range 20 {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%d: %v", f, err)
			}
			err = w.Write(noon, groupA, make([]byte, 1400))
		}
		if err := w.Flush(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d: flush: %v", f, err)
		}
	}
}

// Of a group, 23 bits go into the MAC address (RFC 1112); 32 in IPv6 (RFC 2464).
func TestWriterMulticastMAC(t *testing.T) {
	for dst, want := range map[string]string{
		"239.255.0.1:1":       "01005e7f0001",
		"239.127.0.1:1":       "01005e7f0001",
		"[ff15::abcd:ef01]:1": "3333abcdef01",
		"10.1.2.3:1":          "02000a010203",
	} {
		if got := fmt.Sprintf("%x", appendFrame(nil, netip.MustParseAddrPort(dst), nil)[:6]); got != want {
			t.Errorf("%s: %s, want %s", dst, got, want)
		}
	}
}
