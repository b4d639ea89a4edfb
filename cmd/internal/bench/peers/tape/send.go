package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
)

const (
	batch       = 32          // packets a call
	headers     = 14 + 20 + 8 // Ethernet, IPv4, UDP
	meanBurst   = 8           // packets lost at once
	warmUp      = 3           // a part of the packets: then what runs has its memory
	linger      = 50 * time.Millisecond
	ethernetIP4 = 0x0800
)

// sender puts frames on the wire, as fast as the machine lets a program: by a
// packet socket, past the queueing discipline, a batch a call, nothing copied.
type sender struct {
	fd       int
	requests int
	feed     *feed
	session  moldcast.Session
	heads    [batch][headers + moldcast.HeaderSize]byte
	iov      [batch][2]unix.Iovec
	msgs     [batch]mmsghdr
	n        int // of the batch
	sent     moldcast.Seq
	answer   []byte
}

type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// send says "ready", waits for a line, sends, says what it sent, and answers
// requests and repeats End of Session until stdin ends. Without loss there is
// neither: all packets are messages, and can be counted.
func send(args []string) error {
	if len(args) != 5 {
		return errors.New("want send FEED RATE PACKETS LOSS SEED")
	}
	f, err := newFeed(args[0])
	if err != nil {
		return err
	}
	rate, err1 := strconv.ParseFloat(args[1], 64)
	packets, err2 := strconv.Atoi(args[2])
	loss, err3 := strconv.ParseFloat(args[3], 64)
	seed, err4 := strconv.ParseUint(args[4], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	runtime.LockOSThread()
	s, err := newSender(f)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	r, err := s.stream(rate, packets, loss, seed)
	if err != nil {
		return err
	}
	fmt.Println("sent", r.packets, r.messages, r.lost, r.bursts, r.fewest, r.took.Seconds())
	if loss == 0 {
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	return s.linger()
}

func newSender(f *feed) (*sender, error) {
	ifi, err := net.InterfaceByName(sendOn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sendOn, err)
	}
	s := &sender{feed: f, answer: make([]byte, 0, payload)}
	if s.session, err = moldcast.ParseSession(session); err != nil {
		return nil, err
	}
	// Protocol 0: it hears nothing.
	if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index}); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return nil, err
	}
	if s.requests, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, err
	}
	if err := unix.Bind(s.requests, &unix.SockaddrInet4{Port: int(requests.Port()), Addr: requests.Addr().As4()}); err != nil {
		return nil, fmt.Errorf("requests: %w", err)
	}
	to, from := group.Addr().As4(), source.As4()
	for i := range s.heads {
		h := s.heads[i][:]
		copy(h, []byte{1, 0, 0x5e, to[1] & 0x7f, to[2], to[3], 2, 0, 0, 0, 0, 2})
		binary.BigEndian.PutUint16(h[12:], ethernetIP4)
		ip := h[14:]
		copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 1, unix.IPPROTO_UDP})
		copy(ip[12:], from[:])
		copy(ip[16:], to[:])
		binary.BigEndian.PutUint16(ip[20:], group.Port())
		binary.BigEndian.PutUint16(ip[22:], group.Port()) // UDP checksum: none, as after a card that has checked it
		s.iov[i][0].Base = &h[0]
		s.iov[i][0].SetLen(len(h))
		s.msgs[i].hdr.Iov = &s.iov[i][0]
	}
	return s, nil
}

// put adds a packet to the batch.
func (s *sender) put(first moldcast.Seq, count uint16, body []byte) error {
	h := s.heads[s.n][:]
	ip := h[14:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(h)-14+len(body)))
	binary.BigEndian.PutUint16(ip[24:], uint16(len(h)-34+len(body)))
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	moldcast.AppendHeader(h[:headers], s.session, first, count)
	s.msgs[s.n].hdr.Iovlen = 1
	if len(body) > 0 {
		s.iov[s.n][1].Base = &body[0]
		s.iov[s.n][1].SetLen(len(body))
		s.msgs[s.n].hdr.Iovlen = 2
	}
	if s.n++; s.n == batch {
		return s.flush()
	}
	return nil
}

