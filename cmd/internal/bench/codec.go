package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/moldtape/moldtape/store/block"
)

// Form is a form of a block's payload that is measured.
type Form struct {
	Name  string
	Level block.Level
}

// Forms are all; the first, rows compressed by zstd at its default level, is
// what the others are compared with.
var Forms = []Form{{"row", block.Default}, {"row-fast", block.Fastest}, {"planes", block.Planes}, {"hasty", block.Hasty}, {"dense", block.Dense}}

// FormResult is what a form takes.
type FormResult struct {
	Form
	Stored         int // bytes of all blocks, with their headers
	Codecs         map[block.Codec]int
	Learn          time.Duration   // of the plans, in the last round
	Encode, Decode []time.Duration // of each round, CPU
}

// Speeds are the medians, in raw bytes a second of f.
func (r *FormResult) Speeds(f *Feed) (encode, decode float64) {
	speed := func(d []time.Duration) float64 {
		d = slices.Sorted(slices.Values(d))
		return float64(len(f.Rows)) / d[len(d)/2].Seconds()
	}
	return speed(r.Encode), speed(r.Decode)
}

// MeasureForms encodes and decodes f in blocks of size raw bytes, the forms in
// turn, until rounds are done, or for at least one round until more says false.
// Plans are learned from the first block, and anew where the encoder asks for
// it, outside of the time that is taken.
func MeasureForms(ctx context.Context, f *Feed, forms []Form, size, rounds int, more func() bool) ([]FormResult, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocks, err := cut(f, size)
	if err != nil {
		return nil, err
	}
	dec, err := block.NewDecoder(block.DecoderOptions{})
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	results := make([]FormResult, len(forms))
	for n := 0; n < rounds && (n == 0 || more == nil || more()); n++ {
		for i, form := range forms {
			results[i].Form = form
			if err := results[i].round(ctx, blocks, size, dec); err != nil {
				return nil, fmt.Errorf("%s: %w", form.Name, err)
			}
		}
	}
	return results, nil
}

// cut makes blocks of a feed, as an archive does.
func cut(f *Feed, size int) (out []*block.Block, err error) {
	b := block.NewBuilder(session)
	for i, p := range f.Pieces {
		if err := b.Append(p); err != nil {
			return nil, err
		}
		if b.RawSize() >= size || i == len(f.Pieces)-1 {
			x := new(block.Block)
			if err := b.Freeze(x); err != nil {
				return nil, err
			}
			out = append(out, x)
			b.Reset(x.Session())
		}
	}
	return out, nil
}

// round encodes and decodes all blocks once.
func (r *FormResult) round(ctx context.Context, blocks []*block.Block, size int, dec *block.Decoder) error {
	enc, err := block.NewEncoder(block.EncoderOptions{BlockSize: size, Level: r.Level})
	if err != nil {
		return err
	}
	r.Stored, r.Learn, r.Codecs = 0, 0, map[block.Codec]int{}
	var buf []byte
	var got block.Block
	// Buffers are made before time is taken.
	if _, buf = enc.EncodeBlock(buf, blocks[0], block.EncodeOptions{}); r.Level == block.Dense {
		start := ThreadCPU()
		enc.UsePlans(block.Learn(nil, blocks[0]))
		r.Learn = ThreadCPU() - start
	}
	var encode, decode time.Duration
	for _, b := range blocks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		start := ThreadCPU()
		header, body := enc.EncodeBlock(buf[:0], b, block.EncodeOptions{})
		encode += ThreadCPU() - start
		buf = body
		h, err := block.ParseHeader(header)
		if err != nil {
			return err
		}
		r.Codecs[h.Codec]++
		r.Stored += len(body) + len(header)
		if err := dec.Decode(h, body, &got); err != nil { // and makes its buffers
			return err
		}
		start = ThreadCPU()
		if err := dec.Decode(h, body, &got); err != nil {
			return err
		}
		decode += ThreadCPU() - start
		if !bytes.Equal(got.Rows(), b.Rows()) {
			return fmt.Errorf("block %v is another one when decoded", h.Range())
		}
		if enc.WantsPlans() {
			start = ThreadCPU()
			enc.UsePlans(block.Learn(enc.Plans(), b))
			r.Learn += ThreadCPU() - start
		}
	}
	r.Encode, r.Decode = append(r.Encode, encode), append(r.Decode, decode)
	return nil
}

// Packed is how many bytes a program that compresses stdin to stdout makes of
// b: exec.ErrNotFound where it is not installed.
func Packed(b []byte, argv ...string) (int, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	return len(out), err
}
