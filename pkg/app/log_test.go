package app

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestALogLineIsOneJSONObjectWithStableKeys(t *testing.T) {
	var out bytes.Buffer
	log, _ := newLogger(&Config{Log: Log{Level: "info", Format: "json"}}, &out)
	log.Named("relay").Warn("sent", zap.String("order_no", "A-1"))
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"level": "warn", "logger": "relay", "msg": "sent", "order_no": "A-1"} {
		if line[key] != want {
			t.Errorf("%s: got %v, want %v", key, line[key], want)
		}
	}
	if line["ts"] == nil {
		t.Error("no time")
	}
}

func TestNoInputForgesALogLine(t *testing.T) {
	for _, format := range []string{"json", "console"} {
		var out bytes.Buffer
		log, _ := newLogger(&Config{Log: Log{Level: "info", Format: format}}, &out)
		log.Info("refused", zap.String("order_no", "a\r\nb\x1b[31mc\u0085d\u2028e\u2029f\"g"))
		if s := out.String(); strings.Count(s, "\n") != 1 || strings.ContainsAny(s, "\r\x1b\u0085\u2028\u2029") {
			t.Errorf("%s: got %q", format, s)
		}
	}
}

func TestTheLevelDecidesWhatIsLogged(t *testing.T) {
	var out bytes.Buffer
	log, level := newLogger(&Config{Log: Log{Level: "warn", Format: "json"}}, &out)
	log.Info("quiet")
	level.SetLevel(zap.InfoLevel)
	log.Info("loud")
	if s := out.String(); strings.Contains(s, "quiet") || !strings.Contains(s, "loud") {
		t.Errorf("got %q", s)
	}
}
