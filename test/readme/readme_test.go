package readme

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lapse/test/services"
)

func TestWhatTheDocumentsSayWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the whole project")
	}
	for _, name := range []string{"README.md", "docs/api.md"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(services.Root(), name))
			if err != nil {
				t.Fatal(err)
			}
			r := newRunner(t, services.Root())
			r.withServices(t)
			if err := r.run(t.Context(), string(text)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// sampleRunner runs in a directory that is a project of its own.
func sampleRunner(t *testing.T) *runner {
	t.Helper()
	r := &runner{t: t, dir: t.TempDir(), secrets: t.TempDir(), stands: map[string]string{}, env: os.Environ()}
	t.Cleanup(func() {
		for _, s := range r.served {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func TestARunnerRunsTheSample(t *testing.T) {
	text, err := os.ReadFile("testdata/sample.md")
	if err != nil {
		t.Fatal(err)
	}
	r := sampleRunner(t)
	if err := r.run(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(filepath.Join(r.dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "one\ntwo\nconfigured 7\n"; string(said) != want {
		t.Errorf("the sample said %q, not %q", said, want)
	}
}

func TestARunnerSaysWhatIsWrongAndWhere(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such token", http.StatusForbidden)
	}))
	defer refusing.Close()
	for name, c := range map[string]struct {
		text string // with ~ for the fence
		want []string
	}{
		"a command fails":                  {"~sh\necho so far so good >&2; false\ntouch after\n~\n", []string{"line 2", "so far so good", "exit status 1"}},
		"a command in the middle fails":    {"~sh\nfalse | true\n~\n", []string{"line 2"}},
		"a call is answered an error":      {"~sh\ncurl " + refusing.URL + "\n~\n", []string{"line 2", "403", "no such token"}},
		"a server ends with an error":      {"text\n\n~sh serve\nsh -c 'echo no port; exit 3'\n~\n", []string{"line 4", "exit status 3", "no port"}},
		"a setting does not exist":         {"~yaml\nsweep:\n  intervall: 5s\n~\n", []string{"line 2", "sweep.intervall", "sweep.interval"}},
		"a mark is misspelt":               {"~sh norum\n~\n", []string{"line 1", "norum"}},
		"a block has no end":               {"~sh\ntrue\n", []string{"line 2", "no end"}},
		"a later block fails, not another": {"~sh norun\nfalse\n~\n~json\n{\n~\n~sh\nfalse\n~\n", []string{"line 8"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := sampleRunner(t)
			err := r.run(t.Context(), strings.ReplaceAll(c.text, "~", "```"))
			for _, want := range c.want {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			if _, err := os.Stat(filepath.Join(r.dir, "after")); err == nil {
				t.Error("the script went on after a command had failed")
			}
		})
	}
}
