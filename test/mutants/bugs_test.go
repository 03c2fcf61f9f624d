package main

import (
	"testing"

	"lapse/test/services"
)

func TestEachBugFitsTheCode(t *testing.T) {
	if len(bugs) < 20 {
		t.Errorf("only %d bugs", len(bugs))
	}
	names := map[string]bool{}
	for _, b := range bugs {
		if _, err := b.plant(services.Root()); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		if names[b.name] {
			t.Errorf("two bugs are called %q", b.name)
		}
		names[b.name] = true
	}
}
