package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
)

// The file of a snapshot, as the package comment describes it.
const (
	snapshotDir    = "snapshots"
	snapshotSuffix = ".snap"
	snapshotMagic  = "moldsnap"
	snapshotFormat = 1
	snapshotDigits = 20

	snapshotHead = 8 + 2 + 10 + 4 + 8 + 8 + 8 + 32 + 64 + 4

	// SnapshotPiece is the most bytes that SnapshotReader.Next appends.
	SnapshotPiece = 32 << 10
)

// What callers branch on.
var (
	// ErrNoSnapshot: there is none at or before the sequence asked for.
	ErrNoSnapshot = errors.New("no snapshot")

	// ErrSnapshotExists: there is another one at that sequence. What is stored
	// is never overwritten.
	ErrSnapshotExists = errors.New("there is another snapshot at that sequence already")

	// ErrSnapshotSeq: no snapshot of the session can have that sequence.
	ErrSnapshotSeq = errors.New("no sequence for a snapshot")

	errSnapshotDamaged = errors.New("damaged")
)

// SnapshotError: a snapshot is not what was stored. What of it no checksum
// vouches for is never given out; an older one can be asked for, at Seq-1.
type SnapshotError struct {
	Session string       // CHANNEL/SESSION[@TAKE]
	File    string       // within the directory of the session
	Seq     moldcast.Seq // of the snapshot
	Err     error        // what is wrong with it
}

func (e *SnapshotError) Error() string {
	return fmt.Sprintf("%s: snapshot at %d (%s): %v", e.Session, e.Seq, e.File, e.Err)
}

func (e *SnapshotError) Unwrap() error { return e.Err }

// SnapshotInfo describes a snapshot: the state of an application after all
// messages below Seq, so that what follows it is [Seq, …).
type SnapshotInfo struct {
	Seq   moldcast.Seq `json:"seq"`
	Bytes uint64       `json:"bytes"`  // as the application gave them
	Sum   string       `json:"sha256"` // of these, in hexadecimal
	Time  *time.Time   `json:"time"`   // when it was stored
	Fault string       `json:"fault,omitempty"`
}

// snapshotHeader is the head of a file.
type snapshotHeader struct {
	ref  Ref
	seq  moldcast.Seq
	made time.Time
	size uint64
	sum  [32]byte
}

func (h *snapshotHeader) info() SnapshotInfo {
	made := h.made.UTC()
	return SnapshotInfo{Seq: h.seq, Bytes: h.size, Sum: hex.EncodeToString(h.sum[:]), Time: &made}
}

func snapshotName(q moldcast.Seq) string {
	return fmt.Sprintf("%0*d%s", snapshotDigits, uint64(q), snapshotSuffix)
}

// parseSnapshotName is the inverse of snapshotName.
func parseSnapshotName(name string) (moldcast.Seq, bool) {
	digits, ok := strings.CutSuffix(name, snapshotSuffix)
	if !ok || len(digits) != snapshotDigits {
		return 0, false
	}
	var q uint64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' || q > (1<<64-1-uint64(c-'0'))/10 {
			return 0, false
		}
		q = q*10 + uint64(c-'0')
	}
	return moldcast.Seq(q), q > 0
}

