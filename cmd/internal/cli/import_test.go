package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

var (
	lineA  = netip.MustParseAddrPort("239.1.1.1:26400")
	lineB  = netip.MustParseAddrPort("239.1.1.2:26401")
	client = netip.MustParseAddrPort("10.0.0.9:40000")
)

const t0 = moldcast.Stamp(1473799831_000000000)

// dgram is one datagram of a made-up capture file.
type dgram struct {
	at   moldcast.Stamp
	to   netip.AddrPort
	data []byte
}

// dataTo is a packet of session S whose messages are tagged with their sequence.
func dataTo(to netip.AddrPort, at moldcast.Stamp, first, n int) dgram {
	return dataOf("S", to, at, first, n, "m")
}

func dataOf(session string, to netip.AddrPort, at moldcast.Stamp, first, n int, tag string) dgram {
	s, err := moldcast.ParseSession(session)
	if err != nil {
		panic(err)
	}
	b := moldcast.AppendHeader(nil, s, moldcast.Seq(first), uint16(n))
	for i := range n {
		b = moldcast.AppendMessage(b, fmt.Appendf(nil, "%s%d", tag, first+i))
	}
	return dgram{t0 + at, to, b}
}

func control(to netip.AddrPort, at moldcast.Stamp, next int, count uint16) dgram {
	s, _ := moldcast.ParseSession("S")
	return dgram{t0 + at, to, moldcast.AppendHeader(nil, s, moldcast.Seq(next), count)}
}

