package readme

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// block is one fenced block of a text.
type block struct {
	line     int // of its first line, from 1
	language string
	marks    []string
	text     string
}

func (b block) has(mark string) bool { return slices.Contains(b.marks, mark) }

// marks are what may stand after a language that is looked at.
var marks = map[string][]string{"sh": {"norun", "serve"}, "yaml": {"norun"}}

// blocks reads the fenced blocks of a text. A mark that it does not know is an error: the block would be run, or not, by
// accident.
func blocks(text string) ([]block, error) {
	var all []block
	var open *block
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && isFence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case isFence:
			language, rest, _ := strings.Cut(strings.TrimSpace(fence), " ")
			open = &block{line: i + 2, language: language, marks: strings.Fields(rest)}
			if err := open.check(); err != nil {
				return nil, err
			}
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.line)
	}
	return all, nil
}

func (b block) check() error {
	known, looked := marks[b.language]
	for _, mark := range b.marks {
		if looked && !slices.Contains(known, mark) {
			return fmt.Errorf("line %d: a block of %s cannot be marked %q, only %v", b.line-1, b.language, mark, known)
		}
	}
	return nil
}

// withoutRecursion is a script without the lines that would run the tests again.
func withoutRecursion(script string) string {
	lines := strings.Split(script, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		words := strings.Fields(line)
		return len(words) >= 2 && words[0] == "make" && words[1] == "test"
	}), "\n")
}

var fileComment = regexp.MustCompile(`\A# ([\w.-]+\.ya?ml)\b`)

// file is the name under which a configuration is kept, if it says so.
func (b block) file() string {
	if m := fileComment.FindStringSubmatch(b.text); m != nil {
		return m[1]
	}
	return ""
}

// commands are the lines of a script, without comments and blank lines.
func commands(script string) []string {
	var all []string
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
