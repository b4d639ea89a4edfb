package retransmit

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func fairKey(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// One client's deep queue delays another's by one item.
func TestFairTurns(t *testing.T) {
	f := newFair[int](100)
	for i := range 50 {
		f.put(fairKey(1), 1000+i)
	}
	f.put(fairKey(2), 2000)
	f.put(fairKey(3), 3000)
	f.put(fairKey(2), 2001)
	var got []int
	for range 7 {
		v, _ := f.pop()
		got = append(got, v)
	}
	if want := []int{1000, 2000, 3000, 1001, 2001, 1002, 1003}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// A full queue: who has most makes room, the oldest first; who has most
// itself is refused.
func TestFairFull(t *testing.T) {
	f := newFair[int](10)
	for i := range 10 {
		f.put(fairKey(1), i)
	}
	if d, drop := f.put(fairKey(1), 10); !drop || d != 10 {
		t.Fatalf("dropped %v %v", d, drop)
	}
	for i := range 5 {
		if d, drop := f.put(fairKey(2), 100+i); !drop || (i < 5) != (d == i) {
			t.Fatalf("%d: dropped %v %v", i, d, drop)
		}
	}
	if d, drop := f.put(fairKey(2), 105); !drop || d != 105 {
		t.Fatalf("of even shares: dropped %v %v", d, drop)
	}
	if f.len() != 10 {
		t.Fatal(f.len())
	}
}

// Against a plain model: nothing is lost or invented, clients have their turn,
// and what is dropped is of a client that has most.
func TestFairModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(4, 20).Draw(t, "capacity")
		f := newFair[[2]int](capacity)
		queues := map[int][]int{}
		var turn []int
		n := 0
		gone := func(k int) {
			if queues[k] = queues[k][1:]; len(queues[k]) == 0 {
				delete(queues, k)
				turn = slices.DeleteFunc(turn, func(x int) bool { return x == k })
			}
			n--
		}
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "op") > 0 {
				k := rapid.IntRange(0, 5).Draw(t, "client")
				d, drop := f.put(fairKey(k), [2]int{k, i})
				if drop != (n == capacity) {
					t.Fatalf("drop %v with %d of %d", drop, n, capacity)
				}
				if drop {
					most := 0
					for _, q := range queues {
						most = max(most, len(q))
					}
					if d == [2]int{k, i} {
						if most > len(queues[k])+1 {
							t.Fatalf("refused with %d, another has %d", len(queues[k]), most)
						}
						continue
					}
					if q := queues[d[0]]; q[0] != d[1] || len(q) <= len(queues[k])+1 {
						t.Fatalf("dropped %v of %v for %d with %d", d, q, k, len(queues[k]))
					}
					gone(d[0])
				}
				if len(queues[k]) == 0 {
					turn = append(turn, k)
				}
				queues[k] = append(queues[k], i)
				n++
			} else {
				v, ok := f.pop()
				if ok != (n > 0) {
					t.Fatalf("pop %v with %d", ok, n)
				}
				if !ok {
					continue
				}
				k := turn[0]
				if v != [2]int{k, queues[k][0]} {
					t.Fatalf("pop %v, want %d %d", v, k, queues[k][0])
				}
				gone(k)
				if len(queues[k]) > 0 {
					turn = append(turn[1:], k)
				}
			}
			if f.len() != n {
				t.Fatalf("len %d, want %d", f.len(), n)
			}
		}
	})
}

func TestFairDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		return
	}
	f := newFair[staged](64)
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		for range 100 {
			i++
			f.put(fairKey(i%300), staged{})
		}
		for range 64 {
			f.pop()
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