func captureFile(t testing.TB, name string, ds ...dgram) string {
	t.Helper()
	var b bytes.Buffer
	w, err := capfile.NewWriter(&b, capfile.Pcap)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		if err := w.Write(d.at, d.to, d.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return tempFile(t, name, b.Bytes())
}

func tempFile(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// runCLI runs moldtape on an archive.
func runCLI(t testing.TB, archive string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args = append(args, "--archive", archive, "--log-level", "error")
	code = Main(args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// importJSON imports with --json and expects an exit code.
func importJSON(t testing.TB, archive string, want int, args ...string) (importSummary, string) {
	t.Helper()
	code, out, errs := runCLI(t, archive, append([]string{"import", "--json"}, args...)...)
	if code != want {
		t.Fatalf("import %v: exit %d, want %d; %s", args, code, want, errs)
	}
	var s importSummary
	if out != "" {
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
	}
	return s, errs
}

// exported exports a session as ndjson and describes each message.
func exported(t testing.TB, archive, session string, args ...string) []string {
	t.Helper()
	code, out, errs := runCLI(t, archive, append([]string{"export", session, "-o", "-", "--format", "ndjson"}, args...)...)
	if code != 0 {
		t.Fatalf("export %s: exit %d; %s", session, code, errs)
	}
	var all []string
	for l := range strings.Lines(out) {
		var m struct {
			Seq         uint64
			Time, Heard time.Time
			Line        int
			Flags       []string
			Data        string
		}
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatal(err, l)
		}
		d, err := base64.StdEncoding.DecodeString(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%d +%d", m.Seq, m.Time.UnixNano()-int64(t0))
		if !m.Heard.IsZero() {
			s += fmt.Sprintf(" heard +%d", m.Heard.UnixNano()-int64(t0))
		}
		if m.Line != 0 {
			s += fmt.Sprintf(" line %d", m.Line)
		}
		for _, f := range m.Flags {
			s += " " + f
		}
		all = append(all, s+" "+string(d))
	}
	return all
}

func archiveDir(t testing.TB) string { return filepath.Join(t.TempDir(), "archive") }

func TestImportMergesLines(t *testing.T) {
	ar := archiveDir(t)
	f := captureFile(t, "x.pcap",
		dataTo(lineA, 10, 1, 2), dataTo(lineB, 11, 1, 1), dataTo(lineB, 12, 2, 2), // A lacks 3
		dataTo(lineA, 20, 4, 1), dataTo(lineB, 21, 4, 1),
		dataTo(lineB, 30, 6, 1), // nobody has 5
		control(lineA, 40, 7, 0), control(lineB, 41, 7, moldcast.EndCount))
	s, _ := importJSON(t, ar, 0, f)
	if len(s.Sessions) != 1 {
		t.Fatalf("%+v", s)
	}
	got := s.Sessions[0]
	want := "239.1.1.1:26400/S first 1 next 5 head 7: 5 new, 3 known, holes [{5 5 not_captured}], ended true"
	if g := fmt.Sprintf("%s/%s first %d next %d head %d: %d new, %d known, holes %v, ended %v", got.Channel, got.Session, got.FirstSeq, got.NextSeq, got.HeadSeq, got.Messages, got.Duplicates, got.HoleList, got.Ended); g != want {
		t.Errorf("got  %s\nwant %s", g, want)
	}
	all := []string{"1 +10 more m1", "2 +10 m2", "3 +12 line 1 m3", "4 +20 m4", "6 +30 line 1 m6"}
	if d := cmp.Diff(all, exported(t, ar, "S", "--allow-holes")); d != "" {
		t.Error(d)
	}
	// The hole fails a strict import and an export.
	if _, errs := importJSON(t, ar, 1, "--strict", f); !strings.Contains(errs, "1 hole left") {
		t.Error(errs)
	}
	code, _, errs := runCLI(t, ar, "export", "S", "-o", filepath.Join(t.TempDir(), "x.pcap"))
	if code != 1 || !strings.Contains(errs, "hole 5..5") {
		t.Error(code, errs)
	}
	// The packets of a pcap go to the group of their line, End of Session to
	// that of the last.
	out := filepath.Join(t.TempDir(), "y.pcap")
	if code, _, errs := runCLI(t, ar, "export", "S", "-o", out, "--allow-holes"); code != 0 {
		t.Fatal(errs)
	}
	var to []string
	for _, p := range readPackets(t, out) {
		to = append(to, p.Dst.String())
	}
	if d := cmp.Diff([]string{lineA.String(), lineB.String(), lineA.String(), lineB.String(), lineB.String()}, to); d != "" {
		t.Error(d)
	}
	// A later file fills the hole.
	s, _ = importJSON(t, ar, 0, "--channel", "239.1.1.1:26400", captureFile(t, "z.pcap", dataTo(lineA, 25, 5, 1)))
	if r := s.Sessions[0]; r.Messages != 1 || r.Holes != 0 || r.NextSeq != 7 {
		t.Errorf("%+v", r)
	}
}

func readPackets(t testing.TB, path string) []capfile.Packet {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := capfile.NewReader(f, capfile.Options{Checksums: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []capfile.Packet
	for {
		p, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil || p.Fault != capfile.Whole {
			t.Fatal(p.Fault, err)
		}
		p.Payload = bytes.Clone(p.Payload)
		all = append(all, p)
	}
}

// archiveState is all that an archive holds, to see that nothing changed.
func archiveState(t testing.TB, dir string) string {
	t.Helper()
	code, out, errs := runCLI(t, dir, "sessions", "--json")
	if code != 0 {
		t.Fatal(errs)
	}
	a, err := store.Open(dir, store.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	infos, err := a.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		d, err := a.Show(i.Ref())
		if err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprintf("%+v %+v %+v\n", d.Groups, d.HoleList, d.Lines)
	}
	return out
}

func TestImportTwiceAddsNothing(t *testing.T) {
	ar := archiveDir(t)
	f := captureFile(t, "x.pcap", control(lineA, 1, 1, 0), dataTo(lineA, 10, 1, 2), dataTo(lineB, 11, 1, 2), control(lineA, 15, 3, 0),
		dataTo(lineA, 20, 5, 1), control(lineA, 40, 6, 0), control(lineB, 41, 6, moldcast.EndCount), control(lineB, 42, 6, moldcast.EndCount))
	only := captureFile(t, "y.pcap", control(lineB, 1, 900, 0)) // nothing but a heartbeat
	importJSON(t, ar, 0, f)
	importJSON(t, ar, 0, only, "--channel", "hb")
	before := archiveState(t, ar)
	s, _ := importJSON(t, ar, 0, f)
	if r := s.Sessions[0]; r.Messages != 0 || r.Duplicates != 5 || r.Conflicts != 0 {
		t.Errorf("%+v", r)
	}
	importJSON(t, ar, 0, only, "--channel", "hb")
	if d := cmp.Diff(before, archiveState(t, ar)); d != "" {
		t.Error(d)
	}
}

func TestImportHeartbeatOnly(t *testing.T) {
	ar := archiveDir(t)
	s, _ := importJSON(t, ar, 0, captureFile(t, "x.pcap", control(lineA, 1, 3466217, 0)))
	if r := s.Sessions[0]; r.FirstSeq != 3466217 || r.NextSeq != 3466217 || r.Messages != 0 || r.Holes != 0 || r.Heartbeats != 1 {
		t.Errorf("%+v", r)
	}
}

func TestImportBelievesJumps(t *testing.T) {
	ar := archiveDir(t)
	const far = 1 << 62
	s, _ := importJSON(t, ar, 0, captureFile(t, "x.pcap", dataTo(lineA, 1, 7, 1), dataTo(lineA, 2, far, 1)))
	if r := s.Sessions[0]; r.FirstSeq != 7 || r.NextSeq != 8 || r.HeadSeq != far+1 || fmt.Sprint(r.HoleList) != fmt.Sprintf("[{8 %d not_captured}]", far-1) {
		t.Errorf("%+v", r)
	}
	// A sequence that cannot be is a fault.
	b := dataTo(lineA, 3, 9, 1)
	binary.BigEndian.PutUint64(b.data[10:], ^uint64(0))
	var ds []dgram
	for i := range 20 {
		ds = append(ds, dataTo(lineA, 1, i+1, 1))
	}
	s, errs := importJSON(t, ar, 1, "--channel", "other", captureFile(t, "y.pcap", append(ds, b)...))
	if s.Messages != 20 || s.Faults != 1 || !strings.Contains(errs, "frame 21") || !strings.Contains(errs, "2^64-1") {
		t.Errorf("%+v %s", s, errs)
	}
}

func TestImportConflict(t *testing.T) {
	ar := archiveDir(t)
	var ds []dgram
	for i := range 50 {
		ds = append(ds, dataTo(lineA, moldcast.Stamp(i), i+1, 1))
	}
	ds = append(ds, dataOf("S", lineB, 99, 10, 3, "m"), dataOf("S", lineB, 100, 40, 1, "other"), dataTo(lineB, 101, 51, 1))
	f := captureFile(t, "x.pcap", ds...)
	s, errs := importJSON(t, ar, 1, f)
	if s.Conflicts != 1 || s.Messages != 51 || s.Duplicates != 3 || !strings.Contains(errs, "message 40 differs") || !strings.Contains(errs, "byte ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("%+v %s", s, errs)
	}
	if got := exported(t, ar, "S")[39]; got != "40 +39 m40" {
		t.Error("it was written over:", got)
	}
	// The rest of a packet is looked at too.
	p := dataOf("S", lineA, 200, 49, 4, "m")
	copy(p.data[moldcast.HeaderSize+2:], "x49")
	s, _ = importJSON(t, ar, 1, "--channel", lineA.String(), captureFile(t, "y.pcap", p))
	if s.Conflicts != 1 || s.Messages != 1 || s.Duplicates != 2 {
		t.Errorf("%+v", s)
	}
}

func TestImportAnswers(t *testing.T) {
	ar := archiveDir(t)
	s, _ := importJSON(t, ar, 0, captureFile(t, "x.pcap",
		dataTo(lineA, 100, 1, 1),
		dataTo(lineA, 500, 5, 1), // 2..4 missing
		dataTo(client, 900, 2, 3)))
	if r := s.Sessions[0]; r.Channel != lineA.String() || r.Holes != 0 {
		t.Errorf("%+v", r)
	}
	want := []string{"1 +100 m1", "2 +200 heard +900 line 255 repaired more m2", "3 +200 heard +900 line 255 repaired more m3", "4 +200 heard +900 line 255 repaired m4", "5 +500 m5"}
	if d := cmp.Diff(want, exported(t, ar, "S")); d != "" {
		t.Error(d)
	}
}

func TestImportSessionsAndChannels(t *testing.T) {
	f := captureFile(t, "x.pcap",
		dataOf("S", lineA, 1, 1, 1, "m"), dataOf("T", lineA, 2, 1, 1, "m"), dataOf("U", lineB, 3, 1, 1, "m"))
	names := func(s importSummary) (n []string) {
		for _, r := range s.Sessions {
			n = append(n, r.Channel+"/"+r.Session)
		}
		slices.Sort(n)
		return n
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"239.1.1.1:26400/S", "239.1.1.1:26400/T", "239.1.1.2:26401/U"}},
		{[]string{"--channel", "C"}, []string{"C/S", "C/T", "C/U"}},
		{[]string{"--session", "T"}, []string{"239.1.1.1:26400/T"}},
		{[]string{"--filter", lineB.String()}, []string{"239.1.1.2:26401/U"}},
		{[]string{"--filter", lineB.String(), "--filter", lineA.String(), "--session", "S"}, []string{"239.1.1.1:26400/S"}},
	} {
		s, _ := importJSON(t, archiveDir(t), 0, append(c.args, f)...)
		if d := cmp.Diff(c.want, names(s)); d != "" {
			t.Errorf("%v: %s", c.args, d)
		}
	}
	// Lines in files of their own are lines all the same.
	s, _ := importJSON(t, archiveDir(t), 0, captureFile(t, "a.pcap", dataTo(lineA, 1, 1, 1), dataTo(lineA, 2, 2, 1)), captureFile(t, "b.pcap", dataTo(lineB, 1, 1, 1), dataTo(lineB, 3, 3, 1)))
	if len(s.Sessions) != 1 || s.Sessions[0].Messages != 3 || s.Sessions[0].Duplicates != 1 {
		t.Errorf("%+v", s.Sessions)
	}
}

func TestImportDamagedCaptures(t *testing.T) {
	var ds []dgram
	for i := range 40 {
		ds = append(ds, dataTo(lineA, moldcast.Stamp(i), i+1, 1))
	}
	good, err := os.ReadFile(captureFile(t, "x.pcap", ds...))
	if err != nil {
		t.Fatal(err)
	}
	rec := (len(good) - 24 - 9*(16+14+20+8+20+4)) / 31 // of two-digit messages
	at := 24 + 9*(16+14+20+8+20+4) + 20*rec            // of the record of message 30
	for _, c := range []struct {
		name  string
		file  []byte
		first int // messages before the damage
		all   uint64
		text  string
	}{
		{"cut", good[:at+30], 29, 29, fmt.Sprintf("byte %d (frame 30): the file ends inside a record", at)},
		{"length", patched(good, at+8, 0xff, 0xff, 0xff, 0x7f), 29, 29, fmt.Sprintf("byte %d (frame 30): a length", at)},
		{"payload", patched(good, at+16+14+20+8+20+2, 'x'), 29, 39, fmt.Sprintf("byte %d (frame 30): the UDP checksum", at)},
		{"address", patched(good, at+16+14+18, 'x'), 29, 39, fmt.Sprintf("byte %d (frame 30): the IP header checksum", at)},
	} {
		ar := archiveDir(t)
		s, errs := importJSON(t, ar, 1, tempFile(t, "bad.pcap", c.file))
		if s.Messages != c.all || s.Faults != 1 || !strings.Contains(errs, c.text) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d messages, %d faults, %s", c.name, s.Messages, s.Faults, errs)
			continue
		}
		if got := exported(t, ar, "S", "--to-seq", "29"); len(got) != c.first {
			t.Errorf("%s: %d messages before it", c.name, len(got))
		}
	}
	for name, b := range map[string][]byte{
		"empty.pcap": nil, "short.pcap": good[:20], "text.pcap": []byte("no capture file"),
		"empty.pcapng": good[:0], "none.pcap": good[:24],
	} {
		ar := archiveDir(t)
		_, errs := importJSON(t, ar, 1, tempFile(t, name, b))
		if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, name) {
			t.Errorf("%s: %s", name, errs)
		}
		if _, err := os.Stat(ar); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: an archive was made", name)
		}
	}
	// The other files are imported all the same.
	s, _ := importJSON(t, archiveDir(t), 1, tempFile(t, "bad.pcap", good[:at+30]), tempFile(t, "good.pcap", good))
	if s.Messages != 40 || s.Faults != 1 {
		t.Errorf("%+v", s)
	}
}

func patched(b []byte, at int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], v)
	return b
}

