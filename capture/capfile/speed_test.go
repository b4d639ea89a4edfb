package capfile

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
)

// feedFile is a capture file of at least size bytes, in memory, of a feed of
// per messages a packet on average; 0: full packets.
func feedFile(t testing.TB, f Format, per float64, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, f)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var s moldcast.Session
	copy(s[:], "000007525B")
	lens := []int{19, 23, 31, 36, 36, 40, 44}
	p, msg := []byte(nil), make([]byte, 50)
	stamp := noon
	for seq := moldcast.Seq(1); b.Len() < size; {
		n := 46
		if per > 0 {
			for n = 1; float64(n) < 40 && rng.Float64() > 1/per; n++ {
			}
		}
		p = moldcast.AppendHeader(p[:0], s, seq, uint16(n))
		for i := range n {
			m := msg[:lens[rng.IntN(len(lens))]]
			if per == 0 {
				m = msg[:28]
			}
			for k := 0; k < len(m); k += 4 {
				v := rng.Uint32()
				copy(m[k:], []byte{byte(v), byte(v >> 8), byte(i), byte(v >> 24)})
			}
			p = moldcast.AppendMessage(p, m)
		}
		stamp += moldcast.Stamp(rng.IntN(5000))
		if err := w.Write(stamp, groupA, p); err != nil {
			t.Fatal(err)
		}
		seq += moldcast.Seq(n)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// feeds are the capture files that are measured.
var feeds = []struct {
	name string
	f    Format
	per  float64
}{
	{"pcap/messages=1.35", Pcap, 1.35},
	{"pcap/messages=4", Pcap, 4},
	{"pcap/messages=full", Pcap, 0},
	{"pcapng/messages=1.35", Pcapng, 1.35},
	{"pcapng/messages=full", Pcapng, 0},
}

// eachFeed runs a benchmark over the packets of each file; each gets one.
func eachFeed(b *testing.B, each func(b *testing.B, file []byte) func(*Packet)) {
	for _, x := range feeds {
		b.Run(x.name, func(b *testing.B) { reading(b, feedFile(b, x.f, x.per, 16<<20), each) })
	}
	b.Run("corpus", func(b *testing.B) { reading(b, corpusFile(b, "nasdaq-totalview-2016/nasdaq.pcap"), each) })
}

func reading(b *testing.B, file []byte, each func(b *testing.B, file []byte) func(*Packet)) {
	do := each(b, file)
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		through(b, file, do)
	}
}

func through(t testing.TB, file []byte, do func(*Packet)) {
	r, err := NewReader(bytes.NewReader(file), Options{Checksums: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var p Packet
	for err = r.Read(&p); err == nil; err = r.Read(&p) {
		do(&p)
	}
	if err != io.EOF {
		t.Fatal(err)
	}
}

// Records, layers and checksums.
func BenchmarkReader(b *testing.B) {
	eachFeed(b, func(*testing.B, []byte) func(*Packet) { return func(*Packet) {} })
}

// The first reading of an import.
func BenchmarkSurvey(b *testing.B) {
	eachFeed(b, func(*testing.B, []byte) func(*Packet) {
		s := NewSurvey(SurveyOptions{})
		return s.Add
	})
}

// The second, up to the messages.
func BenchmarkJudge(b *testing.B) {
	eachFeed(b, func(b *testing.B, file []byte) func(*Packet) {
		s := NewSurvey(SurveyOptions{})
		through(b, file, s.Add)
		s.Finish()
		var scratch []byte
		return func(p *Packet) {
			f, fault := s.Judge(p)
			if f == nil || fault != Whole {
				return // routers talk there too
			}
			if _, err := f.Protocol.Parse(p.Payload, &scratch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{20, 60, 100, 1400, 9000} {
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				if fold(sum(p, 0)) != 0 {
					b.Fatal("sum")
				}
			}
		})
	}
}

func TestImportDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return
	}
	file := feedFile(t, Pcap, 1.35, 4<<20)
	s := NewSurvey(SurveyOptions{})
	through(t, file, s.Add)
	r, err := NewReader(bytes.NewReader(file), Options{Checksums: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var p Packet
	var scratch []byte
	s.Finish()
	if n := testing.AllocsPerRun(20_000, func() {
		if err := r.Read(&p); err != nil {
			t.Fatal(err)
		}
		s.Add(&p)
		f, _ := s.Judge(&p)
		if _, err := f.Protocol.Parse(p.Payload, &scratch); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