func (h *snapshotHeader) encode() []byte {
	b := make([]byte, 0, snapshotHead)
	b = append(b, snapshotMagic...)
	b = binary.BigEndian.AppendUint16(b, snapshotFormat)
	b = append(b, h.ref.Session[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(h.ref.Take))
	b = binary.BigEndian.AppendUint64(b, uint64(h.seq))
	b = binary.BigEndian.AppendUint64(b, uint64(h.made.UnixNano()))
	b = binary.BigEndian.AppendUint64(b, h.size)
	b = append(b, h.sum[:]...)
	b = append(b, h.ref.Channel...)
	b = b[:snapshotHead-4]
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
}

// parseSnapshotHeader errors wrap errSnapshotDamaged, or are *VersionError
// without a path.
func parseSnapshotHeader(b []byte) (h snapshotHeader, err error) {
	if len(b) < snapshotHead {
		return h, fmt.Errorf("%w: its header is cut short at %d bytes", errSnapshotDamaged, len(b))
	}
	b = b[:snapshotHead]
	if binary.BigEndian.Uint32(b[snapshotHead-4:]) != crc32.Checksum(b[:snapshotHead-4], castagnoli()) {
		return h, fmt.Errorf("%w: the checksum of its header does not match", errSnapshotDamaged)
	}
	if string(b[:8]) != snapshotMagic {
		return h, fmt.Errorf("%w: it is no snapshot", errSnapshotDamaged)
	}
	if f := binary.BigEndian.Uint16(b[8:]); f != snapshotFormat {
		return h, &VersionError{Got: int(f), Want: snapshotFormat}
	}
	copy(h.ref.Session[:], b[10:])
	h.ref.Take = int(binary.BigEndian.Uint32(b[20:]))
	h.seq = moldcast.Seq(binary.BigEndian.Uint64(b[24:]))
	h.made = time.Unix(0, int64(binary.BigEndian.Uint64(b[32:])))
	h.size = binary.BigEndian.Uint64(b[40:])
	copy(h.sum[:], b[48:])
	h.ref.Channel = string(bytes.TrimRight(b[80:144], "\x00"))
	return h, nil
}

// snapshotBytes is the length of the file of a snapshot of size bytes; not ok:
// no file is that long.
func snapshotBytes(size uint64) (n int64, ok bool) {
	if size > 1<<60 {
		return 0, false
	}
	return int64(snapshotHead + size + (size+SnapshotPiece-1)/SnapshotPiece*4), true
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // always the same one

func pieceSum(at uint64, b []byte) uint32 {
	var pos [8]byte
	binary.BigEndian.PutUint64(pos[:], at)
	return crc32.Update(crc32.Checksum(pos[:], castagnoli()), castagnoli(), b)
}

// SnapshotReader gives the bytes of a snapshot, each piece after its checksum
// was compared. It belongs to one goroutine. The snapshot may be pruned
// meanwhile: it reads on to its end.
type SnapshotReader struct {
	f    vfs.File
	h    snapshotHeader
	file string
	at   uint64
	hash hash.Hash
	buf  []byte // of Read
	rest []byte // of that
	err  error
}

// Info describes the snapshot.
func (r *SnapshotReader) Info() SnapshotInfo { return r.h.info() }

// Seq is its sequence: the state is that after all messages below.
func (r *SnapshotReader) Seq() moldcast.Seq { return r.h.seq }

// Size is how many bytes it has.
func (r *SnapshotReader) Size() uint64 { return r.h.size }

// Sum is their SHA-256.
func (r *SnapshotReader) Sum() [32]byte { return r.h.sum }

// Close closes the file.
func (r *SnapshotReader) Close() error { return r.f.Close() }

// openSnapshot reads the header of dir/name. Errors: *SnapshotError, or those
// of the file system.
func openSnapshot(fs vfs.FS, ref Ref, dir string, q moldcast.Seq) (*SnapshotReader, error) {
	name := snapshotName(q)
	f, err := fs.Open(fs.PathJoin(dir, name))
	if err != nil {
		return nil, err
	}
	r := &SnapshotReader{f: f, file: snapshotDir + "/" + name, hash: sha256.New()}
	r.h.ref, r.h.seq = ref, q // until it is read
	b := make([]byte, snapshotHead)
	n, err := io.ReadFull(f, b)
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
	default:
		f.Close()
		return nil, fmt.Errorf("%v/%s: %w", ref, r.file, err)
	}
	h, err := parseSnapshotHeader(b[:n])
	if err == nil && (h.ref != ref || h.seq != q) {
		err = fmt.Errorf("%w: it is that of %v at %d", errSnapshotDamaged, h.ref, h.seq)
	}
	if err == nil {
		st, e := f.Stat()
		if e != nil {
			f.Close()
			return nil, fmt.Errorf("%v/%s: %w", ref, r.file, e)
		}
		if want, ok := snapshotBytes(h.size); !ok || st.Size() != want {
			err = fmt.Errorf("%w: it has %d bytes, of %d", errSnapshotDamaged, st.Size(), want)
		}
	}
	if err != nil {
		err = r.damaged(err)
		f.Close()
		return nil, err
	}
	r.h = h
	return r, nil
}

func (r *SnapshotReader) damaged(err error) error {
	return &SnapshotError{Session: r.h.ref.String(), File: r.file, Seq: r.h.seq, Err: err}
}

// Next appends the next piece, of 1 to SnapshotPiece bytes. The error is io.EOF
// behind the last, once the hash over all was compared; *SnapshotError; or that
// of the disk.
func (r *SnapshotReader) Next(dst []byte) ([]byte, error) {
	if r.err != nil {
		return dst, r.err
	}
	if r.at == r.h.size {
		if r.err = io.EOF; string(r.hash.Sum(nil)) != string(r.h.sum[:]) {
			r.err = r.damaged(fmt.Errorf("%w: its SHA-256 does not match", errSnapshotDamaged))
		}
		return dst, r.err
	}
	n := len(dst)
	size := int(min(r.h.size-r.at, SnapshotPiece))
	dst = append(dst, make([]byte, size+4)...) // the compiler makes no slice of it
	b := dst[n:]
	if _, err := io.ReadFull(r.f, b); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = r.damaged(fmt.Errorf("%w: it was cut short at byte %d of %d", errSnapshotDamaged, r.at, r.h.size))
		} else {
			err = fmt.Errorf("%v/%s: %w", r.h.ref, r.file, err)
		}
		r.err = err
		return dst[:n], err
	}
	if binary.BigEndian.Uint32(b[size:]) != pieceSum(r.at, b[:size]) {
		r.err = r.damaged(fmt.Errorf("%w: the checksum of its bytes %d..%d does not match", errSnapshotDamaged, r.at, r.at+uint64(size)-1))
		return dst[:n], r.err
	}
	r.at += uint64(size)
	r.hash.Write(b[:size])
	return dst[:n+size], nil
}

