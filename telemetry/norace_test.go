//go:build !race

package telemetry_test

const raceDetector = false
