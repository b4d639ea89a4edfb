package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	tablePrefix = "table-"

	// maxTables bounds into how many tables one ingestion is split.
	maxTables = 4
)

// ingest writes the bodies of blocks as tables, syncs them and puts them into
// the store: each byte is written once. What it leaves on disk is nothing to
// any reader until the headers are there, which are written after.
func (g *segment) ingest(db *pebble.DB, blocks []*memBlock) error {
	sorted := make([]*memBlock, 0, len(blocks))
	for _, m := range blocks {
		if m.parsed.Messages > 0 {
			sorted = append(sorted, m)
		}
	}
	if len(sorted) == 0 {
		return nil
	}
	slices.SortFunc(sorted, func(a, b *memBlock) int {
		if a.parsed.First() < b.parsed.First() {
			return -1
		}
		return 1
	})
	fs := vfs.FS(g.fence)
	var paths []string
	err := func() error {
		for _, part := range splitTables(sorted) {
			path := fs.PathJoin(g.dir, fmt.Sprintf("%s%d%s", tablePrefix, len(paths), tmpSuffix))
			paths = append(paths, path)
			if err := writeTable(fs, path, db.TableFormat(), part); err != nil {
				return fmt.Errorf("table: %w", err)
			}
		}
		if err := db.Ingest(context.Background(), paths); err != nil {
			return fmt.Errorf("ingest: %w", err)
		}
		return nil
	}()
	if err != nil {
		for _, p := range paths {
			_ = fs.Remove(p)
		}
	}
	return err
}

// splitTables splits blocks, sorted by key, at the widest distances between
// them: a backfill beside the live feed makes two tables, each beside those
// that hold its neighbours, and not one that lies across all between.
func splitTables(sorted []*memBlock) (out [][]*memBlock) {
	var most uint64 // messages of the largest block
	for _, m := range sorted {
		most = max(most, uint64(m.parsed.Messages))
	}
	from := 0
	for i := 1; i < len(sorted) && len(out) < maxTables-1; i++ {
		if uint64(sorted[i].parsed.First()-sorted[i-1].parsed.First()) > 64*most {
			out = append(out, sorted[from:i])
			from = i
		}
	}
	return append(out, sorted[from:])
}

// writeTable writes one table of bodies, synced.
func writeTable(fs vfs.FS, path string, format sstable.TableFormat, blocks []*memBlock) error {
	w, err := openTable(fs, path, format)
	if err != nil {
		return err
	}
	for _, m := range blocks {
		if err := w.Set(seqKey(nil, keyBody, uint64(m.parsed.First())), m.body); err != nil {
			_ = w.Close()
			return err
		}
	}
	return w.Close()
}

// openTable makes a table, which is synced when it is closed.
func openTable(fs vfs.FS, path string, format sstable.TableFormat) (*sstable.Writer, error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20})
	o := pebbleOptions(fs, nil, pebble.DefaultLogger)
	o.EnsureDefaults()
	return sstable.NewWriter(objstorageprovider.NewFileWritable(f), o.MakeWriterOptions(0, format)), nil
}

// isTableTmp reports whether name is that of a table that is not in the store.
func isTableTmp(name string) bool {
	return strings.HasPrefix(name, tablePrefix) && strings.HasSuffix(name, tmpSuffix)
}

// removeTables removes what an ingestion left that did not come to its end.
func removeTables(fs vfs.FS, dir string) {
	names, err := fs.List(dir)
	if err != nil {
		return
	}
	for _, name := range names {
		if isTableTmp(name) {
			_ = fs.Remove(fs.PathJoin(dir, name))
		}
	}
}

// dropOrphans deletes bodies whose headers were not written before a crash or
// failure. The headers of a table come in one batch: it is enough to look at
// the lowest key of each table, and only one without a header is read.
// REQUIRES: nothing is on its way to g.
func (g *segment) dropOrphans() error {
	isOrphan := func(k []byte) (bool, error) {
		if len(k) != 9 || k[0] != keyBody {
			return false, nil
		}
		_, c, err := g.db.Get(seqKey(nil, keyHeader, seqOf(k)))
		if errors.Is(err, pebble.ErrNotFound) {
			return true, nil
		}
		if err == nil {
			err = c.Close()
		}
		return false, err
	}
	levels, err := g.db.SSTables()
	if err != nil {
		return err
	}
	b := g.db.NewBatch()
	defer b.Close()
	for _, level := range levels {
		for _, t := range level {
			low := t.Smallest.UserKey
			if orphan, err := isOrphan(low); err != nil {
				return err
			} else if !orphan {
				continue
			}
			it, err := g.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: append(slices.Clone(t.Largest.UserKey), 0)})
			if err != nil {
				return err
			}
			for ok := it.First(); ok && err == nil; ok = it.Next() {
				var orphan bool
				if orphan, err = isOrphan(it.Key()); orphan {
					err = b.Delete(it.Key(), nil)
				}
			}
			if err == nil {
				err = it.Error()
			}
			if e := it.Close(); err == nil {
				err = e
			}
			if err != nil {
				return err
			}
		}
	}
	if b.Empty() {
		return nil
	}
	return guard(g.log, func() error { return g.db.Apply(b, pebble.Sync) })
}
