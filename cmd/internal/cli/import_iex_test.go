package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/moldcast"
)

// iexOf is an IEX-TP packet; without messages a heartbeat.
func iexOf(session uint32, at moldcast.Stamp, first int, msgs ...string) dgram {
	le := binary.LittleEndian
	var body []byte
	for _, m := range msgs {
		body = append(le.AppendUint16(body, uint16(len(m))), m...)
	}
	h := []byte{1, 0, 0x03, 0x80}
	h = le.AppendUint32(h, 1)
	h = le.AppendUint32(h, session)
	h = le.AppendUint16(h, uint16(len(body)))
	h = le.AppendUint16(h, uint16(len(msgs)))
	h = le.AppendUint64(h, 0)
	h = le.AppendUint64(h, uint64(first))
	h = le.AppendUint64(h, uint64(t0+at))
	return dgram{t0 + at, lineA, append(h, body...)}
}

// iexDay is a session with heartbeats before, in and behind its five messages.
func iexDay() []dgram {
	ms := moldcast.Stamp(time.Millisecond)
	return []dgram{
		iexOf(0x2a, 0, 1),
		iexOf(0x2a, 1*ms, 1, "one", "two"),
		iexOf(0x2a, 2*ms, 3),
		iexOf(0x2a, 3*ms, 3, "three", "", "five"),
		iexOf(0x2a, 4*ms, 6),
	}
}

// By itself, and where it is asked for; and not where another protocol is.
func TestImportIEX(t *testing.T) {
	file := captureFile(t, "iex.pcap", iexDay()...)
	for _, args := range [][]string{{file}, {file, "--protocol", "iex-tp"}, {file, "--filter", lineA.String()}} {
		ar := archiveDir(t)
		s, errs := importJSON(t, ar, 0, append(args, "--strict")...)
		if errs != "" || len(s.Sessions) != 1 || len(s.Streams) != 1 || s.Streams[0].Protocol != "iex-tp" {
			t.Fatalf("%q: %+v %s", args, s, errs)
		}
		r := s.Sessions[0]
		if r.Channel != lineA.String() || r.Session != "0000002a" || r.Take != 1 || r.FirstSeq != 1 || r.HeadSeq != 6 || r.Messages != 5 || r.Holes != 0 {
			t.Errorf("%q: %+v", args, r)
		}
		if got := exported(t, ar, "0000002a"); len(got) != 5 {
			t.Errorf("%q: %q", args, got)
		}
		if s, _ := importJSON(t, ar, 0, args...); s.Messages != 0 || s.Duplicates != 5 {
			t.Errorf("%q again: %+v", args, s)
		}
	}
	if _, errs := importJSON(t, archiveDir(t), 1, file, "--protocol", "moldudp64"); !strings.Contains(errs, "no MoldUDP64 or IEX-TP stream") {
		t.Error(errs)
	}
	if _, errs := importJSON(t, archiveDir(t), 1, captureFile(t, "mold.pcap", dataTo(lineA, 0, 1, 2)), "--protocol", "iex-tp"); !strings.Contains(errs, "no IEX-TP header") {
		t.Error(errs)
	}
}

// What is missing is a hole, also where a heartbeat goes past it first.
func TestImportIEXHole(t *testing.T) {
	ds := iexDay()
	ds[2] = iexOf(0x2a, ds[2].at-t0, 4)
	ds[3] = iexOf(0x2a, ds[3].at-t0, 4, "", "five")
	s, _ := importJSON(t, archiveDir(t), 0, captureFile(t, "iex.pcap", ds...))
	if got := fmt.Sprint(s.Sessions[0].HoleList); got != "[{3 3 not_captured}]" {
		t.Errorf("%s of %+v", got, s.Sessions[0])
	}
}

// Numbers that begin again at 1 under one session id are a take each; another
// id is another session.
func TestImportIEXRestarts(t *testing.T) {
	sec := moldcast.Stamp(time.Second)
	file := captureFile(t, "iex.pcap",
		iexOf(0x2a, 1*sec, 1, "a1", "a2"), iexOf(0x2a, 2*sec, 3, "a3"),
		iexOf(0x2a, 3*sec, 1, "b1", "b2"), iexOf(0x2a, 4*sec, 3, "b3", "b4"), iexOf(0x2a, 5*sec, 5),
		iexOf(0x2a, 6*sec, 1, "c1"), iexOf(0x2a, 7*sec, 2, "c2"),
		iexOf(0x2b, 8*sec, 1, "d1"),
	)
	ar := archiveDir(t)
	s, _ := importJSON(t, ar, 0, file)
	var got []string
	for _, r := range s.Sessions {
		got = append(got, fmt.Sprintf("%s@%d %d..%d", r.Session, r.Take, r.FirstSeq, r.HeadSeq-1))
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"0000002a@1 1..3", "0000002a@2 1..4", "0000002a@3 1..2", "0000002b@1 1..1"}, got); d != "" {
		t.Fatal(d)
	}
	for name, want := range map[string]string{"0000002a": "a1a2a3", "0000002a@2": "b1b2b3b4", "0000002a@3": "c1c2", "0000002b": "d1"} {
		code, out, errs := runCLI(t, ar, "export", name, "--format", "raw", "-o", "-")
		if code != 0 || out != want {
			t.Errorf("%s: exit %d, %q, want %q; %s", name, code, out, want, errs)
		}
	}
	if s, _ := importJSON(t, ar, 0, file); s.Messages != 0 || s.Conflicts != 0 || s.Duplicates != 10 {
		t.Errorf("again: %+v", s)
	}
}

