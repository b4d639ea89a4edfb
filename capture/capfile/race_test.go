//go:build race

package capfile

const raceEnabled = true
