//go:build !race

package capfile

const raceEnabled = false
