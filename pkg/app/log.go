package app

import (
	"bytes"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger makes the logger of a process. Keys are stable: ts, level, msg, logger, stack, and what a line
// adds in snake_case.
func newLogger(c *Config, out io.Writer) (*zap.Logger, zap.AtomicLevel) {
	keys := zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", NameKey: "logger", MessageKey: "msg", StacktraceKey: "stack",
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	encoder := zapcore.NewJSONEncoder(keys)
	if c.Log.Format == "console" {
		keys.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = zapcore.NewConsoleEncoder(keys)
	}
	level := zap.NewAtomicLevelAt(levelOf(c))
	sink := zapcore.Lock(zapcore.AddSync(oneLine{out}))
	return zap.New(zapcore.NewCore(encoder, sink, level)), level
}

// levelOf is the configured level; validation knows the names.
func levelOf(c *Config) zapcore.Level {
	level, err := zapcore.ParseLevel(c.Log.Level)
	if err != nil {
		return zapcore.InfoLevel
	}
	return level
}

// oneLine keeps each record on one line for every reader: zap escapes control characters, but not the
// line breaks of Unicode, which could forge a record.
type oneLine struct{ io.Writer }

var lineBreaks = []struct{ raw, escaped []byte }{
	{[]byte("\u0085"), []byte(`\u0085`)},
	{[]byte("\u2028"), []byte(`\u2028`)},
	{[]byte("\u2029"), []byte(`\u2029`)},
}

func (o oneLine) Write(p []byte) (int, error) {
	line := p
	for _, b := range lineBreaks {
		line = bytes.ReplaceAll(line, b.raw, b.escaped)
	}
	if _, err := o.Writer.Write(line); err != nil {
		return 0, err
	}
	return len(p), nil
}