func TestImportRefusesOtherProtocols(t *testing.T) {
	bin := dataTo(lineA, 1, 1, 1)
	copy(bin.data, "\x02\x12USE1d\xe4")
	f := captureFile(t, "x.pcap", bin)
	ar := archiveDir(t)
	_, errs := importJSON(t, ar, 1, f)
	if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no MoldUDP64") || !strings.Contains(errs, "binary") || !strings.Contains(errs, "--filter") {
		t.Error(errs)
	}
	s, _ := importJSON(t, ar, 0, f, "--filter", lineA.String())
	if len(s.Sessions) != 1 || s.Sessions[0].Session != "%02%12USE1d%E4" {
		t.Errorf("%+v", s.Sessions)
	}
}

func binaryFile(t testing.TB, msgs ...[]byte) []byte {
	var b bytes.Buffer
	w := binaryfile.NewWriter(&b)
	for _, m := range msgs {
		if err := w.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestImportBinaryFile(t *testing.T) {
	day := time.Date(2019, 12, 30, 21, 0, 0, 0, time.UTC)
	msg := func(d time.Duration, tag byte) []byte {
		m := make([]byte, 20)
		m[0], m[19] = 'A', tag
		itch.PutTimestamp(m, d)
		return m
	}
	short := []byte("short")
	content := binaryFile(t, msg(9*time.Hour, 1), msg(9*time.Hour, 2), short, msg(9*time.Hour+1, 3))
	path := tempFile(t, "x.itch", append(content, 0, 0))
	if err := os.Chtimes(path, day, day); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []time.Duration // after midnight
	}{
		{nil, []time.Duration{21 * time.Hour, 21 * time.Hour, 21 * time.Hour, 21 * time.Hour}},
		{[]string{"--rate", "1000"}, []time.Duration{21 * time.Hour, 21*time.Hour + time.Millisecond, 21*time.Hour + 2*time.Millisecond, 21*time.Hour + 3*time.Millisecond}},
		{[]string{"--itch"}, []time.Duration{9 * time.Hour, 9 * time.Hour, 9 * time.Hour, 9*time.Hour + 1}},
	} {
		ar := archiveDir(t)
		args := append([]string{path, "--session", "S", "--first-seq", "100"}, c.args...)
		s, _ := importJSON(t, ar, 0, args...)
		if r := s.Sessions[0]; r.Channel != "default" || r.FirstSeq != 100 || r.NextSeq != 104 || r.Messages != 4 {
			t.Errorf("%v: %+v", c.args, r)
		}
		code, out, errs := runCLI(t, ar, "export", "S", "-o", "-", "--format", "ndjson")
		if code != 0 {
			t.Fatal(errs)
		}
		var got []time.Duration
		for l := range strings.Lines(out) {
			var m struct{ Time time.Time }
			if err := json.Unmarshal([]byte(l), &m); err != nil {
				t.Fatal(err)
			}
			got = append(got, m.Time.Sub(time.Date(2019, 12, 30, 0, 0, 0, 0, time.UTC)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: times %v, want %v", c.args, got, c.want)
		}
		// It comes out as it went in, and a second time adds nothing.
		back := filepath.Join(t.TempDir(), "y.itch")
		if code, _, errs := runCLI(t, ar, "export", "S", "-o", back); code != 0 {
			t.Fatal(errs)
		}
		if b, err := os.ReadFile(back); err != nil || !bytes.Equal(b, content) {
			t.Errorf("%v: exported %x, %v", c.args, b, err)
		}
		if s, _ := importJSON(t, ar, 0, args...); s.Messages != 0 || s.Duplicates != 4 {
			t.Errorf("%v: again: %+v", c.args, s)
		}
	}
	// Faults, each with its position; what is before is there.
	long := append(binary.BigEndian.AppendUint16(nil, moldcast.MaxMessage+1), make([]byte, moldcast.MaxMessage+1)...)
	for _, c := range []struct {
		name string
		file []byte
		text string
	}{
		{"cut", content[:len(content)-3], fmt.Sprintf("byte %d: ", len(content)-22)},
		{"long", append(binaryFile(t, short), long...), fmt.Sprintf("byte 7: message of %d bytes, the longest is 65485", moldcast.MaxMessage+1)},
		{"rest", append(bytes.Clone(content), 0, 0, 1, 2, 3), "3 bytes after the zero length"},
	} {
		s, errs := importJSON(t, archiveDir(t), 1, tempFile(t, "x.itch", c.file), "--session", "S")
		if !strings.Contains(errs, c.text) || s.Messages == 0 || s.Faults != 1 {
			t.Errorf("%s: %+v %s", c.name, s, errs)
		}
	}
	// The longest that goes.
	most := append(binary.BigEndian.AppendUint16(nil, moldcast.MaxMessage), make([]byte, moldcast.MaxMessage)...)
	ar := archiveDir(t)
	importJSON(t, ar, 0, tempFile(t, "x.itch", most), "--session", "S")
	out := filepath.Join(t.TempDir(), "x.pcap")
	if code, _, errs := runCLI(t, ar, "export", "S", "-o", out); code != 0 {
		t.Fatal(errs)
	}
	if p := readPackets(t, out); len(p) != 1 || len(p[0].Payload) != moldcast.MaxDatagram || p[0].Dst.String() != "239.255.0.1:26400" {
		t.Error(len(p))
	}
	// Sequences go on over several files.
	s, _ := importJSON(t, archiveDir(t), 0, path, tempFile(t, "y.itch", content), "--session", "S")
	if s.Sessions[0].NextSeq != 9 {
		t.Errorf("%+v", s.Sessions[0])
	}
}

// countdown is a context that is cancelled when its error was asked for n
// times: in the middle of a file, at a known place.
type countdown struct {
	context.Context
	n int
}

func (c *countdown) Err() error {
	if c.n--; c.n < 0 {
		return context.Canceled
	}
	return nil
}

func TestImportInterrupted(t *testing.T) {
	var msgs [][]byte
	for i := range 5000 {
		msgs = append(msgs, fmt.Appendf(nil, "message %d", i))
	}
	content := binaryFile(t, msgs...)
	ar := archiveDir(t)
	var out bytes.Buffer
	e := &env{stdout: &out, stderr: io.Discard, archive: ar, json: true, log: slog.New(slog.DiscardHandler)}
	s, _ := moldcast.ParseSession("S")
	r := &importRun{env: e, nextSeq: 1, session: &s}
	err := r.run(&countdown{context.Background(), 3}, []string{tempFile(t, "x.itch", content)})
	if !errors.Is(err, errInterrupted) {
		t.Fatal(err)
	}
	var sum importSummary
	if err := json.Unmarshal(out.Bytes(), &sum); err != nil || !sum.Interrupted || sum.Messages != 3*1024 {
		t.Fatalf("%v %+v", err, sum)
	}
	if got := exported(t, ar, "S"); len(got) != 3*1024 {
		t.Errorf("%d messages are durable", len(got))
	}
	// It goes on where it was cut short.
	again, _ := importJSON(t, ar, 0, tempFile(t, "x.itch", content), "--session", "S")
	if again.Messages != 5000-3*1024 || again.Duplicates != 3*1024 {
		t.Errorf("%+v", again)
	}
}

func TestImportUsage(t *testing.T) {
	pcap := captureFile(t, "x.pcap", dataTo(lineA, 1, 1, 1))
	bin := tempFile(t, "x.itch", binaryFile(t, []byte("m")))
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{nil, 2, "FILE"},
		{[]string{bin}, 2, "--session"},
		{[]string{tempFile(t, "x.unknown", []byte("text"))}, 2, "--format"},
		{[]string{bin, "--session", "longer than ten"}, 2, "--session"},
		{[]string{bin, "--session", "S", "--first-seq", "0"}, 2, "--first-seq"},
		{[]string{bin, "--session", "S", "--rate", "0"}, 2, "--rate"},
		{[]string{bin, "--session", "S", "--rate", "5", "--itch"}, 2, "--itch"},
		{[]string{bin, "--session", "S", "--filter", "239.1.1.1:1"}, 2, "--filter"},
		{[]string{pcap, "--rate", "5"}, 2, "--rate"},
		{[]string{pcap, "--filter", "239.1.1.1"}, 2, "--filter"},
		{[]string{pcap, "--channel", "a/b"}, 2, "--channel"},
		{[]string{pcap, "--format", "raw"}, 2, "--format"},
		{[]string{pcap, "--protocol", "soup"}, 2, "--protocol"},
		{[]string{pcap, "--nonsense"}, 2, "nonsense"},
		{[]string{filepath.Join(t.TempDir(), "none.pcap")}, 1, "none.pcap"},
		{[]string{t.TempDir()}, 1, "directory"},
		{[]string{pcap, "--filter", "239.9.9.9:9"}, 1, "239.9.9.9:9"},
		{[]string{pcap, "--session", "T"}, 1, "there is S"},
	} {
		code, _, errs := runCLI(t, archiveDir(t), append([]string{"import"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.text) || strings.Count(errs, "\n") != 1 {
			t.Errorf("import %v: exit %d, %s; want %d, one line with %q", c.args, code, errs, c.code, c.text)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "something"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runCLI(t, dir, "import", pcap); code != 1 || !strings.Contains(errs, "not an archive") {
		t.Error(code, errs)
	}
}

func corpusDir(t testing.TB) string {
	dir := os.Getenv("MOLDTAPE_CORPUS")
	if dir == "" {
		t.Skip("MOLDTAPE_CORPUS is not set")
	}
	return dir
}

func TestCorpusImport(t *testing.T) {
	orig := filepath.Join(corpusDir(t), "nasdaq-totalview-2016", "nasdaq.pcap")
	ar := archiveDir(t)
	s, _ := importJSON(t, ar, 0, orig)
	if len(s.Sessions) != 1 {
		t.Fatalf("%+v", s)
	}
	r := s.Sessions[0]
	if r.Channel != "233.54.12.111:26477" || r.Session != "000007525B" || r.FirstSeq != 484311999 || r.NextSeq != 484314231 || r.HeadSeq != 484314231 || r.Messages != 2232 || r.Holes != 0 {
		t.Errorf("%+v", r)
	}
	before := archiveState(t, ar)
	if !strings.Contains(before, `"first_time":"2016-09-13T20:50:31.523595Z"`) {
		t.Error(before)
	}
	if s, _ := importJSON(t, ar, 0, orig); s.Messages != 0 || s.Duplicates != 2232 {
		t.Errorf("%+v", s)
	}
	if d := cmp.Diff(before, archiveState(t, ar)); d != "" {
		t.Error("the second import changed something", d)
	}
	for _, name := range []string{"x.pcap", "x.pcapng", "x.pcap.gz", "x.pcapng.zst"} {
		out := filepath.Join(t.TempDir(), name)
		if code, _, errs := runCLI(t, ar, "export", "000007525B", "-o", out); code != 0 {
			t.Fatal(errs)
		}
		var want []capfile.Packet
		for _, p := range readPackets(t, orig) {
			if p.Dst.String() == r.Channel {
				want = append(want, p)
			}
		}
		got := readPackets(t, out)
		if len(got) != len(want) || len(got) != 2036 {
			t.Fatalf("%s: %d packets, want %d", name, len(got), len(want))
		}
		for i := range got {
			if got[i].Stamp != want[i].Stamp || got[i].Dst != want[i].Dst || !bytes.Equal(got[i].Payload, want[i].Payload) {
				t.Fatalf("%s: packet %d: %+v, want %+v", name, i, got[i], want[i])
			}
		}
		if tshark, err := exec.LookPath("tshark"); err == nil && name != "x.pcapng.zst" {
			a, b := sharkFields(t, tshark, orig), sharkFields(t, tshark, out)
			if a != b || strings.Count(a, "\n") != 2036 {
				t.Errorf("%s: Wireshark reads otherwise than in the original", name)
			}
		}
	}
}

func sharkFields(t testing.TB, tshark, path string) string {
	cmd := exec.Command(tshark, "-r", path, "-d", "udp.port==26477,moldudp64", "-Y", "moldudp64", "-T", "fields", "-e", "frame.time_epoch",
		"-e", "ip.dst", "-e", "udp.dstport", "-e", "moldudp64.session", "-e", "moldudp64.sequence", "-e", "moldudp64.count", "-e", "udp.payload")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestCorpusImportSingles(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusDir(t), "mold64-singles", "*", "*.pcap"))
	if err != nil || len(files) != 18 {
		t.Fatal(len(files), err)
	}
	ar := archiveDir(t)
	for _, f := range files {
		s, errs := importJSON(t, archiveDir(t), 0, f)
		if len(s.Sessions) != 1 || errs != "" {
			t.Errorf("%s: %+v %s", f, s.Sessions, errs)
		}
		if strings.HasSuffix(f, "Multiple.Packets.pcap") && fmt.Sprint(s.Sessions[0].HoleList) != "[{14764497 19009116 not_captured}]" {
			t.Errorf("%s: %+v", f, s.Sessions[0])
		}
	}
	s, _ := importJSON(t, ar, 0, files...)
	var got []string
	for _, r := range s.Sessions {
		got = append(got, fmt.Sprintf("%s/%s %d..%d %d", r.Channel, r.Session, r.FirstSeq, r.HeadSeq-1, r.Messages))
	}
	slices.Sort(got)
	want := []string{
		"233.54.12.111:26477/000010059B 14757701..19009154 42",
		"233.54.12.158:18024/000008367I 329712..344498 3",
		"233.71.185.65:17510/1567326030 3474042..3781397 18",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, f := range []string{"memx-memoir.pcap", "old-moldudp-32bit.pcap"} {
		_, errs := importJSON(t, archiveDir(t), 1, filepath.Join(corpusDir(t), "not-mold64", f))
		if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no MoldUDP64 or IEX-TP stream") {
			t.Error(f, errs)
		}
	}
	s, _ = importJSON(t, archiveDir(t), 0, filepath.Join(corpusDir(t), "iex-tops-2017", "TOPS16.pcap.gz"))
	if r := s.Sessions[0]; r.Session != "43cd0000" || r.Messages != 57674 || r.FirstSeq != 1 || r.Holes != 0 {
		t.Errorf("%+v", r)
	}
}

// Cut and damaged copies of a real file: exit 1 with the place wherever the
// damage can be seen, what is whole is there.
func TestCorpusImportDamaged(t *testing.T) {
	orig, err := os.ReadFile(filepath.Join(corpusDir(t), "nasdaq-totalview-2016", "nasdaq.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	rounds := 12
	if os.Getenv("MOLDTAPE_LONG") != "" {
		rounds = 200
	}
	seen := 0
	for range rounds {
		b := bytes.Clone(orig)
		at := 24 + rng.IntN(len(b)-24)
		if rng.IntN(2) == 0 {
			b = b[:at]
		} else {
			b[at] ^= byte(1 + rng.IntN(255))
		}
		ar := archiveDir(t)
		code, out, errs := runCLI(t, ar, "import", "--json", tempFile(t, "x.pcap", b))
		var s importSummary
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			t.Fatal(err, errs)
		}
		if (code == 1) != (s.Faults > 0) || s.Faults > 0 && !strings.Contains(errs, "byte ") {
			t.Errorf("damage at %d: exit %d, %s", at, code, errs)
		}
		if s.Faults > 0 {
			seen++
		}
		for _, f := range s.FaultList {
			if f.Position > int64(at) || f.Position < int64(at)-1600 {
				t.Errorf("damage at byte %d: named at %d: %s", at, f.Position, f.Reason)
			}
		}
	}
	if seen < rounds/2 {
		t.Errorf("%d of %d seen", seen, rounds)
	}
}
