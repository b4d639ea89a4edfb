package store

import "testing"

// A worker compresses well, and fast once blocks wait for it, until they do
// not.
func TestEncodersHurry(t *testing.T) {
	e, err := newEncoders(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	usual := e.pick(0)
	if e.pick(hurry-1) != usual || e.fast != nil {
		t.Error("it hurries, or is ready to, with few blocks waiting")
	}
	fast := e.pick(hurry)
	if fast == usual || e.pick(100) != fast {
		t.Error("it does not hurry with many blocks waiting")
	}
	if e.pick(0) != usual {
		t.Error("it hurries when none waits any more")
	}
}