// The last packet is cut by the end of the file, by the snapshot length of the
// capture, or says itself that it is longer: named, the rest is there.
func TestImportIEXCut(t *testing.T) {
	const n = 100
	var ds []dgram
	for i := range n {
		ds = append(ds, iexOf(0x2a, moldcast.Stamp(i)*1000, 1+i, fmt.Sprint(i)))
	}
	ds = append(ds, iexOf(0x2a, n*1000, 1+n, "last"))
	whole, err := os.ReadFile(captureFile(t, "iex.pcap", ds...))
	if err != nil {
		t.Fatal(err)
	}
	last := ds[n].data
	frame := 14 + 20 + 8 + len(last)
	record := len(whole) - 16 - frame
	short := slices.Clone(whole[:len(whole)-2])
	binary.LittleEndian.PutUint32(short[record+8:], uint32(frame-2))
	ds[n].data = last[:len(last)-2]
	lied, err := os.ReadFile(captureFile(t, "lies.pcap", ds...))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"file": whole[:len(whole)-2], "frame": short, "datagram": lied} {
		ar := archiveDir(t)
		s, errs := importJSON(t, ar, 1, tempFile(t, name+".pcap", b))
		if s.Faults != 1 || s.FaultList[0].Position != int64(record) || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, fmt.Sprintf("byte %d (frame %d)", record, n+1)) {
			t.Errorf("%s: %+v; %s", name, s.FaultList, errs)
		}
		if len(s.Sessions) != 1 || s.Sessions[0].Messages != n || s.Sessions[0].FirstSeq != 1 {
			t.Errorf("%s: %+v", name, s.Sessions)
		}
	}
}

// sameAgain exports a session that came as IEX-TP as a capture, which is of
// MoldUDP64, and imports that: the same messages, packets and times, and so the
// same capture.
func sameAgain(t *testing.T, ar, session, group string) []capfile.Packet {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.pcap")
	if code, _, errs := runCLI(t, ar, "export", session, "-o", out); code != 0 {
		t.Fatal(errs)
	}
	again := archiveDir(t)
	s, errs := importJSON(t, again, 0, out, "--strict")
	if errs != "" || len(s.Streams) != 1 || s.Streams[0].Protocol != "moldudp64" || len(s.Sessions) != 1 || s.Sessions[0].Channel != group {
		t.Fatalf("%+v; %s", s, errs)
	}
	root := func(ar string) string {
		code, out, errs := runCLI(t, ar, "verify", "--root", session)
		if code != 0 {
			t.Fatal(errs)
		}
		return out
	}
	if d := cmp.Diff(root(ar), root(again)); d != "" {
		t.Error(d)
	}
	second := filepath.Join(t.TempDir(), "again.pcap")
	if code, _, errs := runCLI(t, again, "export", session, "-o", second); code != 0 {
		t.Fatal(errs)
	}
	one, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Error("exported again, it is another capture")
	}
	return readPackets(t, out)
}

func TestIEXRoundTrip(t *testing.T) {
	ar := archiveDir(t)
	importJSON(t, ar, 0, captureFile(t, "iex.pcap", iexDay()...))
	got := sameAgain(t, ar, "0000002a", lineA.String())
	var packets []string
	for _, p := range got {
		m, err := moldcast.Parse(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if m.Kind == moldcast.Data {
			packets = append(packets, fmt.Sprintf("%d+%d at %v", m.First, m.Msgs.Len(), time.Duration(p.Stamp-t0)))
		}
	}
	if d := cmp.Diff([]string{"1+2 at 1ms", "3+3 at 3ms"}, packets); d != "" {
		t.Error(d)
	}
	replayed(t, ar, "0000002a", got)
}

// replayed replays to a socket here, and compares its packets with those that
// were exported.
func replayed(t *testing.T, ar, session string, want []capfile.Packet) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if code, _, errs := runCLI(t, ar, "replay", session, "--group", conn.LocalAddr().String(), "--speed", "max", "--linger", "0s"); code != 0 {
		t.Fatal(errs)
	}
	if err := conn.SetReadDeadline(time.Now().Add(ever)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	next := func() moldcast.Packet {
		for {
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := moldcast.Parse(buf[:n]); err != nil {
				t.Fatal(err)
			} else if p.Kind != moldcast.Heartbeat {
				return p
			}
		}
	}
	for _, w := range want {
		if m, err := moldcast.Parse(w.Payload); err != nil || m.Kind != moldcast.Data {
			continue
		}
		p := next()
		got := moldcast.AppendHeader(nil, p.Session, p.First, uint16(p.Msgs.Len()))
		if got = append(got, p.Msgs.Framed()...); !bytes.Equal(got, w.Payload) {
			t.Fatalf("%v is replayed as another packet", p.Range())
		}
	}
	if p := next(); p.Kind != moldcast.End {
		t.Errorf("%v behind the last packet", p.Kind)
	}
}

// A real file of IEX, there and back.
func TestCorpusIEXRoundTrip(t *testing.T) {
	file := filepath.Join(corpusDir(t), "iex-tops-2017", "TOPS16.pcap.gz")
	ar := archiveDir(t)
	s, errs := importJSON(t, ar, 0, file, "--strict")
	if errs != "" || len(s.Sessions) != 1 || s.Sessions[0].Messages != 57_674 || s.Holes != 0 || s.Streams[0].Protocol != "iex-tp" {
		t.Fatalf("%+v; %s", s, errs)
	}
	got := sameAgain(t, ar, s.Sessions[0].Session, s.Sessions[0].Channel)
	messages, data := 0, 0
	for _, p := range got {
		m, err := moldcast.Parse(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if m.Kind == moldcast.Data {
			data++
			messages += m.Msgs.Len()
		}
	}
	if messages != 57_674 {
		t.Errorf("%d messages in %d packets", messages, data)
	}
}
