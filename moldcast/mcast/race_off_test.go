//go:build !race

package mcast

const raceEnabled = false
