package order

import (
	"fmt"
	"os"
	"regexp"
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
