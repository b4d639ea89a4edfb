package replay

import "io"

// Link harms packets on their way: *mcast.Impairment is one. emit is called
// for each packet that comes out; what it is given is valid during the call.
type Link interface {
	Apply(pkt []byte, emit func([]byte))
	Flush(emit func([]byte))
}

// Impaired is a Sender behind a Link that loses, repeats or reorders data
// packets. Heartbeats and End of Session pass it unharmed and after everything
// that it held back, so what the link does depends on its seed and the data
// alone. The sender's thread owns it. A packet that the link loses counts as
// sent.
type Impaired struct {
	next Sender
	link Link

	out     [][]byte // came out of the link, not yet sent
	kept    [][]byte // buffers of out
	applied bool     // the first packet of the next Send is in out already
	emit    func([]byte)
}

// NewImpaired puts link before next.
func NewImpaired(next Sender, link Link) *Impaired {
	s := &Impaired{next: next, link: link}
	s.emit = func(b []byte) {
		i := len(s.out)
		if i == len(s.kept) {
			s.kept = append(s.kept, nil)
		}
		s.kept[i] = append(s.kept[i][:0], b...)
		s.out = append(s.out, s.kept[i])
	}
	return s
}

// Send implements Sender. A packet is sent when everything that it made come
// out of the link is.
func (s *Impaired) Send(batch [][]byte) (int, error) {
	for i, b := range batch {
		if !s.applied {
			s.link.Apply(b, s.emit)
		}
		s.applied = true
		if err := s.drain(); err != nil {
			return i, err
		}
		s.applied = false
	}
	return len(batch), nil
}

// Mark sends a heartbeat or End of Session.
func (s *Impaired) Mark(pkt []byte) error {
	s.link.Flush(s.emit)
	if err := s.drain(); err != nil {
		return err
	}
	_, err := s.next.Send([][]byte{pkt})
	return err
}

// drain sends out. What is not sent stays in it.
func (s *Impaired) drain() error {
	for at := 0; at < len(s.out); {
		n, err := s.next.Send(s.out[at:])
		at += n
		if at < len(s.out) && (err != nil || n == 0) {
			// Rotated, not moved: each entry keeps a buffer of its own.
			left := len(s.out) - at
			for k := range left {
				s.kept[k], s.kept[at+k] = s.kept[at+k], s.kept[k]
				s.out[k] = s.kept[k]
			}
			s.out = s.out[:left]
			if err == nil {
				err = io.ErrShortWrite
			}
			return err
		}
	}
	s.out = s.out[:0]
	return nil
}
