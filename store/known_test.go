package store

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// Who answers from memory never has the disk looked at, however long ago that
// was done last: neither for the bounds, nor at a hole or beyond the head.
func TestFromMemoryWithoutALook(t *testing.T) {
	a := create(t, testOptions(vfs.NewMem()))
	w := writer(t, a, "S")
	put(t, w, piece(1, 2))
	put(t, w, piece(10, 2))
	v := w.View()
	stale := time.Time{}
	v.s.mu.Lock()
	v.s.loaded = stale
	v.s.mu.Unlock()
	loaded := func() time.Time {
		v.s.mu.Lock()
		defer v.s.mu.Unlock()
		return v.s.loaded
	}
	if first, head := v.Known(); first != 1 || head != 12 {
		t.Error(first, head)
	}
	var hole *moldcast.HoleError
	if _, _, err := v.Append(nil, 5, 1, 100, false); !errors.As(err, &hole) {
		t.Error(err)
	}
	if _, _, err := v.Append(nil, 12, 1, 100, false); !errors.Is(err, ErrBeyond) {
		t.Error(err)
	}
	if loaded() != stale {
		t.Error("the disk was looked at")
	}
	if _, _, err := v.Append(nil, 5, 1, 100, true); !errors.As(err, &hole) || loaded() == stale {
		t.Error("the disk was not looked at")
	}
}
