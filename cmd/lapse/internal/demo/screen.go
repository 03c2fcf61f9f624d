package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	drawEvery = 100 * time.Millisecond // how often the bar is drawn
	tellEvery = 3 * time.Second        // how often progress is told where no bar can be drawn
)

// screen is where the demo talks to a person: a terminal gets a bar and, unless NO_COLOR is set, colours.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	color    bool
	bar      *progressbar.ProgressBar // nil while there is none
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok {
		s.terminal = term.IsTerminal(int(f.Fd()))
	}
	s.color = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// say prints one line, above the bar if there is one.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // drawn again with the next step
	}
	fmt.Fprintf(s.out, format+"\n", args...)
}

// paint wraps text in a colour of the terminal.
func (s *screen) paint(code int, text string) string {
	if !s.color {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
}

const (
	bold  = 1
	red   = 31
	green = 32
)

// progress shows how far a wait has come until ctx ends. State says how many of all orders are done, and adds
// a few words.
func (s *screen) progress(ctx context.Context, all int, state func() (done int, words string)) {
	every := tellEvery
	if s.terminal {
		every = drawEvery
		s.setBar(progressbar.NewOptions(all,
			progressbar.OptionSetWriter(s.out), progressbar.OptionSetWidth(30), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionEnableColorCodes(false)))
		defer s.setBar(nil)
	}
	start := time.Now()
	for sleep(ctx, every) {
		done, words := state()
		s.step(done, all, fmt.Sprintf("%2.0f s: %s", time.Since(start).Seconds(), words))
	}
}

// setBar draws a new bar from now on; nil wipes the one that is there.
func (s *screen) setBar(bar *progressbar.ProgressBar) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	s.bar = bar
}

func (s *screen) step(done, all int, words string) {
	if !s.terminal {
		s.say("  %s; %d of %d orders have met their fate", words, done, all)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bar.Describe("  " + words)
	_ = s.bar.Set(done) // fails only past the end
}
