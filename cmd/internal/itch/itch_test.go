package itch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"testing"
	"time"
)

func TestTimestamp(t *testing.T) {
	m := make([]byte, 11)
	for _, d := range []time.Duration{0, 1, 9*time.Hour + 30*time.Minute + 17, 24*time.Hour - 1} {
		PutTimestamp(m, d)
		if got, ok := Timestamp(m); got != d || !ok {
			t.Errorf("%v reads back as %v, %v", d, got, ok)
		}
	}
	PutTimestamp(m, 24*time.Hour)
	if _, ok := Timestamp(m); ok {
		t.Error("midnight of the next day is taken for a time of day")
	}
	if _, ok := Timestamp(m[:10]); ok {
		t.Error("a message of 10 bytes has a timestamp")
	}
	// A system event, as on the wire.
	event, _ := hex.DecodeString("5300000000" + "0a2d4c6f1c2a" + "4f")
	if got, ok := Timestamp(event); !ok || got != 0x0a2d4c6f1c2a {
		t.Errorf("%v, %v", got, ok)
	}
}

// TestGeneratorIsTheSame pins the output: files that were made with a seed
// can be made again.
func TestGeneratorIsTheSame(t *testing.T) {
	h := sha256.New()
	g := NewGenerator(20000, 1)
	for m, ok := g.Next(); ok; m, ok = g.Next() {
		h.Write(m)
	}
	const want = "0f7b21d48a3fd9c695ea13fd35c6779fcbbe63818d48abf255b56e8dd271ffb0"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("20000 messages of seed 1: %s, want %s", got, want)
	}
}

func TestGenerator(t *testing.T) {
	const n = 50000
	g := NewGenerator(n, 7)
	other := NewGenerator(n, 8)
	counts := map[byte]int{}
	var last time.Duration
	total, differ := 0, false
	for {
		m, ok := g.Next()
		if !ok {
			break
		}
		total++
		counts[m[0]]++
		d, ok := Timestamp(m)
		if !ok || d < last {
			t.Fatalf("message %d: time %v after %v", total, d, last)
		}
		last = d
		o, _ := other.Next()
		differ = differ || !bytes.Equal(m, o)
	}
	if total != n || !differ {
		t.Fatalf("%d messages, other seed differs: %v", total, differ)
	}
	for _, k := range kinds {
		got := float64(counts[k.code]) / n
		if want := float64(k.share) / 1000; math.Abs(got-want) > 0.1 || got == 0 {
			t.Errorf("%c: share %.3f, want about %.3f", k.code, got, want)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { other.left++; other.Next() }); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
