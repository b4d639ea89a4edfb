//go:build !race

package retransmit

const raceEnabled = false
