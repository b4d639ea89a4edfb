package capfile

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/moldtape/moldtape/moldcast"
)

// Frames for the tests are made by gopacket, files by hand.

var (
	groupA = netip.MustParseAddrPort("233.54.12.111:26477")
	groupB = netip.MustParseAddrPort("233.49.196.111:26477")
	group6 = netip.MustParseAddrPort("[ff15::1234:5678]:26400")
	sender = netip.MustParseAddrPort("206.200.127.138:4000")
	send6  = netip.MustParseAddrPort("[2001:db8::7]:4000")
)

func ip4(dst netip.AddrPort) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 7, Protocol: layers.IPProtocolUDP, SrcIP: net.IP(sender.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
}

func ip6(dst netip.AddrPort) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 7, NextHeader: layers.IPProtocolUDP, SrcIP: net.IP(send6.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
}

func serialize(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

// ipUDP is an IP packet with one UDP datagram to dst.
func ipUDP(t testing.TB, dst netip.AddrPort, payload []byte) []byte {
	t.Helper()
	udp := &layers.UDP{SrcPort: 4000, DstPort: layers.UDPPort(dst.Port())}
	if dst.Addr().Is4() {
		ip := ip4(dst)
		udp.SetNetworkLayerForChecksum(ip)
		return serialize(t, ip, udp, gopacket.Payload(payload))
	}
	ip := ip6(dst)
	udp.SetNetworkLayerForChecksum(ip)
	return serialize(t, ip, udp, gopacket.Payload(payload))
}

// udpFor is only the UDP header and payload.
func udpFor(t testing.TB, dst netip.AddrPort, payload []byte) []byte {
	b := ipUDP(t, dst, payload)
	if dst.Addr().Is4() {
		return b[20:]
	}
	return b[40:]
}

func ethernet(t testing.TB, ip []byte, vlans ...uint16) []byte {
	typ := layers.EthernetTypeIPv4
	if ip[0]>>4 == 6 {
		typ = layers.EthernetTypeIPv6
	}
	ls := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6), EthernetType: typ}}
	for i, id := range vlans {
		next := typ
		if i < len(vlans)-1 {
			next = layers.EthernetTypeDot1Q
		}
		ls = append(ls, &layers.Dot1Q{VLANIdentifier: id, Type: next})
	}
	if len(vlans) > 0 {
		ls[0].(*layers.Ethernet).EthernetType = layers.EthernetTypeDot1Q
	}
	if len(vlans) > 1 {
		ls[0].(*layers.Ethernet).EthernetType = layers.EthernetTypeQinQ
	}
	return serialize(t, append(ls, gopacket.Payload(ip))...)
}

type record struct {
	stamp moldcast.Stamp
	data  []byte
	orig  int // 0: all of it
}

// pcapOf writes records as a classic file.
func pcapOf(order binary.AppendByteOrder, magic uint32, link uint32, rs ...record) []byte {
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = order.AppendUint32(b, 65535)
	b = order.AppendUint32(b, link)
	unit := int64(1000)
	if magic == magicNano {
		unit = 1
	}
	for _, r := range rs {
		b = order.AppendUint32(b, uint32(int64(r.stamp)/1e9))
		b = order.AppendUint32(b, uint32(int64(r.stamp)%1e9/unit))
		b = order.AppendUint32(b, uint32(len(r.data)))
		b = order.AppendUint32(b, uint32(max(r.orig, len(r.data))))
		b = append(b, r.data...)
	}
	return b
}

func pcapEth(rs ...record) []byte { return pcapOf(binary.LittleEndian, magicNano, linkEthernet, rs...) }

// block is a pcapng block in either byte order.
func block(order binary.AppendByteOrder, typ uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	b := order.AppendUint32(nil, typ)
	b = order.AppendUint32(b, uint32(len(body)+12))
	b = append(b, body...)
	return order.AppendUint32(b, uint32(len(body)+12))
}

func option(order binary.AppendByteOrder, code uint16, v ...byte) []byte {
	b := order.AppendUint16(nil, code)
	b = order.AppendUint16(b, uint16(len(v)))
	b = append(b, v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func section(order binary.AppendByteOrder) []byte {
	b := order.AppendUint32(nil, ngByteOrder)
	b = order.AppendUint16(b, 1)
	b = order.AppendUint16(b, 0)
	b = order.AppendUint64(b, ^uint64(0))
	return block(order, ngSection, b)
}

func iface(order binary.AppendByteOrder, link uint16, options ...byte) []byte {
	b := order.AppendUint16(nil, link)
	b = order.AppendUint16(b, 0)
	b = order.AppendUint32(b, 0)
	return block(order, ngInterface, append(b, options...))
}

func enhanced(order binary.AppendByteOrder, id uint32, units uint64, data []byte) []byte {
	b := order.AppendUint32(nil, id)
	b = order.AppendUint32(b, uint32(units>>32))
	b = order.AppendUint32(b, uint32(units))
	b = order.AppendUint32(b, uint32(len(data)))
	b = order.AppendUint32(b, uint32(len(data)))
	return block(order, ngPacket, append(b, data...))
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// mold is a packet of messages.
func mold(session string, first uint64, msgs ...string) []byte {
	s, err := moldcast.ParseSession(session)
	if err != nil {
		panic(err)
	}
	b := moldcast.AppendHeader(nil, s, moldcast.Seq(first), uint16(len(msgs)))
	for _, m := range msgs {
		b = moldcast.AppendMessage(b, []byte(m))
	}
	return b
}

func readAll(t testing.TB, r io.Reader) ([]Packet, error) {
	t.Helper()
	x, err := NewReader(r, Options{Checksums: true})
	if err != nil {
		return nil, err
	}
	defer x.Close()
	var all []Packet
	for {
		p, err := x.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		p.Payload = append([]byte(nil), p.Payload...)
		all = append(all, p)
	}
}

func surveyOf(all []Packet, o SurveyOptions) *Survey {
	s := NewSurvey(o)
	for _, p := range all {
		s.Add(&p)
	}
	s.Finish()
	return s
}
