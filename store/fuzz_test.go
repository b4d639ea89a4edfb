package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
)

func FuzzParseTombstone(f *testing.F) {
	x := tombstone{seal: seal{Format: FormatVersion, Segment: 1, Coverage: [][2]moldcast.Seq{{1, 9}}}, SealSum: "ab"}
	b, err := x.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(sealHead))
	f.Add([]byte(sealHead + strings.Repeat("0", 64) + `","format":1,"coverage":[[1,2],[2,9]],"patches":[[0,18446744073709551615]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseTombstone(b)
		const n = len(sealHead)
		if len(b) < n+64 {
			return
		}
		sum := sha256.Sum256(b[n+64:]) // else hardly any passes
		b = slices.Concat([]byte(sealHead), []byte(hex.EncodeToString(sum[:])), b[n+64:])
		x, err := parseTombstone(b)
		if err != nil {
			return
		}
		if x.Sum != x.SealSum {
			t.Fatal("it has two sums")
		}
		for _, r := range slices.Concat(x.ranges(), exclusive(x.Patches)) {
			if r.First == 0 || r.Next <= r.First {
				t.Fatalf("ranges %v and %v", x.Coverage, x.Patches)
			}
		}
		again, err := x.encode()
		if err != nil {
			t.Fatal(err)
		}
		y, err := parseTombstone(again)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := y.encode(); err != nil || !bytes.Equal(twice, again) {
			t.Fatalf("%s became %s, %v", again, twice, err)
		}
	})
}

func FuzzParseLeaves(f *testing.F) {
	f.Add([]byte(leavesHead))
	f.Fuzz(func(t *testing.T, b []byte) {
		leaves, err := parseLeaves(b)
		if err == nil && !bytes.Equal(encodeLeaves(leaves), b) {
			t.Fatal("leaves are not encoded as they were")
		}
	})
}

func FuzzParseAudit(f *testing.F) {
	f.Add([]byte("{\"prev\":\"\",\"time\":\"2026-01-01T00:00:00Z\",\"event\":\"hold\"}\n{"))
	whole := []byte(`{"prev":"","time":"2026-01-01T00:00:00Z","event":"hold","session":"c/s"}`)
	f.Add(append(slices.Clone(whole), '\n'))
	next := []byte(`{"prev":"` + auditSum(whole) + `","time":"2026-01-01T00:00:00Z","event":"chain_broken","session":"","broken":[1,7]}`)
	f.Add(slices.Concat(whole, []byte("\nrubbish\n"), next, []byte("\n")))
	f.Add(slices.Concat(whole, []byte("\n"), next))
	f.Fuzz(func(t *testing.T, b []byte) {
		log := readAudit(b)
		lines := bytes.Count(b[:log.end], []byte("\n"))
		if log.endless {
			lines++
		}
		before := 0
		for _, x := range log.breaks {
			if x.Line <= before || x.Line > lines || x.Problem == "" || max(x.Recorded, x.Acknowledged) > lines {
				t.Fatalf("%d lines, breaks %+v", lines, log.breaks)
			}
			before = x.Line
		}
		if len(log.entries) > lines || len(log.entries)+len(log.breaks) < lines {
			t.Fatalf("%d lines, %d entries, %d breaks", lines, len(log.entries), len(log.breaks))
		}
		if log.endless {
			return
		}
		// What is appended is read, and changes nothing of what came before.
		e := AuditEntry{Time: day0, Event: AuditSeal, Session: "c/new"}
		if lines > 0 {
			e.Prev = auditSum(log.last)
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again := readAudit(slices.Concat(b[:log.end], line, []byte("\n")))
		if n := len(log.entries); len(again.entries) != n+1 || again.entries[n].Session != "c/new" || !slices.Equal(again.breaks, log.breaks) {
			t.Fatalf("%+v became %+v", log.breaks, again)
		}
	})
}

// aBatch is the representation of a batch of every kind that we write.
func aBatch(t testing.TB) []byte {
	var b pebble.Batch
	for _, err := range []error{
		b.LogData([]byte("note"), nil), b.Set([]byte("a"), bytes.Repeat([]byte("v"), 300), nil), b.Set([]byte("empty"), nil, nil), b.Delete([]byte("b"), nil),
		b.DeleteRange([]byte("c"), []byte("d"), nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return bytes.Clone(b.Repr())
}

// What Pebble would read beyond, or end the process for, is no batch.
func TestIsBatch(t *testing.T) {
	whole := aBatch(t)
	if !isBatch(whole) || !isBatch(make([]byte, 12)) {
		t.Error("a batch is refused")
	}
	for n := range whole {
		if isBatch(whole[:n]) {
			t.Errorf("%d of %d bytes pass", n, len(whole))
		}
	}
	for name, keys := range map[string]string{
		"a key of another kind":        "\x02\x01a\x00",
		"a length of more than 32 bit": "\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"a length beyond the record":   "\x00\xff\xff\xff\xff\x0f",
		"a length that does not end":   "\x00\xff",
		"a range that ends before":     "\x0f\x01b\x01a",
		"two keys":                     "\x00\x01a\x00\x01b",
	} {
		if isBatch([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00" + keys)) {
			t.Errorf("%s passes", name)
		}
	}
}

// A log of anything is looked through within its bounds; what lies behind damage
// can be refused, and never does more than set and delete keys.
func FuzzScanLog(f *testing.F) {
	const num = 7
	var log []byte
	for i, kind := range []byte{logFull, logFirst, logLast, logFull + logKinds} {
		chunk := append(make([]byte, logHeader), bytes.Repeat([]byte{byte(i)}, 20)...)
		chunk[6] = kind
		log = append(log, chunk...)
	}
	f.Add(log, 40)
	f.Add(append([]byte{1, 2, 3}, log...), 0)
	payload := aBatch(f)
	chunk := append(make([]byte, logHeader), payload...)
	binary.LittleEndian.PutUint16(chunk[4:], uint16(len(payload)))
	chunk[6] = logFull
	f.Add(bytes.Repeat(chunk, 3), 40)
	f.Fuzz(func(t *testing.T, b []byte, flip int) {
		b = bytes.Clone(b)
		// Checksums are made right from the beginning on, and then one is broken.
		for at := 0; len(b)-at >= logHeader; {
			end := min(len(b), at-at%logBlock+logBlock)
			n := logHeader + int(binary.LittleEndian.Uint16(b[at+4:]))
			if n = min(n, end-at); n < logHeader {
				break
			}
			binary.LittleEndian.PutUint16(b[at+4:], uint16(n-logHeader))
			binary.LittleEndian.PutUint32(b[at+7:], num)
			c := crc32.Checksum(b[at+6:at+n], crc32.MakeTable(crc32.Castagnoli))
			binary.LittleEndian.PutUint32(b[at:], (c>>15|c<<17)+0xa282ead8)
			at += n
		}
		if flip >= 0 && flip < len(b) {
			b[flip] ^= 1
		}
		d := scanLog(b, num)
		if d == nil {
			return
		}
		size := 0
		for _, r := range d.beyond {
			size += len(r)
			if !isBatch(r) {
				continue
			}
			var p pebble.Batch
			if err := p.SetRepr(r); err != nil {
				t.Fatal(err)
			}
			keys := uint32(0)
			for read := p.Reader(); ; {
				kind, _, _, ok, err := read.Next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				switch kind {
				case pebble.InternalKeyKindLogData:
					keys--
				case pebble.InternalKeyKindSet, pebble.InternalKeyKindDelete, pebble.InternalKeyKindRangeDelete:
				default:
					t.Fatalf("a batch that has a %v", kind)
				}
				keys++
			}
			if keys != p.Count() {
				t.Fatalf("%d keys of %d", keys, p.Count())
			}
		}
		if d.at < 0 || d.at >= d.size || int64(size) > d.size-d.at {
			t.Fatalf("damage at %d of %d, %d bytes beyond", d.at, d.size, size)
		}
	})
}
