package store

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	memTableSize = 16 << 20

	// separateAt is from which size on a value lies in a blob file, which
	// compactions never rewrite: bodies do, headers and tail records do not.
	separateAt = 4 << 10
)

// pebbleOptions are those of a segment. cache is shared by all segments of an
// archive; it holds index blocks and headers, so it is small.
func pebbleOptions(fs vfs.FS, cache *pebble.Cache, log pebble.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:                          fs,
		Cache:                       cache,
		FormatMajorVersion:          pebble.FormatValueSeparation,
		Logger:                      log,
		MemTableSize:                memTableSize,
		MemTableStopWritesThreshold: 4,
		MaxOpenFiles:                256,
		BytesPerSync:                1 << 20,
		WALBytesPerSync:             1 << 20,
		// What is written once is not written again: tables lie where they
		// came, the rest is small. Nothing waits for compactions.
		DisableAutomaticCompactions: true,
		L0StopWritesThreshold:       1 << 30,
		DisableTableStats:           true,
	}
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 64 << 20
	}
	o.FlushSplitBytes = 64 << 20
	o.Experimental.CompactionScheduler = noCompactions{}
	// Bodies are compressed already.
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled: true, MinimumSize: separateAt, MaxBlobReferenceDepth: 10,
			RewriteMinimumAge: time.Hour, TargetGarbageRatio: 1,
		}
	}
	return o
}

// noCompactions schedules nothing, as nothing is compacted. That of Pebble has
// a goroutine, which stays where an open fails.
type noCompactions struct{}

func (noCompactions) Register(int, pebble.DBForCompaction)              {}
func (noCompactions) Unregister()                                       {}
func (noCompactions) TrySchedule() (bool, pebble.CompactionGrantHandle) { return false, nil }
func (noCompactions) UpdateGetAllowedWithoutPermission()                {}

// pebbleLog is the Logger of one open of one segment. Fatalf, which Pebble
// expects not to return, marks the segment as dead in place of ending the
// process: its committer sees that before it believes any commit.
type pebbleLog struct {
	log   *slog.Logger
	dead  atomic.Bool
	onErr func(error)
	say   bool // how far a log could be read

	down chan struct{} // closed when it is marked as dead; may be nil

	// fence goes up at once when it is marked as dead: after Fatalf Pebble goes
	// on as if the edit of its manifest had been written, and would next remove
	// the log whose tables only that edit names. May be nil.
	fence *fenceFS

	mu   sync.Mutex
	err  error
	last time.Time // of an alarm: a failing flush is retried without a pause
}

func (l *pebbleLog) Infof(format string, args ...any) {
	if l.say && strings.Contains(format, "stopped reading at offset") {
		// Behind that lies nothing, or a record that was torn.
		l.log.Info("log read after an unclean end: " + fmt.Sprintf(format, args...))
		return
	}
	l.log.Debug(fmt.Sprintf(format, args...))
}

func (l *pebbleLog) Errorf(format string, args ...any) {
	l.mu.Lock()
	quiet := time.Since(l.last) < time.Second
	if !quiet {
		l.last = time.Now()
	}
	l.mu.Unlock()
	if !quiet && !l.dead.Load() {
		l.log.Warn(oneLine(fmt.Sprintf(format, args...)))
	}
}

func (l *pebbleLog) Fatalf(format string, args ...any) {
	err := errors.New(oneLine(fmt.Sprintf(format, args...)))
	for _, a := range args {
		if cause, ok := a.(error); ok && !errors.Is(err, cause) {
			err = &fatalError{err.Error(), cause}
		}
	}
	l.fail(err)
}

// fatalError is what Pebble said with the error that made it say so.
type fatalError struct {
	said  string
	cause error
}

func (e *fatalError) Error() string { return e.said }
func (e *fatalError) Unwrap() error { return e.cause }

