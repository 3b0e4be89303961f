//go:build race

package kafkaadapter

const raceDetector = true
