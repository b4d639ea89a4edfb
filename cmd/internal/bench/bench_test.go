package bench

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// What a feed is written as, is read back from, and stored as is the feed.
func TestFeed(t *testing.T) {
	f := Generated(1000, 4)
	file, err := f.Pcap()
	if err != nil {
		t.Fatal(err)
	}
	got := &Feed{}
	if err := packets(file, func(p *capfile.Packet) {
		m, err := moldcast.Parse(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		got.Add(m.Msgs.Framed(), m.Msgs.Len(), p.Stamp)
	}); err != nil {
		t.Fatal(err)
	}
	same := func(what string, got *Feed) {
		t.Helper()
		if !bytes.Equal(got.Rows, f.Rows) || got.Count != f.Count || len(got.Pieces) != len(f.Pieces) {
			t.Fatalf("%s: %d messages in %d packets, want %d in %d", what, got.Count, len(got.Pieces), f.Count, len(f.Pieces))
		}
		for i, p := range got.Pieces {
			if w := f.Pieces[i]; p.First != w.First || p.Time != w.Time || !bytes.Equal(p.Msgs.Framed(), w.Msgs.Framed()) {
				t.Fatalf("%s: packet %d is %v at %d, want %v at %d", what, i, p.Range(), p.Time, w.Range(), w.Time)
			}
		}
	}
	same("pcap", got)

	dir := t.TempDir() + "/archive"
	s, err := MeasureStore(context.Background(), dir, store.DefaultOptions(), f, 0, f.Count)
	if err != nil {
		t.Fatal(err)
	}
	if s.Messages != f.Count || s.Raw != len(f.Rows) || s.Disk == 0 || s.Wrote < s.Disk {
		t.Fatalf("%+v", s)
	}
	a, err := store.Open(dir, store.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ref, err := a.Find("BENCH")
	if err != nil {
		t.Fatal(err)
	}
	v, err := a.View(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got, err = FeedOf("x", v, 1<<30); err != nil {
		t.Fatal(err)
	}
	same("archive", got)

	got.Cut(len(f.Pieces[0].Msgs.Framed()) + 1)
	if len(got.Pieces) != 1 || got.Count != 4 || !bytes.Equal(got.Rows, f.Pieces[0].Msgs.Framed()) {
		t.Fatalf("cut to one packet it has %d", len(got.Pieces))
	}
}

// An endless feed goes on in numbers and times.
func TestEndless(t *testing.T) {
	f := Generated(10, 4)
	e, next, last := &Endless{Feed: f}, moldcast.Seq(1), moldcast.Stamp(0)
	for i := range 10 {
		p := e.Next()
		if p.First != next || p.Time <= last || p.Heard != p.Time {
			t.Fatalf("packet %d: %v at %d, want from %d after %d", i, p.Range(), p.Time, next, last)
		}
		next, last = p.Range().Next, p.Time
		if want := f.Pieces[i%3].Msgs.Framed(); !bytes.Equal(p.Msgs.Framed(), want) {
			t.Fatalf("packet %d holds other messages", i)
		}
	}
}

// What is interrupted says so, and is at an end.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := Generated(100, 4)
	if _, err := MeasureForms(ctx, f, Forms, 1<<10, 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("forms: %v", err)
	}
	if _, err := AppendSynced(ctx, t.TempDir(), time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("append: %v", err)
	}
	if _, err := MeasureStore(ctx, t.TempDir()+"/a", store.DefaultOptions(), f, time.Hour, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("store: %v", err)
	}
	if _, err := MeasureLag(ctx, t.TempDir()+"/b", store.DefaultOptions(), f, 1000, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("lag: %v", err)
	}
}
