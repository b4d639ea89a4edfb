package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store/block"
)

// salvage is the blocks of a sealed segment as they lie in its files, found
// without the help of its store: by how headers and bodies begin, and their
// checksums. What the seal does not name by its digest is not taken. Values
// are stored as they are, in one piece, so that a flipped bit in what the
// store itself keeps (a manifest, an index, a footer, the keys around) costs
// nothing, and one in a block that block.
type salvage struct {
	fs     vfs.FS
	dir    string
	blocks map[moldcast.Seq]*rawBlock // by key
	idx    *index
}

// rawBlock is one block; file is empty where its body was not found.
type rawBlock struct {
	header []byte
	h      block.Header
	file   string
	at     int64
}

var (
	errNotSalvaged = errors.New("not found in the files of the segment either")
	errNothingLeft = errors.New("none of its blocks is found in its files")
)

// salvageSegment reads the files of a sealed segment whole. Errors are those
// of the file system, and of the seal.
func salvageSegment(fs vfs.FS, g *segment) (*salvage, error) {
	b, err := readFile(fs, fs.PathJoin(g.dir, sealFile))
	if err != nil {
		return nil, err
	}
	seal, err := parseSeal(b)
	if err != nil {
		return nil, err
	}
	sealed := make(map[string]bool, len(seal.BlockHashes))
	for _, h := range seal.BlockHashes {
		sealed[h] = true
	}
	s := &salvage{fs: fs, dir: g.dir, blocks: map[moldcast.Seq]*rawBlock{}, idx: new(index)}
	names, err := fs.List(g.dir)
	if err != nil {
		return nil, err
	}
	bySize := map[int][]*rawBlock{} // whose body is looked for, by the length of their rows
	var buf []byte
	err = s.each(names, block.Magic, func(_ string, f vfs.File, at int64) error {
		n, ok := 0, false
		for size := 4 << 10; !ok && size <= block.MaxHeader; size *= 16 { // most are small
			if len(buf) < size {
				buf = make([]byte, size)
			}
			k, err := f.ReadAt(buf[:size], at)
			if err != nil && err != io.EOF {
				return err
			}
			if n, ok = block.HeaderLen(buf[:k]); k < size {
				break
			}
		}
		if !ok {
			return nil
		}
		h, err := block.ParseHeader(buf[:n])
		if err != nil || h.Messages == 0 || h.Session != g.id.Session || s.blocks[h.First()] != nil {
			return nil
		}
		if d := h.Digest(); !sealed[hex.EncodeToString(d[:])] {
			return nil
		}
		r := &rawBlock{header: append([]byte(nil), buf[:n]...), h: h}
		s.blocks[h.First()] = r
		bySize[h.RawLen] = append(bySize[h.RawLen], r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var body []byte
	err = s.each(names, block.BodyMagic, func(name string, f vfs.File, at int64) error {
		var prefix [block.BodyPrefix]byte
		if _, err := f.ReadAt(prefix[:], at); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		raw, _ := block.PayloadLen(prefix[:])
		for _, r := range bySize[raw] {
			if r.file != "" {
				continue
			}
			if cap(body) < r.h.StoredLen {
				body = make([]byte, r.h.StoredLen)
			}
			body = body[:r.h.StoredLen]
			if _, err := f.ReadAt(body, at); err == io.EOF {
				continue
			} else if err != nil {
				return err
			}
			if r.h.BodyMatches(body) {
				r.file, r.at = name, at
				break
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, r := range s.blocks {
		s.idx.add(&r.h, 0)
	}
	return s, nil
}

// each calls fn for every place in the files where pattern begins.
func (s *salvage) each(names []string, pattern string, fn func(name string, f vfs.File, at int64) error) error {
	buf := make([]byte, 1<<20)
	keep := len(pattern) - 1
	one := func(name string) error {
		f, err := s.fs.Open(s.fs.PathJoin(s.dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		for at := int64(0); ; {
			n, err := f.ReadAt(buf, at)
			if err != nil && err != io.EOF {
				return err
			}
			for i := 0; ; i++ {
				k := bytes.Index(buf[i:n], []byte(pattern))
				if k < 0 {
					break
				}
				i += k
				if err := fn(name, f, at+int64(i)); err != nil {
					return err
				}
			}
			if n < len(buf) {
				return nil
			}
			at += int64(n - keep)
		}
	}
	for _, name := range names {
		if st, err := s.fs.Stat(s.fs.PathJoin(s.dir, name)); err != nil {
			return err
		} else if st.IsDir() {
			continue
		}
		if err := one(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// read gives fn the header and body of the block whose key is first.
func (s *salvage) read(first moldcast.Seq, fn func(header, body []byte) error) error {
	r := s.blocks[first]
	if r == nil || r.file == "" {
		return errNotSalvaged
	}
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, r.file))
	if err != nil {
		return err
	}
	defer f.Close()
	body := make([]byte, r.h.StoredLen)
	if _, err := f.ReadAt(body, r.at); err != nil {
		return err
	}
	return fn(r.header, body)
}

// salvage is that of h's segment, made when it is first asked for. Without a
// sound seal there is none.
func (h *handle) salvage(t *table) (*salvage, error) {
	h.rawOnce.Do(func() {
		if t.noSalvage || h.seg.sound.Load() == nil {
			h.rawErr = errNotSalvaged
			return
		}
		h.raw, h.rawErr = salvageSegment(t.fs, h.seg)
		if h.rawErr == nil {
			// What is lost by it is said where it is read; it may be replaced.
			t.log.Warn("the store of a segment is damaged: what its files hold was looked through", "segment", h.seg.name, "blocks", len(h.raw.blocks))
		}
	})
	return h.raw, h.rawErr
}

// fallBack lets h be read from the files as they lie, where its store cannot
// be opened or does not give all that was sealed.
func (h *handle) fallBack(t *table) {
	seal := h.seg.sound.Load()
	if seal == nil {
		return
	}
	short := h.err == nil && len(h.idx.blocks)+len(h.idx.marks) < seal.Blocks
	if h.err == nil && !short || errors.Is(h.err, ErrClosed) {
		return
	}
	raw, err := h.salvage(t)
	if err != nil || len(raw.blocks) == 0 {
		if err == nil && h.err != nil { // whatever Pebble calls it
			h.err = fmt.Errorf("%w: %w", errNothingLeft, h.err)
		}
		return
	}
	if h.err != nil {
		h.openErr, h.err, h.idx = h.err, nil, raw.idx
		return
	}
	have := make(map[moldcast.Seq]bool, len(h.idx.blocks))
	for i := range h.idx.blocks {
		have[h.idx.blocks[i].first] = true
	}
	for first, r := range raw.blocks {
		if !have[first] {
			h.idx.add(&r.h, 0)
		}
	}
}
