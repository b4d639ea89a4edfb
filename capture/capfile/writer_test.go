package capfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/moldtape/moldtape/moldcast"
	"pgregory.net/rapid"
)

type sent struct {
	stamp   moldcast.Stamp
	dst     netip.AddrPort
	payload []byte
}

func write(t testing.TB, f Format, all []sent) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := w.Write(s.stamp, s.dst, s.payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What is written is read back by this package and by gopacket, the same.
func TestWriter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) sent {
			return sent{
				stamp:   moldcast.Stamp(rapid.Int64Range(0, (1<<32-1)*1e9).Draw(t, "stamp")),
				dst:     rapid.SampledFrom([]netip.AddrPort{groupA, groupB, group6, netip.MustParseAddrPort("239.255.0.1:65535"), netip.MustParseAddrPort("127.0.0.1:1")}).Draw(t, "dst"),
				payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
			}
		}), 1, 10).Draw(rt, "packets")
		all = append(all, sent{stamp: 1, dst: groupA, payload: bytes.Repeat([]byte{7}, moldcast.MaxDatagram)})
		for _, f := range []Format{Pcap, Pcapng} {
			file := write(t, f, all)
			got, err := readAll(t, bytes.NewReader(file))
			if err != nil || len(got) != len(all) {
				rt.Fatalf("%d packets of %d, %v", len(got), len(all), err)
			}
			var oracle interface {
				ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
			}
			if f == Pcap {
				oracle, err = pcapgo.NewReader(bytes.NewReader(file))
			} else {
				oracle, err = pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
			}
			if err != nil {
				rt.Fatal(err)
			}
			for i, p := range got {
				w := all[i]
				if p.Stamp != w.stamp || p.Dst != w.dst || p.Fault != Whole || !bytes.Equal(p.Payload, w.payload) ||
					!p.Src.Addr().IsUnspecified() || p.Src.Port() != w.dst.Port() {
					rt.Fatalf("%+v, want %+v", p, w)
				}
				data, ci, err := oracle.ReadPacketData()
				if err != nil || ci.Timestamp.UnixNano() != int64(w.stamp) {
					rt.Fatal(ci.Timestamp, w.stamp, err)
				}
				x := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
				if x.ErrorLayer() != nil {
					rt.Fatal(x.ErrorLayer().Error())
				}
				udp := x.Layer(layers.LayerTypeUDP).(*layers.UDP)
				if udp.DstPort != layers.UDPPort(w.dst.Port()) || !bytes.Equal(udp.Payload, w.payload) || udp.Checksum == 0 {
					rt.Fatalf("gopacket reads %+v", udp)
				}
				mac := x.Layer(layers.LayerTypeEthernet).(*layers.Ethernet).DstMAC.String()
				if want := map[netip.AddrPort]string{groupA: "01:00:5e:36:0c:6f", groupB: "01:00:5e:31:c4:6f", group6: "33:33:12:34:56:78"}[w.dst]; want != "" && mac != want {
					rt.Fatalf("%v goes to %s, want %s", w.dst, mac, want)
				}
				if ip, ok := x.NetworkLayer().(*layers.IPv4); ok && ip.TTL != 1 {
					rt.Fatalf("TTL %d", ip.TTL)
				}
			}
			if _, _, err := oracle.ReadPacketData(); err != io.EOF {
				rt.Fatal(err)
			}
		}
	})
}

// Frames are those that gopacket makes of the same headers.
func TestFramesAsGopacket(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dst := rapid.SampledFrom([]netip.AddrPort{groupA, group6, netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("[2001:db8::1]:9")}).Draw(rt, "dst")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(rt, "payload")
		got := appendFrame(nil, dst, payload)
		ether := &layers.Ethernet{SrcMAC: got[6:12], DstMAC: got[:6], EthernetType: layers.EthernetTypeIPv4}
		udp := &layers.UDP{SrcPort: layers.UDPPort(dst.Port()), DstPort: layers.UDPPort(dst.Port())}
		var ip interface {
			gopacket.NetworkLayer
			gopacket.SerializableLayer
		} = &layers.IPv4{Version: 4, Flags: layers.IPv4DontFragment, TTL: 1, Protocol: layers.IPProtocolUDP, SrcIP: make([]byte, 4), DstIP: dst.Addr().AsSlice()}
		if dst.Addr().Is6() {
			ether.EthernetType = layers.EthernetTypeIPv6
			ip = &layers.IPv6{Version: 6, HopLimit: 1, NextHeader: layers.IPProtocolUDP, SrcIP: make([]byte, 16), DstIP: dst.Addr().AsSlice()}
		}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			rt.Fatal(err)
		}
		want := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ether, ip, udp, gopacket.Payload(payload)); err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) && udp.Checksum != 0 {
			rt.Fatalf("%x\nwant %x", got, want.Bytes())
		}
	})
}