// Read implements io.Reader by Next.
func (r *SnapshotReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		var err error
		if r.buf, err = r.Next(r.buf[:0]); err != nil {
			return 0, err
		}
		r.rest = r.buf
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

const (
	// snapshotSync is how many bytes of one that is written are synced at a
	// time: no sync of a capture is to wait for more.
	snapshotSync = 4 << 20

	// snapshotRoom is what storing one leaves free of the disk, beside the
	// reserve: a capture comes first.
	snapshotRoom = 64 << 20
)

// fill reads until b is full or src ends, by io.EOF: an upload that breaks off
// gives io.ErrUnexpectedEOF, which io.ReadFull does not tell from that.
func fill(src io.Reader, b []byte) (n int, end bool, err error) {
	for n < len(b) {
		k, err := src.Read(b[n:])
		if n += k; err == io.EOF {
			return n, true, nil
		} else if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// writeSnapshot writes src to path, a new file, and syncs it. h gets size and
// sum. room is asked now and then, with how much was written.
func writeSnapshot(fs vfs.FS, path string, h *snapshotHeader, src io.Reader, room func() error) (err error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if _, err := f.Write(make([]byte, snapshotHead)); err != nil { // no header yet, which nothing takes for one
		return err
	}
	sum := sha256.New()
	buf := make([]byte, SnapshotPiece+4)
	unsynced := 0
	for {
		n, end, err := fill(src, buf[:SnapshotPiece])
		if err != nil {
			return fmt.Errorf("reading what is to be stored: %w", err)
		}
		if n == 0 {
			break
		}
		sum.Write(buf[:n])
		binary.BigEndian.PutUint32(buf[n:], pieceSum(h.size, buf[:n]))
		h.size += uint64(n)
		if _, err := f.Write(buf[:n+4]); err != nil { // it may change its argument
			return err
		}
		if unsynced += n; unsynced >= snapshotSync {
			unsynced = 0
			if err := room(); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
		if end {
			break
		}
	}
	sum.Sum(h.sum[:0])
	if _, err := f.WriteAt(h.encode(), 0); err != nil {
		return err
	}
	return f.Sync()
}
