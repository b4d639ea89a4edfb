package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble reads its log up to the first chunk that is not sound, and takes that
// for the end unless a later block of the log says otherwise. What lies behind
// a flipped bit is found here, and written again.
//
// The log is in blocks of 32 KiB, and those of chunks, none of which crosses
// their ends (see Pebble's package record):
//
//	u32 checksum of what comes after the length, u16 length, u8 kind, u32 number
//	of the log; u64 up to where the log was synced, not in the first log of a
//	store; then that many bytes
const (
	logBlock  = 32 << 10
	logHeader = 11
	logSynced = logHeader + 8

	logFull   = 5 // kinds of chunks, by what they are of a record
	logFirst  = 6
	logMiddle = 7
	logLast   = 8
	logKinds  = 4 // so much higher is the kind of a chunk that says what was synced
)

// logDamage is where a log is damaged, and what lies behind that.
type logDamage struct {
	name   string
	at     int64    // the first byte that is not sound
	size   int64    // of the log
	beyond [][]byte // records, whole and sound
	torn   bool     // it may be what a loss of power left: it is not known to have been synced
}

func (d *logDamage) String() string {
	why := "damaged"
	if d.torn {
		why = "damaged, or torn by a loss of power,"
	}
	return fmt.Sprintf("%s: %s at byte %d of %d: what lies behind is taken up by the next capture or repair", d.name, why, d.at, d.size)
}

// readDamagedLog looks through the newest log of a store: nil where it is sound
// up to its end. Errors are those of the file system.
func readDamagedLog(fs vfs.FS, dir string) (*logDamage, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	newest, name := uint64(0), ""
	for _, n := range names {
		base, ok := strings.CutSuffix(n, ".log")
		if !ok {
			continue
		}
		if num, err := strconv.ParseUint(base, 10, 64); err == nil && num >= newest {
			newest, name = num, n
		}
	}
	if name == "" {
		return nil, nil
	}
	b, err := readFile(fs, fs.PathJoin(dir, name))
	if err != nil {
		return nil, err
	}
	d := scanLog(b, uint32(newest))
	if d != nil {
		d.name = name
	}
	return d, nil
}

// scanLog is readDamagedLog of what the log with a number holds.
func scanLog(b []byte, num uint32) *logDamage {
	d := &logDamage{at: -1, size: int64(len(b)), torn: true}
	var record []byte // one that was begun
	begun := false
	found := false
	for at := 0; at < len(b); {
		end := min(len(b), at-at%logBlock+logBlock)
		kind, n, payload, synced, ok := logChunk(b[at:end], num)
		if !ok {
			switch {
			case end-at < logSynced: // too little for a chunk, it may be: no damage
			case d.at < 0:
				d.at, begun = int64(at), false
			default:
				begun = false
			}
			at++
			continue
		}
		at += n
		if d.at >= 0 {
			found = true
			d.torn = d.torn && synced <= uint64(d.at)
		}
		switch kind {
		case logFull, logFirst:
			record, begun = bytes.Clone(payload), true
		case logMiddle, logLast:
			if begun {
				record = append(record, payload...)
			}
		}
		if begun && (kind == logFull || kind == logLast) {
			if d.at >= 0 {
				d.beyond = append(d.beyond, record)
			}
			record, begun = nil, false
		}
	}
	if !found {
		return nil // the end of the log, torn perhaps
	}
	return d
}

// logChunk is the chunk that b, the rest of a block, begins with, of n bytes.
func logChunk(b []byte, num uint32) (kind byte, n int, payload []byte, synced uint64, ok bool) {
	if len(b) < logHeader || b[6] < logFull || b[6] > logLast+logKinds || binary.LittleEndian.Uint32(b[7:]) != num {
		return 0, 0, nil, 0, false
	}
	kind, header := b[6], logHeader
	if kind > logLast {
		kind, header = kind-logKinds, logSynced
	}
	if n = header + int(binary.LittleEndian.Uint16(b[4:])); n > len(b) {
		return 0, 0, nil, 0, false
	}
	c := crc32.Checksum(b[6:n], crc32.MakeTable(crc32.Castagnoli))
	if binary.LittleEndian.Uint32(b) != (c>>15|c<<17)+0xa282ead8 {
		return 0, 0, nil, 0, false
	}
	if header == logSynced {
		synced = binary.LittleEndian.Uint64(b[logHeader:])
	}
	return kind, n, b[header:n], synced, true
}

// replay writes again what lies behind the damage, as if what was damaged had
// not been written. It answers with the number of records.
func (d *logDamage) replay(db *pebble.DB) (n int, err error) {
	for _, record := range d.beyond {
		b := db.NewBatch()
		if err = b.SetRepr(record); err == nil && onlyKeys(b) {
			err = db.Apply(b, pebble.NoSync)
			n++
		}
		if e := b.Close(); err == nil {
			err = e
		}
		if err != nil {
			return n, err
		}
	}
	return n, db.LogData(nil, pebble.Sync)
}

// onlyKeys reports whether a batch sets and deletes keys, and does nothing else.
func onlyKeys(b *pebble.Batch) bool {
	for r := b.Reader(); ; {
		kind, _, _, ok, err := r.Next()
		if err != nil {
			return false
		}
		if !ok {
			return true
		}
		switch kind {
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindDelete, pebble.InternalKeyKindDeleteSized,
			pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindRangeDelete, pebble.InternalKeyKindLogData:
		default:
			return false
		}
	}
}