func TestWriterRefuses(t *testing.T) {
	for _, c := range []struct {
		f    Format
		s    sent
		want error
	}{
		{Pcap, sent{1, groupA, make([]byte, moldcast.MaxDatagram+1)}, ErrTooLong},
		{Pcap, sent{1 << 32 * 1e9, groupA, nil}, ErrPcapTime},
		{Pcap, sent{-1, groupA, nil}, ErrPcapTime},
		{Pcapng, sent{-1, groupA, nil}, ErrPcapTime},
		{Pcapng, sent{1 << 32 * 1e9, groupA, nil}, nil},
	} {
		w, err := NewWriter(io.Discard, c.f)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(c.s.stamp, c.s.dst, c.s.payload); !errors.Is(err, c.want) {
			t.Errorf("%v %d: %v, want %v", c.f, c.s.stamp, err, c.want)
		}
	}
}

// A checksum that comes out as 0 is sent as 0xffff: 0 would say there is none.
func TestWriterChecksumZero(t *testing.T) {
	for i := range 1 << 16 {
		b := appendFrame(nil, groupA, []byte{byte(i >> 8), byte(i)})
		switch {
		case b[40] == 0 && b[41] == 0:
			t.Fatalf("payload %04x has checksum 0", i)
		case b[40] == 0xff && b[41] == 0xff:
			return
		}
	}
	t.Fatal("no payload whose checksum is 0")
}

func TestWriterDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return
	}
	for _, f := range []Format{Pcap, Pcapng} {
		w, err := NewWriter(io.Discard, f)
		if err != nil {
			t.Fatal(err)
		}
		p := mold("S", 1, "one", "two")
		w.Write(noon, groupA, p)
		if n := testing.AllocsPerRun(10_000, func() { w.Write(noon, groupA, p[:20], p[20:]) }); n != 0 {
			t.Errorf("format %d: %v allocations a packet", f, n)
		}
	}
}

// A payload in parts, of any length, makes the same file as the whole; and so do
// destinations that take turns.
func TestWriterParts(t *testing.T) {
	whole := bytes.Repeat([]byte("payload "), 20)
	for _, f := range []Format{Pcap, Pcapng} {
		var a, b bytes.Buffer
		x, err := NewWriter(&a, f)
		if err != nil {
			t.Fatal(err)
		}
		y, err := NewWriter(bufio.NewWriterSize(&b, 1<<19), f)
		if err != nil {
			t.Fatal(err)
		}
		for i := range len(whole) {
			for _, dst := range []netip.AddrPort{groupA, groupB, group6} {
				err := errors.Join(x.Write(noon, dst, whole[:i]), y.Write(noon, dst, whole[:i/3], nil, whole[i/3:i]))
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(x.Flush(), y.Flush()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("format %d: they differ", f)
		}
		all, err := readAll(t, &a)
		if err != nil || len(all) != 3*len(whole) {
			t.Fatal(len(all), err)
		}
		for i, p := range all {
			if p.Fault != Whole || p.Dst != []netip.AddrPort{groupA, groupB, group6}[i%3] || !bytes.Equal(p.Payload, whole[:i/3]) {
				t.Fatalf("%d: %+v", i, p)
			}
		}
	}
}

func BenchmarkWriter(b *testing.B) {
	for _, size := range []int{60, 1400} {
		b.Run(fmt.Sprintf("datagram=%d", size), func(b *testing.B) {
			w, err := NewWriter(io.Discard, Pcap)
			if err != nil {
				b.Fatal(err)
			}
			p := make([]byte, size)
			b.SetBytes(int64(16 + etherSize + ipv4Size + udpSize + size))
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Write(noon, groupA, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Wireshark decodes what is written, checksums included.
func TestWriterTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		return
	}
	all := []sent{
		{noon, groupA, mold("000007525B", 484311999, "one", "two")},
		{noon + 1, groupA, mold("000007525B", 484312001)},
		{noon + 2, groupA, mold("000007525B", 484312001, strings.Repeat("x", moldcast.MaxMessage))},
	}
	for f, name := range map[Format]string{Pcap: "a.pcap", Pcapng: "a.pcapng"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, write(t, f, all), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tshark, "-r", path, "-d", fmt.Sprintf("udp.port==%d,moldudp64", groupA.Port()),
			"-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", "-e", "frame.time_epoch",
			"-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "moldudp64.session", "-e", "moldudp64.sequence", "-e", "moldudp64.count")
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := "1473799831.523595123\t1\t1\t000007525B\t484311999\t2\n" +
			"1473799831.523595124\t1\t1\t000007525B\t484312001\t0\n" +
			"1473799831.523595125\t1\t1\t000007525B\t484312001\t1\n"
		if string(out) != want {
			t.Errorf("%s: tshark reads\n%swant\n%s", name, out, want)
		}
	}
}
