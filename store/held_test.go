package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// Whatever a damaged segment held, and whatever replaces it, each message that
// is held counts once: in all, by segment, line and minute, and for verify.
func TestCountsAddUp(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.noSalvage = true
	o.SegmentSize = 1 << 20
	all := moldcast.Range{First: 101, Next: 4101}
	a := create(t, o)
	ref := closed(t, a, "S", 5, all)
	sound, err := a.Show(ref)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	a = create(t, o)
	alter(t, a, ref, 1, func(db *pebble.DB) {
		flip(t, db, seqKey(nil, keyBody, seqOf(keys(t, db, keyHeader)[3])), 300)
	})
	addUp := func(when string, want uint64) Detail {
		t.Helper()
		d, err := a.Show(ref)
		if err != nil {
			t.Fatal(err)
		}
		var segs, lines, rates, raw, rawLines uint64
		for _, x := range d.SegmentList {
			segs, raw = segs+x.Messages, raw+x.BytesRaw
		}
		for _, x := range d.Lines {
			lines, rawLines = lines+x.Messages, rawLines+x.Bytes
		}
		for _, x := range d.Rates {
			rates += x.Messages
		}
		if d.Messages != want || segs != want || lines != want || rates != want {
			t.Errorf("%s: messages %d, of segments %d, of lines %d, of minutes %d, want %d", when, d.Messages, segs, lines, rates, want)
		}
		if raw != d.BytesRaw || rawLines != d.BytesRaw {
			t.Errorf("%s: %d bytes, of segments %d, of lines %d", when, d.BytesRaw, raw, rawLines)
		}
		list, err := a.Sessions()
		if err != nil || list[0].BytesRaw != d.BytesRaw {
			t.Errorf("%s: %d bytes, in the list of sessions %d, %v", when, d.BytesRaw, list[0].BytesRaw, err)
		}
		return d
	}
	rep, err := a.Verify(t.Context(), nil, nil)
	if err != nil || len(rep.Faults) == 0 {
		t.Fatalf("the damage was not found: %v", err)
	}
	f := rep.Faults[0]
	lost := moldcast.Range{First: f.FirstSeq, Next: f.LastSeq + 1}
	if rep.Messages != all.Len()-lost.Len() {
		t.Errorf("verify counts %d messages, want %d", rep.Messages, all.Len()-lost.Len())
	}
	addUp("damaged", all.Len()-lost.Len())

	w, err := a.Writer(ref.Channel, ref.Session, ref.Take)
	if err != nil {
		t.Fatal(err)
	}
	p := piece(lost.First, int(lost.Len()))
	p.Line = 1
	put(t, w, p)
	w.Filled(Fill{Range: lost, By: "repair", Source: "elsewhere"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d := addUp("repaired", all.Len())
	if d.BytesRaw != sound.BytesRaw {
		t.Errorf("%d bytes after the repair, %d before the damage", d.BytesRaw, sound.BytesRaw)
	}
	for _, l := range d.Lines {
		if l.Line == "B" && l.Filled != lost.Len() || l.Line != "B" && l.Filled != 0 {
			t.Errorf("filled: %+v", l)
		}
	}
	if len(d.FilledList) != 1 || d.FilledList[0] != (FilledInfo{By: "repair", Source: "elsewhere", Messages: lost.Len()}) {
		t.Errorf("filled: %+v", d.FilledList)
	}
	if rep := verify(t, a); rep.Messages != all.Len() {
		t.Errorf("verify counts %d messages, want %d", rep.Messages, all.Len())
	}
}
