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
// not been written. It answers with the number of records, and of those that
// are no batch of ours.
func (d *logDamage) replay(db *pebble.DB) (written, refused int, err error) {
	for _, record := range d.beyond {
		if !isBatch(record) {
			refused++
			continue
		}
		b := db.NewBatch()
		if err = b.SetRepr(record); err == nil {
			err = db.Apply(b, pebble.NoSync)
			written++
		}
		if e := b.Close(); err == nil {
			err = e
		}
		if err != nil {
			return written, refused, err
		}
	}
	return written, refused, db.LogData(nil, pebble.Sync)
}

// isBatch reports whether a record is the representation of a batch that sets
// and deletes keys, as many as it says. Pebble takes that for granted: it reads
// beyond a record that ends within a key, and ends the process where the number
// is another.
func isBatch(record []byte) bool {
	const header, countAt = 12, 8 // sequence number u64, number of keys u32
	if len(record) < header {
		return false
	}
	keys := uint32(0)
	for b := record[header:]; len(b) > 0; {
		kind := pebble.InternalKeyKind(b[0])
		b = b[1:]
		var key, value []byte
		ok := false
		if key, b, ok = batchString(b); !ok {
			return false
		}
		switch kind {
		case pebble.InternalKeyKindDelete:
		case pebble.InternalKeyKindLogData:
			keys-- // it is not counted
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindRangeDelete:
			if value, b, ok = batchString(b); !ok || kind == pebble.InternalKeyKindRangeDelete && bytes.Compare(key, value) >= 0 {
				return false
			}
		default:
			return false
		}
		keys++
	}
	return keys == binary.LittleEndian.Uint32(record[countAt:])
}

// batchString is a string of a batch, and what follows: its length is a varint
// of at most 5 bytes.
func batchString(b []byte) (s, rest []byte, ok bool) {
	n, k := binary.Uvarint(b[:min(len(b), binary.MaxVarintLen32)])
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	return b[k : k+int(n)], b[k+int(n):], true
}
