package httpd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Snapshots is the snapshots of an archive as they are served.
type Snapshots struct {
	Archive *store.Archive
	// Channels are those whose snapshots are served; empty: all.
	Channels []string
	Max      int64 // PUT takes at most so many bytes; 0: it is refused

	patience time.Duration // tests: so much longer than others may an upload take
}

// Who uploads or downloads is one of a few, and each must get on: a client that
// is slow, or large, takes nothing from a capture but what the disk takes to
// write it.
const (
	maxUploads   = 2
	maxDownloads = 4
	leastRate    = 64 << 10 // bytes a second, on the average
	graceTime    = 10 * time.Second
)

// snapshots serves
//
//	PUT /snapshots/CHANNEL/SESSION?seq=N   the body is stored: the state after all messages below N
//	GET /snapshots/CHANNEL/SESSION[?seq=N] the newest at or before N, or of all; headers Moldtape-Seq, Moldtape-Sha256
//	GET /snapshots/CHANNEL/SESSION/list    what there is, as JSON
func (s *Server) snapshots(mux *http.ServeMux, cfg *Snapshots) {
	up, down := make(chan struct{}, maxUploads), make(chan struct{}, maxDownloads)
	one := func(turns chan struct{}, h func(w http.ResponseWriter, r *http.Request, ref store.Ref) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
			default:
				w.Header().Set("Retry-After", "1")
				http.Error(w, "as many snapshots as may be are under way; come back later", http.StatusServiceUnavailable)
				return
			}
			ref, err := cfg.Archive.Find(r.PathValue("channel") + "/" + r.PathValue("session"))
			if err == nil && len(cfg.Channels) > 0 && !slices.Contains(cfg.Channels, ref.Channel) {
				err = fmt.Errorf("%w: channel %s is not served here", store.ErrNotFound, ref.Channel)
			}
			if err == nil {
				err = h(w, r, ref)
			}
			if err != nil {
				http.Error(w, err.Error(), snapshotCode(err))
			}
		}
	}
	mux.HandleFunc("PUT /snapshots/{channel}/{session}", func(w http.ResponseWriter, r *http.Request) {
		if cfg.Max <= 0 {
			http.Error(w, "this node takes no snapshots: capture --snapshot-max says how large one may be", http.StatusForbidden)
			return
		}
		one(up, cfg.put)(w, r)
	})
	mux.HandleFunc("GET /snapshots/{channel}/{session}", one(down, cfg.get))
	mux.HandleFunc("GET /snapshots/{channel}/{session}/list", one(down, func(w http.ResponseWriter, _ *http.Request, ref store.Ref) error {
		list, err := cfg.Archive.Snapshots(ref)
		if err == nil {
			WriteJSON(w, http.StatusOK, list)
		}
		return err
	}))
}

var errSeq = errors.New("seq: want a sequence, 1 to 18446744073709551614")

// snapshotCode is the status that tells of err.
func snapshotCode(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrNoSnapshot):
		return http.StatusNotFound
	case errors.Is(err, errSeq), errors.Is(err, errUpload), errors.Is(err, store.ErrSnapshotSeq), errors.Is(err, store.ErrAmbiguous):
		return http.StatusBadRequest
	case errors.Is(err, store.ErrSnapshotExists):
		return http.StatusConflict
	case errors.Is(err, store.ErrPruned):
		return http.StatusGone
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, syscall.ENOSPC):
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

func seqOf(r *http.Request) (moldcast.Seq, error) {
	n, err := strconv.ParseUint(r.URL.Query().Get("seq"), 10, 64)
	if err != nil || n == 0 || n == ^uint64(0) {
		return 0, errSeq
	}
	return moldcast.Seq(n), nil
}

// paced reads or writes with a deadline that moves on with what gets through:
// never longer than a request may else take without a byte, and no slower than
// leastRate.
type paced struct {
	extend func(time.Time) error
	each   time.Duration
	began  time.Time
	n      int64
}

func (p *paced) next(n int) {
	p.n += int64(n)
	at := time.Now().Add(p.each)
	if last := p.began.Add(graceTime + time.Duration(p.n/leastRate)*time.Second); last.Before(at) {
		at = last
	}
	_ = p.extend(at)
}

type pacedBody struct {
	io.Reader
	p paced
}

// errUpload: the body did not come whole, or too slowly. The fault is not here.
var errUpload = errors.New("the upload broke off")

func (b *pacedBody) Read(buf []byte) (int, error) {
	b.p.next(0)
	n, err := b.Reader.Read(buf)
	b.p.n += int64(n)
	if err != nil && err != io.EOF && !errors.As(err, new(*http.MaxBytesError)) {
		err = fmt.Errorf("%w: %w", errUpload, err)
	}
	return n, err
}

// put stores the body.
func (s *Snapshots) put(w http.ResponseWriter, r *http.Request, ref store.Ref) error {
	q, err := seqOf(r)
	if err != nil {
		return err
	}
	if r.ContentLength > s.Max {
		return fmt.Errorf("a snapshot of %d bytes: this node takes %d at most: %w", r.ContentLength, s.Max, &http.MaxBytesError{Limit: s.Max})
	}
	rc := http.NewResponseController(w)
	body := &pacedBody{http.MaxBytesReader(w, r.Body, s.Max), paced{rc.SetReadDeadline, readTime + s.patience, time.Now().Add(s.patience), 0}}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	info, err := s.Archive.PutSnapshot(ref, q, body, "http from "+host)
	_ = rc.SetWriteDeadline(time.Now().Add(writeTime)) // it ran while the body came
	if err == nil {
		WriteJSON(w, http.StatusOK, struct {
			Session string `json:"session"`
			store.SnapshotInfo
		}{ref.String(), info})
	}
	return err
}

// get sends the newest at or before seq. What is found damaged when part of it
// was sent ends short of its length.
func (s *Snapshots) get(w http.ResponseWriter, r *http.Request, ref store.Ref) error {
	var q moldcast.Seq
	if r.URL.Query().Has("seq") {
		var err error
		if q, err = seqOf(r); err != nil {
			return err
		}
	}
	if end, ended, err := s.Archive.EndOf(ref); err == nil && ended && (q == 0 || q > end) {
		q = end // what was put beyond, before that was on record, is no state of the session
	}
	snap, err := s.Archive.OpenSnapshot(ref, q)
	if err != nil {
		return err
	}
	defer snap.Close()
	info := snap.Info()
	piece, err := snap.Next(nil)
	if err != nil && err != io.EOF {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatUint(info.Bytes, 10))
	h.Set("Moldtape-Seq", strconv.FormatUint(uint64(info.Seq), 10))
	h.Set("Moldtape-Sha256", info.Sum)
	p := paced{http.NewResponseController(w).SetWriteDeadline, writeTime, time.Now(), 0}
	for err == nil {
		p.next(len(piece))
		if _, err = w.Write(piece); err == nil {
			piece, err = snap.Next(piece[:0])
		}
	}
	return nil // it is too late to say more; the length tells
}
