package cli

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/store"
)

// What a killed capture left is sealed by whichever command comes first: with
// this node's name, and in the form that all commands store blocks in.
func TestSettledAlike(t *testing.T) {
	live := filepath.Join(t.TempDir(), "live")
	o := store.DefaultOptions()
	o.Sync, o.BlockAge, o.Wait, o.Node = 0, time.Hour, true, "captured" // it stays as it is while it is copied
	a, err := store.OpenOrCreate(live, o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w := testWriter(t, a, "C", testSession(t, "S"), 0)
	defer w.Close()
	at := t0
	for q := moldcast.Seq(1); q < 2000; q += 4 {
		var b []byte
		for i := range moldcast.Seq(4) {
			b = moldcast.AppendMessage(b, binary40(uint64(q+i)))
		}
		at += 1_000_003
		if _, err := w.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(b, 4), Time: at, Heard: at}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	settled := func(by func(archive string)) store.SegmentInfo {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "killed") // as kill -9 leaves it
		if err := os.CopyFS(dir, os.DirFS(live)); err != nil {
			t.Fatal(err)
		}
		by(dir)
		a, err := store.Open(dir, store.DefaultOptions())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		d, err := a.Show(store.Ref{Channel: "C", Session: testSession(t, "S"), Take: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(d.SegmentList) != 1 || !d.SegmentList[0].Sealed || d.Messages != 2000 {
			t.Fatalf("%+v", d)
		}
		i := d.SegmentList[0]
		i.SealedAt = nil
		return i
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := settled(func(dir string) {
		if code, _, errs := runCLI(t, dir, "export", "S", "-o", os.DevNull, "--format", "raw"); code != 0 {
			t.Fatal(errs)
		}
	})
	if want.Node != host {
		t.Errorf("export: node %q, want %q", want.Node, host)
	}
	for name, by := range map[string]func(dir string){
		"replay": func(dir string) {
			if code, _, errs := runCLI(t, dir, "replay", "S", "--group", "127.0.0.1:9", "--speed", "max", "--linger", "0s"); code != 0 {
				t.Error(errs)
			}
		},
		"retransmit": func(dir string) {
			var out bytes.Buffer
			e := &env{stdout: &out, stderr: &out, archive: dir, log: slog.New(slog.DiscardHandler)}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := e.retransmit(ctx, retransmitFlags{}, retransmit.Config{}, netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
				t.Error(err)
			}
		},
	} {
		got := settled(by)
		// The files beside the blocks tell times, whose length varies.
		if got.BytesDisk > want.BytesDisk-100 && got.BytesDisk < want.BytesDisk+100 {
			got.BytesDisk = want.BytesDisk
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// binary40 is a message of 40 bytes whose columns compress and rows do less.
func binary40(n uint64) []byte {
	b := make([]byte, 40)
	b[0] = 'A'
	for i, v := 1, n*1_000_003; i+8 <= len(b); i += 13 {
		for k := range 8 {
			b[i+k] = byte(v >> (56 - 8*k))
		}
		v = v*31 + n
	}
	return b
}
