package retransmit

import (
	"encoding/binary"
	"errors"

	"github.com/moldtape/moldtape/moldcast"
)

// parse reads a request, or says why it has no answer.
func parse(b []byte) (moldcast.Request, Reason) {
	r, err := moldcast.ParseRequest(b)
	switch {
	case err == nil:
		return r, noReason
	case len(b) == 0:
		return r, Empty
	case err == moldcast.ErrCountZero:
		return r, CountZero
	case err == moldcast.ErrSeqZero:
		return r, SeqZero
	}
	return r, Malformed
}

// answer builds the one packet that answers r, which is not empty, into
// dst[:0]: at most payload bytes, or more when the first message alone is
// larger. out is dst, grown if need be, in any case. The Reason is noReason
// when there is an answer, isCold when there is one on disk and cold is
// false: then sent is what of it is in memory. err goes with ReadFailed, and with
// Missing, where it tells of the hole.
func answer(dst []byte, v View, s moldcast.Session, r moldcast.Range, payload int, cold bool) (out []byte, sent moldcast.Range, why Reason, err error) {
	dst = dst[:0]
	// The head is read before anything is sent, so that it only ever lags
	// behind what is published.
	first, head := v.Bounds()
	if r.First >= head {
		return dst, sent, BeyondHead, nil
	}
	if r.First < first {
		return dst, sent, BelowFirst, nil
	}
	count := int(min(r.Len(), uint64(head-r.First), moldcast.MaxCount))
	dst = moldcast.AppendHeader(dst, s, r.First, 0)
	out, n, err := v.Append(dst, r.First, count, payload-moldcast.HeaderSize, cold)
	switch {
	case err != nil && errors.Is(err, ErrCold):
		return dst[:0], moldcast.Range{First: r.First, Next: r.First + moldcast.Seq(n)}, isCold, nil
	case n > 0 && len(out) <= moldcast.MaxDatagram:
	case n > 0:
		return out[:0], sent, ReadFailed, errTooLarge
	case isHole(err):
		return dst[:0], sent, Missing, err
	case err == nil:
		return dst[:0], sent, ReadFailed, errNothing
	default:
		return dst[:0], sent, ReadFailed, err
	}
	binary.BigEndian.PutUint16(out[18:], uint16(n))
	return out, moldcast.Range{First: r.First, Next: r.First + moldcast.Seq(n)}, noReason, nil
}

var (
	errTooLarge = errors.New("message does not fit a datagram")
	errNothing  = errors.New("view gave no message and no reason")
)

func isHole(err error) bool {
	if _, ok := err.(*moldcast.HoleError); ok { // without errors.As, which allocates
		return true
	}
	var h *moldcast.HoleError
	return errors.As(err, &h)
}
