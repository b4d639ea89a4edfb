package mcast

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := must[*Network](t)(NewNetwork(NetworkConfig{Latency: 3 * time.Millisecond, Queue: 4}))
		group := netip.MustParseAddrPort("239.255.1.1:26400")
		a := must[*Endpoint](t)(n.Listen(ListenConfig{Addr: group}))
		b := must[*Endpoint](t)(n.Listen(ListenConfig{Addr: group}))
		other := must[*Endpoint](t)(n.Listen(ListenConfig{Addr: netip.MustParseAddrPort("239.255.1.2:26400")}))
		out := must[*Endpoint](t)(n.Dial(SendConfig{Addr: group}))
		only := must[*Endpoint](t)(n.Listen(ListenConfig{Addr: group, Source: netip.MustParseAddr("10.1.1.1")}))
		if _, err := n.Listen(ListenConfig{Addr: out.LocalAddr()}); err == nil {
			t.Error("an address is bound twice")
		}
		began := time.Now()
		sent := must[int](t)(out.Send([][]byte{[]byte("1"), []byte("2"), []byte("3"), []byte("4"), []byte("5")}))
		for _, e := range []*Endpoint{a, b} {
			ds := buffers(8, 8)
			got := must[int](t)(e.ReadBatch(ds))
			if got != 4 || string(ds[3].Data) != "4" || ds[0].Src != out.LocalAddr() || sent != 5 {
				t.Errorf("%d datagrams, last %q, from %v", got, ds[3].Data, ds[0].Src)
			}
			if took := time.Since(began); took != 3*time.Millisecond {
				t.Errorf("they came after %v", took)
			}
			if at := ds[0].Stamp.Time(); !at.Equal(time.Now()) {
				t.Errorf("stamp %v", at)
			}
			if c := e.Counters(); c.KernelDropped != 1 {
				t.Errorf("%+v", c)
			}
			ds[0].Dst = ds[0].Src
			must[int](t)(e.WriteBatch(ds[:1]))
		}
		ds := buffers(8, 8)
		if got := must[int](t)(out.ReadBatch(ds)); got != 2 || ds[0].Src == ds[1].Src {
			t.Errorf("%d answers, from %v and %v", got, ds[0].Src, ds[1].Src)
		}
		// Nobody else heard anything; closing ends a read.
		done := make(chan string, 2)
		for _, e := range []*Endpoint{other, only} {
			go func() {
				got, err := e.ReadBatch(buffers(1, 8))
				done <- fmt.Sprint(got, errors.Is(err, net.ErrClosed))
			}()
		}
		synctest.Wait()
		for _, e := range []*Endpoint{a, b, other, only, out} {
			e.Close()
			e.Close()
		}
		for range 2 {
			if got := <-done; got != "0 true" {
				t.Error(got)
			}
		}
		if _, err := out.Send([][]byte{nil}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
	})
}

// TestNetworkQuiet: what a link holds back to reorder comes when it goes
// quiet.
func TestNetworkQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := must[*Network](t)(NewNetwork(NetworkConfig{Uni: Impair{Reorder: 1}}))
		in := must[*Endpoint](t)(n.Listen(ListenConfig{}))
		out := must[*Endpoint](t)(n.Dial(SendConfig{Addr: in.LocalAddr()}))
		must[int](t)(out.Send([][]byte{[]byte("x")}))
		ds := buffers(1, 8)
		if got := must[int](t)(in.ReadBatch(ds)); got != 1 || string(ds[0].Data) != "x" || ds[0].Src != out.LocalAddr() {
			t.Errorf("%q from %v", ds[0].Data, ds[0].Src)
		}
	})
}