func (s *sender) flush() error {
	for done := 0; done < s.n; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.msgs[done])), uintptr(s.n-done), 0, 0, 0)
		switch errno {
		case 0:
			done += int(n)
		case unix.EINTR, unix.ENOBUFS, unix.EAGAIN:
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
	s.n = 0
	return nil
}

// sent is what was sent: packets on the wire, messages of the stream; bursts
// that were lost, messages in them, the fewest answers that bring those; how
// long it took.
type sent struct {
	packets, messages, lost, bursts, fewest int
	took                                    time.Duration
}

// stream sends packets at rate a second (0: as fast as it goes), and loses a
// part of them in bursts. After a third of them it says "warm".
func (s *sender) stream(rate float64, packets int, loss float64, seed uint64) (sent, error) {
	var r sent
	rng := rand.New(rand.NewPCG(seed, 1))
	burst, began := 0, time.Now() // packets of a burst still to be lost
	var hole moldcast.Range
	closeHole := func() {
		for r.lost += int(hole.Next - hole.First); hole.First < hole.Next; r.fewest++ {
			a := s.feed.answer(s.answer[:0], s.session, hole)
			hole.First += moldcast.Seq(binary.BigEndian.Uint16(a[18:]))
		}
		hole = moldcast.Range{}
	}
	for i := range packets {
		if i == packets/warmUp {
			fmt.Println("warm")
		}
		first, count, body := s.feed.packet(i)
		s.sent = first + moldcast.Seq(count)
		if loss > 0 {
			if burst == 0 && hole == (moldcast.Range{}) && rng.Float64() < loss/meanBurst {
				burst = 1 + rng.IntN(2*meanBurst-1)
				hole.First = first
				r.bursts++
			}
			if burst > 0 {
				burst--
				hole.Next = s.sent
				continue
			}
			if hole.First != 0 {
				closeHole()
			}
		}
		r.packets++
		if err := s.put(first, count, body); err != nil {
			return r, err
		}
		if s.n != 0 {
			continue
		}
		for due := time.Duration(float64(i) / rate * 1e9); ; {
			if loss > 0 {
				if err := s.serve(); err != nil {
					return r, err
				}
			}
			if rate == 0 || time.Since(began) >= due {
				break
			}
		}
	}
	closeHole()
	r.messages = int(s.sent) - 1
	err := s.flush()
	r.took = time.Since(began)
	return r, err
}

// serve answers what requests there are.
func (s *sender) serve() error {
	var buf [64]byte
	for {
		n, from, err := unix.Recvfrom(s.requests, buf[:], 0)
		if err == unix.EAGAIN {
			return nil
		}
		if err != nil {
			return fmt.Errorf("requests: %w", err)
		}
		q, err := moldcast.ParseRequest(buf[:n])
		if err != nil || q.Session != s.session || q.First == 0 || q.First >= s.sent {
			continue
		}
		r := q.Range()
		r.Next = min(r.Next, s.sent)
		if err := unix.Sendto(s.requests, s.feed.answer(s.answer[:0], s.session, r), 0, from); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// linger repeats End of Session and answers requests until stdin ends.
func (s *sender) linger() error {
	for {
		if err := errors.Join(s.put(s.sent, moldcast.EndCount, nil), s.flush()); err != nil {
			return err
		}
		for until := time.Now().Add(linger); ; {
			left := time.Until(until)
			if left < time.Millisecond {
				break
			}
			fds := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}, {Fd: int32(s.requests), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(left/time.Millisecond)); err != nil && err != unix.EINTR {
				return err
			}
			if fds[0].Revents != 0 {
				_, err := io.Copy(io.Discard, os.Stdin)
				return err
			}
			if err := s.serve(); err != nil {
				return err
			}
		}
	}
}
