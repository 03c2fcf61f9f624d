// Package sim lets simulated worlds live.
package sim
