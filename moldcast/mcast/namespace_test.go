//go:build linux

package mcast

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nested says that the test runs in namespaces of its own, made by itself.
const nested = "MOLDTAPE_TEST_NESTED"

// inNamespace runs the test again in a user and a network namespace of its own,
// where it may do everything; ok is true in there.
func inNamespace(t *testing.T) (ok bool) {
	t.Helper()
	if os.Getenv(nested) != "" {
		return true
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("interfaces cannot be made here: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	// Root may be refused a user namespace, and needs none.
	for _, flags := range []uintptr{unix.CLONE_NEWUSER | unix.CLONE_NEWNET, unix.CLONE_NEWNET} {
		c := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), nested+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags&unix.CLONE_NEWUSER != 0 {
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		out, err = c.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err == nil || errors.As(err, &exit) {
			break
		}
	}
	switch exit := (*exec.ExitError)(nil); {
	case err == nil && strings.Contains(string(out), "SKIP"):
		t.Skipf("in namespaces of its own:\n%s", out)
	case err == nil:
		t.Logf("in namespaces of its own:\n%s", out)
	case errors.As(err, &exit):
		t.Errorf("in namespaces of its own: %v\n%s", err, out)
	default:
		t.Skipf("no namespaces here: %v", err)
	}
	return false
}

// ip runs ip(8), or ends the test: that a kernel has no such device is no
// fault, anything else is.
func ip(t *testing.T, args string) {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	switch {
	case err == nil:
	case strings.HasPrefix(args, "link add "), strings.HasPrefix(args, "tuntap add "):
		t.Skipf("ip %s: %v: %s", args, err, out)
	default:
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

func write(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		t.Skip(err)
	}
}

// cable makes the two ends of a cable, va and vb, with addresses; a host that
// has both takes what it sent itself for forged, unless told.
func cable(t *testing.T) {
	t.Helper()
	ip(t, "link set lo up")
	ip(t, "link add va type veth peer name vb")
	for _, dev := range []string{"va", "vb"} {
		write(t, "/proc/sys/net/ipv4/conf/"+dev+"/accept_local", "1")
		write(t, "/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", "0")
	}
	write(t, "/proc/sys/net/ipv4/conf/all/rp_filter", "0")
	ip(t, "addr add 10.77.0.1/24 dev va")
	ip(t, "addr add 10.77.0.2/24 dev vb")
	ip(t, "link set va up")
	ip(t, "link set vb up")
	untilRunning(t, "va", "vb")
}

// untilRunning waits until interfaces carry packets: a new one drops them.
func untilRunning(t *testing.T, devs ...string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, dev := range devs {
		for must[*net.Interface](t)(net.InterfaceByName(dev)).Flags&net.FlagRunning == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%s is not running", dev)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// injector puts frames on an interface, as they are.
type injector struct {
	t     *testing.T
	fd    int
	index int
}

func inject(t *testing.T, dev string) *injector {
	t.Helper()
	ifi := must[*net.Interface](t)(net.InterfaceByName(dev))
	fd := must[int](t)(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0))
	t.Cleanup(func() { unix.Close(fd) })
	return &injector{t, fd, ifi.Index}
}

func (i *injector) raw(frame []byte) {
	i.t.Helper()
	if err := unix.Sendto(i.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.index}); err != nil {
		i.t.Fatal(err)
	}
}

// send sends IP packets behind an Ethernet header with VLAN tags.
func (i *injector) send(packets [][]byte, tags ...uint16) {
	i.t.Helper()
	for _, p := range packets {
		i.raw(append(ethernetTo([6]byte{1, 0, 0x5e, p[17] & 0x7f, p[18], p[19]}, tags...), p...))
	}
}

func ethernetTo(to [6]byte, tags ...uint16) []byte {
	b := append(to[:len(to):len(to)], 2, 0, 0, 0, 0, 9)
	for _, tag := range tags {
		b = binary.BigEndian.AppendUint16(b, 0x8100)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	return binary.BigEndian.AppendUint16(b, etherTypeIP)
}

// fragments cuts an IP packet into pieces of at most size bytes of payload, a
// multiple of 8.
func fragments(packet []byte, id uint16, size int) (out [][]byte) {
	head := int(packet[0]&15) * 4
	data := packet[head:]
	for at := 0; at < len(data); at += size {
		piece := data[at:min(at+size, len(data))]
		f := append(append([]byte{}, packet[:head]...), piece...)
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		binary.BigEndian.PutUint16(f[4:], id)
		offset := uint16(at / 8)
		if at+len(piece) < len(data) {
			offset |= 0x2000
		}
		binary.BigEndian.PutUint16(f[6:], offset)
		fixHeader(f)
		out = append(out, f)
	}
	return out
}

// segments sends payload as one super-packet of datagrams of size bytes; false
// where the kernel has no such thing.
func segments(t *testing.T, s *Conn, payload []byte, size int) bool {
	t.Helper()
	if err := unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT, size); err != nil {
		t.Logf("no UDP_SEGMENT: %v", err)
		return false
	}
	if _, err := unix.Write(s.fd, payload); err != nil {
		t.Fatal(err)
	}
	return true
}

func address(s string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(s), port)
}

// lockForever keeps a goroutine on a thread that ends with it: what was
// changed in the thread is not to be met again.
func lockForever() { runtime.LockOSThread() }

func textLog(b io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// syncBuffer is a log that may be looked at while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncBuffer) count(what string) int { return strings.Count(s.String(), what) }
