package store

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// errPanic is a fault that Pebble answered with a panic: so it does where a
// file that its manifest names is missing or cut short.
var errPanic = errors.New("the store is not whole")

// protect runs a call of Pebble. A panic in it is an error that wraps
// errPanic; any other error is one line.
func protect(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked(r)
		}
	}()
	return plain(fn())
}

// panicked is the error for what was recovered.
func panicked(r any) error {
	text := fmt.Sprint(r)
	if strings.HasPrefix(text, "unknown metadata type") {
		// What Pebble trips over while it wants to say that a file is bad.
		text = "a file of it is missing or cut short"
	}
	return fmt.Errorf("%w: %s", errPanic, oneLine(text))
}

// plainError is an error of Pebble that prints as one line, in every verb.
// Pebble's own print, to a logger, with the stack they were made on.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }

func plain(err error) error {
	switch err.(type) {
	case nil:
		return nil
	case *plainError, *CorruptError, *VersionError:
		return err
	}
	if text := err.Error(); strings.ContainsAny(text, "\n<") {
		return &plainError{oneLine(text), err}
	}
	if _, ok := err.(fmt.Formatter); ok {
		return &plainError{err.Error(), err}
	}
	return err
}

// oneLine is the first line of a text that Pebble made, without what it
// carries for its own use.
func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n(1) ")
	var out []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line == "<corruption detail carrier>" || strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "-- stack trace") {
			continue
		}
		out = append(out, line)
	}
	return strings.TrimSpace(strings.ReplaceAll(strings.Join(out, "; "), "<corruption detail carrier>", ""))
}

// goneKeys are the records at which a store panicked. Each panic leaves
// something behind that nobody frees, so no record is asked for twice. There
// are no more of them than blocks in the segment.
type goneKeys struct {
	mu   sync.Mutex
	errs map[string]error
}

func (g *goneKeys) get(k []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.errs[string(k)]
}

func (g *goneKeys) put(k []byte, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.errs == nil {
		g.errs = map[string]error{}
	}
	g.errs[string(k)] = err
}

// value gives fn the value under a key of g, valid until fn returns. The
// error wraps pebble.ErrNotFound where there is none.
func (g *segment) value(db *pebble.DB, k []byte, fn func(v []byte) error) error {
	if err := g.gone.get(k); err != nil {
		return err
	}
	var inner error
	err := protect(func() error {
		v, c, err := db.Get(k)
		if err != nil {
			return err
		}
		defer c.Close()
		inner = fn(v)
		return nil
	})
	if errors.Is(err, errPanic) {
		g.gone.put(k, err)
	}
	if err == nil {
		err = inner
	}
	return err
}
