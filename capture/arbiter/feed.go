package arbiter

import (
	"encoding/binary"
	"errors"

	"github.com/moldtape/moldtape/moldcast"
)

// parse is moldcast.Parse, with the heartbeats of the feed as they are
// elsewhere: carrying the next sequence.
func (a *Arbiter) parse(d []byte) (moldcast.Packet, error) {
	p, err := moldcast.Parse(d)
	if a.cfg.Feed.Heartbeats != moldcast.HeartbeatLast {
		return p, err
	}
	switch {
	case err == nil && p.Kind == moldcast.Heartbeat:
		if p.First++; p.First == 0 {
			return moldcast.Packet{}, moldcast.ErrSeqOverflow
		}
	case errors.Is(err, moldcast.ErrSeqZero) && len(d) == moldcast.HeaderSize && binary.BigEndian.Uint16(d[18:]) == 0:
		// Nothing was sent yet.
		p = moldcast.Packet{Kind: moldcast.Heartbeat, First: 1}
		copy(p.Session[:], d)
		err = nil
	}
	return p, err
}
