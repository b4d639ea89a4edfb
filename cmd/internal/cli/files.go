package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// File formats of import and export.
const (
	formatPcap       = "pcap"
	formatPcapng     = "pcapng"
	formatBinaryFile = "binaryfile"
	formatNDJSON     = "ndjson"
	formatRaw        = "raw"
)

// formatOf tells a format by the name of a file, with or without .gz or .zst;
// "" where the name says nothing.
func formatOf(name string) string {
	name = strings.ToLower(filepath.Base(name))
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	switch ext := filepath.Ext(name); ext {
	case ".pcap", ".cap", ".dmp":
		return formatPcap
	case ".pcapng", ".ntar":
		return formatPcapng
	case ".ndjson", ".jsonl":
		return formatNDJSON
	case ".raw":
		return formatRaw
	case ".itch", ".bin", ".binaryfile":
		return formatBinaryFile
	default:
		// As NASDAQ names its own: 12302019.NASDAQ_ITCH50.
		if strings.Contains(ext, "itch") {
			return formatBinaryFile
		}
	}
	return ""
}

// countingReader tells how much was read.
type countingReader struct {
	r    io.Reader
	read func(n int)
}

func (c countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.read(n)
	return n, err
}

// input is a file to read more than once.
type input struct {
	name string
	f    *os.File
	size int64
	time time.Time
	temp bool
}

// openInput opens a file; "-" is stdin. What cannot be read twice is copied to
// a temporary file first.
func openInput(name string, stdin io.Reader) (*input, error) {
	in := &input{name: name}
	var src io.Reader = stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		st, err := f.Stat()
		if err == nil && st.IsDir() {
			err = fmt.Errorf("%s: is a directory", name)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if st.Mode().IsRegular() {
			in.f, in.size, in.time = f, st.Size(), st.ModTime()
			return in, nil
		}
		defer f.Close()
		src = f
	}
	f, err := os.CreateTemp("", "moldtape-")
	if err != nil {
		return nil, err
	}
	in.f, in.temp, in.time = f, true, time.Now()
	if in.size, err = io.Copy(f, src); err != nil {
		in.close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return in, nil
}

// rewind gives the content from its start.
func (in *input) rewind(read func(int)) (io.Reader, error) {
	if _, err := in.f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return countingReader{in.f, read}, nil
}

func (in *input) close() {
	in.f.Close()
	if in.temp {
		os.Remove(in.f.Name())
	}
}

// output is a file that appears under its name only when it is complete;
// compressed where the name ends in .gz or .zst.
type output struct {
	io.Writer
	finish []func() error // in order
	temp   string         // to be renamed to name
	name   string
	f      *os.File
}

// createOutput opens name for writing; "-" is stdout. What is not a regular
// file (a device, a pipe) is written directly.
func createOutput(name string, stdout io.Writer) (*output, error) {
	o, w, err := openOutput(name, stdout)
	if err != nil {
		return nil, err
	}
	buf := bufio.NewWriterSize(w, 1<<18)
	o.Writer = buf
	switch filepath.Ext(strings.ToLower(name)) {
	case ".gz":
		z := gzip.NewWriter(buf)
		o.Writer, o.finish = z, append(o.finish, z.Close)
	case ".zst":
		z, err := zstd.NewWriter(buf, zstd.WithEncoderConcurrency(1))
		if err != nil {
			o.discard()
			return nil, err
		}
		o.Writer, o.finish = z, append(o.finish, z.Close)
	}
	o.finish = append(o.finish, buf.Flush)
	return o, nil
}

// openOutput is createOutput up to where the bytes go, as they are.
func openOutput(name string, stdout io.Writer) (o *output, w io.Writer, err error) {
	o, w = &output{name: name}, stdout
	if name != "-" {
		if real, err := filepath.EvalSymlinks(name); err == nil {
			o.name = real
		}
		st, err := os.Stat(o.name)
		switch {
		case err == nil && st.IsDir():
			return nil, nil, fmt.Errorf("%s: is a directory", name)
		case err == nil && !st.Mode().IsRegular():
			o.f, err = os.OpenFile(o.name, os.O_WRONLY, 0)
			if err != nil {
				return nil, nil, err
			}
		default:
			o.temp = filepath.Join(filepath.Dir(o.name), fmt.Sprintf(".%s.%d.tmp", filepath.Base(o.name), os.Getpid()))
			o.f, err = os.OpenFile(o.temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
			if err != nil { // *fs.PathError, of the hidden name: that given is told
				return nil, nil, fmt.Errorf("%s: cannot be written: %w", name, errors.Unwrap(err))
			}
		}
		w = o.f
	}
	return o, w, nil
}

// commit completes the file and gives it its name.
func (o *output) commit() error {
	for _, f := range o.finish {
		if err := f(); err != nil {
			o.discard()
			return err
		}
	}
	if o.f == nil {
		return nil
	}
	if o.temp != "" {
		if err := o.f.Sync(); err != nil {
			o.discard()
			return err
		}
	}
	if err := o.f.Close(); err != nil {
		o.discard()
		return err
	}
	if o.temp == "" {
		return nil
	}
	if err := os.Rename(o.temp, o.name); err != nil {
		os.Remove(o.temp)
		return err
	}
	// The name is durable once its directory is.
	d, err := os.Open(filepath.Dir(o.name))
	if err != nil {
		return nil // one that may be written to and not read: nothing can be done
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // not every file system has that
		return fmt.Errorf("%s: its directory: %w", o.name, err)
	}
	return nil
}

// discard leaves no trace of the file; what stood under its name stays.
func (o *output) discard() {
	if o.f != nil {
		o.f.Close()
	}
	if o.temp != "" {
		os.Remove(o.temp)
	}
}
