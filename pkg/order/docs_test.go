package order

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestTheDocumentedTransitionsAreTheCodes reads docs/states.md.
func TestTheDocumentedTransitionsAreTheCodes(t *testing.T) {
	raw, err := os.ReadFile("../../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	held := map[Effect]string{Keep: "unchanged", Reserve: "held again", Sell: "sold", Resell: "sold again", Release: "given back"}
	var want []string
	for _, tr := range Transitions {
		want = append(want, fmt.Sprintf("| %v | %s | %v | %s |", tr.From, tr.Event, tr.To, held[tr.Effect]))
	}
	got := regexp.MustCompile(`(?m)^\| (pending|confirming|paid|cancelled) \|.*$`).FindAllString(string(raw), -1)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("docs/states.md says\n%v\nthe code says\n%v", got, want)
	}
}

// TestTheDocumentedKindsOfDamageAreTheCodes reads docs/reconcile.md.
func TestTheDocumentedKindsOfDamageAreTheCodes(t *testing.T) {
	raw, err := os.ReadFile("../../docs/reconcile.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		got = append(got, row[1])
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(FindingKinds)); !slices.Equal(got, want) {
		t.Errorf("docs/reconcile.md says\n%v\nthe code says\n%v", got, want)
	}
}