// fail marks the segment as dead; the first error is kept.
func (l *pebbleLog) fail(err error) {
	err = plain(err)
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
	}
	l.mu.Unlock()
	l.dead.Store(true) // before the fence, behind which nothing is to be believed
	if l.fence != nil {
		l.fence.up.Store(true)
	}
	if first && l.down != nil {
		close(l.down)
	}
	if first && l.onErr != nil {
		l.onErr(err)
	}
}

// corruption notes that a file is damaged. Whoever read gets the error, and
// says it with the range that is lost: the store goes on.
func (l *pebbleLog) corruption(i pebble.DataCorruptionInfo) {
	l.log.Debug("damage found", "err", oneLine(fmt.Sprint(i.Details)))
}

func (l *pebbleLog) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// openForWrite opens or makes the Pebble store at dir.
func openForWrite(dir string, fs *fenceFS, cache *pebble.Cache, log *pebbleLog) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, panicked(r)
		}
		err = plain(err)
		fs.opened()
		if log.dead.Load() { // whatever came of it
			err = log.Err()
		}
		if errors.Is(err, pebble.ErrDBDoesNotExist) {
			err = errStoreLost
		}
		if err != nil {
			fs.raise()
		}
	}()
	o := pebbleOptions(fs, cache, log)
	// Where the manifest was lost, a store made anew would remove the files of
	// the old one.
	o.ErrorIfNotExists = holdsData(fs, dir)
	o.EventListener = &pebble.EventListener{
		// A flush that fails leaves everything in the log: it is the log that
		// says what is durable. But it fills memory, and means that the disk
		// is in trouble, so writing stops until the segment was opened anew.
		BackgroundError: func(err error) { log.fail(fmt.Errorf("background: %w", plain(err))) },
		DataCorruption:  log.corruption,
	}
	damage, err := readDamagedLog(fs, dir)
	if err != nil && !isNotExist(err) {
		return nil, err
	}
	u, err := findUnmarked(fs, dir)
	if err != nil && !isNotExist(err) {
		return nil, err
	}
	if u != nil {
		log.log.Error("a segment is damaged around its store; it costs no message", "damage", u.String())
		if err := u.mend(fs, dir); err != nil {
			return nil, err
		}
	}
	if db, err = pebble.Open(dir, o); err != nil || damage == nil {
		return db, err
	}
	written, refused, err := damage.replay(db)
	log.log.Error("the log of a segment is damaged: what lies behind that is written again; what does not come back is a hole", "file", damage.name,
		"at", damage.at, "size", damage.size, "records", written, "refused", refused)
	return db, err
}

// flush writes what is in memory to tables, as Flush of Pebble does, which
// however does not return while the disk is full.
func flush(db *pebble.DB, log *pebbleLog) error {
	flushed, err := db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-log.down:
		return log.Err()
	}
}

// openForRead opens the Pebble store at dir without a lock and without a
// write; what is in its log is read into memory. files is shared by all of an
// archive, as cache is.
func openForRead(dir string, fs vfs.FS, cache *pebble.Cache, files *pebble.FileCache, log *slog.Logger) (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, panicked(r)
		}
		err = plain(err)
	}()
	l := &pebbleLog{log: log}
	o := pebbleOptions(sealedFS{fs}, cache, l)
	o.FileCache = files
	o.ReadOnly = true
	o.EventListener = &pebble.EventListener{DataCorruption: l.corruption}
	db, err = pebble.Open(dir, o)
	if _, e := fs.Stat(fs.PathJoin(dir, sealFile)); err != nil && isNotExist(e) { // a sealed one never changes: its files are looked through
		if u, e := findUnmarked(fs, dir); e == nil && u != nil {
			log.Warn("a segment is damaged around its store; it is read without", "damage", u.String())
			o.FS = asMended{o.FS, u, dir}
			db, err = pebble.Open(dir, o)
		}
	}
	if err == nil && l.dead.Load() {
		err = l.Err()
		closeQuietly(db)
		db = nil
	}
	if errors.Is(err, pebble.ErrDBDoesNotExist) && holdsData(fs, dir) {
		err = errStoreLost
	}
	return db, err
}
