package store

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/moldtape/moldtape/moldcast"
)

// captureRecord is what a capture measured of the session while it recorded
// it. It is written again as the capture goes on: of those that began at the
// same time on the same node the newest holds.
type captureRecord struct {
	Began moldcast.Stamp  `json:"began_ns"`
	Until moldcast.Stamp  `json:"until_ns"`
	Node  string          `json:"node"`
	Stats json.RawMessage `json:"stats"`
}

// maxStats bounds what is kept of one capture, in bytes.
const maxStats = 64 << 10

func captureKey(dst []byte, c captureRecord) []byte {
	return binary.BigEndian.AppendUint64(append(dst, keyCapture), uint64(c.Began))
}

func readCaptures(db *pebble.DB) (out []captureRecord, err error) {
	err = scan(db, keyCapture, func(_, v []byte) error {
		var c captureRecord
		if err := json.Unmarshal(v, &c); err != nil {
			return err
		}
		out = append(out, c)
		return nil
	})
	return out, err
}

// addCaptures takes up records, each in the place of an older one of the same
// capture; in order of their beginnings.
func addCaptures(to, add []captureRecord) []captureRecord {
	for _, c := range add {
		i, _ := slices.BinarySearchFunc(to, c.Began, func(o captureRecord, at moldcast.Stamp) int {
			if o.Began < at {
				return -1
			}
			return 1
		})
		k := i
		for k < len(to) && to[k].Began == c.Began && to[k].Node != c.Node {
			k++
		}
		switch {
		case k == len(to) || to[k].Began != c.Began:
			to = slices.Insert(to, i, c)
		case to[k].Until <= c.Until:
			to[k] = c
		}
	}
	return to
}

// Captured puts on record what a capture, which began at some time, measured
// of the session until now: stats is a JSON document of at most 64 KiB, of
// which Show gives it back. Called again for the same beginning it replaces
// what was there. It is a fact of the segment that is open, and of its seal.
func (w *Writer) Captured(began, until moldcast.Stamp, stats []byte) {
	if len(stats) > maxStats || !json.Valid(stats) {
		w.a.o.Log.Error("statistics of a capture are no JSON of at most 64 KiB; not kept", "session", w.s.ref, "bytes", len(stats))
		return
	}
	c := captureRecord{Began: began, Until: until, Node: w.a.o.Node, Stats: slices.Clone(stats)}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closing {
		return
	}
	for _, o := range s.captures {
		if o.Began == c.Began && o.Node == c.Node {
			c.Until = max(c.Until, o.Until) // the clock may have been set back
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		return // it has no member that cannot be marshalled
	}
	s.captures = addCaptures(s.captures, []captureRecord{c})
	w.records = append(w.records, record{key: captureKey(nil, c), value: b})
	w.touch()
}

// Segments is how many segments the session has.
func (w *Writer) Segments() int {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return len(w.s.segs)
}

// CaptureInfo is what one capture measured of a session.
type CaptureInfo struct {
	Began time.Time       `json:"began"`
	Until time.Time       `json:"until"` // what Stats tells of; a capture that was killed told up to a minute before
	Node  string          `json:"node"`
	Stats json.RawMessage `json:"stats"`
}

func captureInfos(list []captureRecord) []CaptureInfo {
	out := make([]CaptureInfo, len(list))
	for i, c := range list {
		out[i] = CaptureInfo{c.Began.Time(), c.Until.Time(), c.Node, c.Stats}
	}
	return out
}
