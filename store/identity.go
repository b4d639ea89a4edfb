package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/moldtape/moldtape/moldcast"
)

const identityFile = "node.json"

// Identity is who an archive is to others: all captures into it are the same.
type Identity struct {
	ID     [16]byte // random, made once
	Starts uint64   // how often Identify was called, this time included
}

// identityInfo is node.json.
type identityInfo struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Starts uint64 `json:"starts"`
}

// Identify is the identity of the archive, one start further, which is durable
// when it returns. It is made where there is none, and, said in the log, where
// it is damaged: the archive is another one then.
func (a *Archive) Identify() (Identity, error) {
	lock, err := a.lockAudit()
	if err != nil {
		return Identity{}, fmt.Errorf("%s: %w", identityFile, err)
	}
	defer lock.Close()
	var id Identity
	var info identityInfo
	b, err := readFile(a.o.FS, a.o.FS.PathJoin(a.dir, identityFile))
	switch {
	case isNotExist(err):
	case err != nil:
		return Identity{}, fmt.Errorf("%s: %w", identityFile, err)
	default:
		err = parseSummed(b, &info)
		raw, e := hex.DecodeString(info.ID)
		if err == nil && (e != nil || len(raw) != len(id.ID) || info.Format != FormatVersion || info.Starts == 0 || info.Starts == ^uint64(0)) {
			err = errors.New("it is not what was written there")
		}
		copy(id.ID[:], raw)
		if err != nil {
			a.o.Log.Error("the identity of the archive is damaged; it gets a new one, and counts as another archive", "file", identityFile, "err", err)
			info = identityInfo{}
		}
	}
	if info.Starts == 0 {
		if _, err := rand.Read(id.ID[:]); err != nil {
			return Identity{}, fmt.Errorf("%s: %w", identityFile, err)
		}
	}
	id.Starts = info.Starts + 1
	if err := writeSummed(a.o.FS, a.dir, identityFile, identityInfo{FormatVersion, hex.EncodeToString(id.ID[:]), id.Starts}); err != nil {
		return Identity{}, fmt.Errorf("%s: %w", identityFile, hint(err))
	}
	return id, nil
}

// Durable is what is held without a hole from the first message held on, and
// synced: [first, durable) of the watermarks as they are now. Where the first
// is not synced yet it is empty. It may be asked from any goroutine, also
// after Close.
func (w *Writer) Durable() moldcast.Range {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return moldcast.Range{First: s.first(), Next: s.durable()}
}
