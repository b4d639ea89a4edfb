package store

import "github.com/moldtape/moldtape/moldcast"

// Covers is the leading part of r, which is not empty, that is stored wholly
// (true), or not at all.
func (w *Writer) Covers(r moldcast.Range) (part moldcast.Range, held bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.cov.Cut(r)
}

// Holes is how many holes Held would list.
func (w *Writer) Holes() int {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return len(w.s.missing())
}
