package app

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"lapse/pkg/server"
)

const (
	millisecond = time.Millisecond
	second      = time.Second
	minute      = time.Minute
	hour        = time.Hour
	day         = 24 * hour
)

// value is a setting's field: it parses what a file, the environment or a flag says, and prints it back.
type value interface {
	// set takes what YAML made of the file, or a string from elsewhere. The error says what would be right.
	set(raw any) error
	// String is the value as it would be written in the file.
	String() string
	// form says in a few words what is accepted, for the reference.
	form() string
	// take copies the field of other, the same setting of another Config.
	take(other value)
}

// field is the value of a field of type T.
type field[T any] struct {
	at     *T
	accept string
	parse  func(raw any) (T, error)
	print  func(T) string
}

func (f field[T]) set(raw any) error {
	v, err := f.parse(raw)
	if err == nil {
		*f.at = v
	}
	return err
}

func (f field[T]) String() string   { return f.print(*f.at) }
func (f field[T]) form() string     { return f.accept }
func (f field[T]) take(other value) { *f.at = *other.(field[T]).at }

func text(at *string) value {
	return field[string]{at: at, accept: "text", parse: parseText, print: quote}
}

func parseText(raw any) (string, error) {
	switch v := raw.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case int, int64, float64, bool:
		return fmt.Sprint(v), nil
	}
	return "", errors.New("write a text")
}

// quote writes s as a YAML scalar.
func quote(s string) string {
	raw, err := yaml.Marshal(s)
	if err != nil {
		return strconv.Quote(s)
	}
	return strings.TrimSuffix(string(raw), "\n")
}

// word is a text of letters, digits, "_" and "-", as RocketMQ wants names to be.
func word(at *string) value {
	parse := func(raw any) (string, error) {
		s, err := parseText(raw)
		bad := func(r rune) bool {
			return !strings.ContainsRune("_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", r)
		}
		if err != nil || s == "" || len(s) > 120 || strings.ContainsFunc(s, bad) {
			return "", errors.New("write 1 to 120 letters, digits, _ or -")
		}
		return s, nil
	}
	return field[string]{at: at, accept: "name", parse: parse, print: quote}
}

func choice(at *string, options ...string) value {
	parse := func(raw any) (string, error) {
		s, err := parseText(raw)
		if err != nil || !slices.Contains(options, s) {
			return "", fmt.Errorf("%q is not one of %s", fmt.Sprint(raw), strings.Join(options, ", "))
		}
		return s, nil
	}
	return field[string]{at: at, accept: strings.Join(options, " or "), parse: parse, print: quote}
}

func boolean(at *bool) value {
	parse := func(raw any) (bool, error) {
		switch v := fmt.Sprint(raw); v {
		case "true", "false":
			return v == "true", nil
		default:
			return false, fmt.Errorf("%q is neither true nor false", v)
		}
	}
	return field[bool]{at: at, accept: "true or false", parse: parse, print: strconv.FormatBool}
}

func integer(at *int, low, high int) value {
	parse := func(raw any) (int, error) {
		n, err := strconv.Atoi(fmt.Sprint(raw))
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("%q is not a whole number from %d to %d", fmt.Sprint(raw), low, high)
		}
		return n, nil
	}
	return field[int]{at: at, accept: fmt.Sprintf("number, %d to %d", low, high), parse: parse, print: strconv.Itoa}
}

func duration(at *time.Duration, low, high time.Duration) value {
	span := fmt.Sprintf("%s to %s", short(low), short(high))
	parse := func(raw any) (time.Duration, error) {
		d, err := time.ParseDuration(fmt.Sprint(raw))
		if err != nil {
			return 0, fmt.Errorf(`%q is not a duration with its unit, like "1s" or "20ms"`, fmt.Sprint(raw))
		}
		if d < low || d > high {
			return 0, fmt.Errorf("%s is not within %s", short(d), span)
		}
		return d, nil
	}
	return field[time.Duration]{at: at, accept: "duration, " + span, parse: parse, print: short}
}

// short writes a duration without units that are zero: 1m, not 1m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// list is a YAML list of texts; in the environment and in files one text, separated by commas or lines.
func list(at *[]string) value {
	parse := func(raw any) ([]string, error) {
		var parts []string
		switch v := raw.(type) {
		case nil:
		case string:
			parts = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' })
		case []any:
			for _, item := range v {
				s, err := parseText(item)
				if err != nil {
					return nil, errors.New("write a list of texts")
				}
				parts = append(parts, s)
			}
		default:
			return nil, errors.New("write a list of texts")
		}
		return trimmed(parts), nil
	}
	return field[[]string]{at: at, accept: "list of texts", parse: parse, print: flow}
}

// trimmed drops blanks around and between the items.
func trimmed(parts []string) []string {
	var items []string
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			items = append(items, p)
		}
	}
	return items
}

// flow writes items as a YAML list on one line.
func flow(items []string) string {
	quoted := make([]string, len(items))
	for i, s := range items {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// scopes are what a token may be allowed to do.
var scopes = []string{"order", "payment", "operator"}

func tokens(at *[]Token) value {
	return field[[]Token]{at: at, accept: "list of tokens", parse: parseTokens, print: printTokens}
}

func parseTokens(raw any) ([]Token, error) {
	if s, ok := raw.(string); ok { // environment or file: YAML, of which JSON is a part
		raw = nil
		if err := yaml.Unmarshal([]byte(s), &raw); err != nil {
			return nil, errors.New("write a list like [{name: shop, token: …, scopes: [order]}]")
		}
	}
	if raw == nil {
		return nil, nil
	}
	items, ok := raw.([]any)
	if !ok {
		return nil, errors.New("write a list like [{name: shop, token: …, scopes: [order]}]")
	}
	var all []Token
	for i, item := range items {
		t, err := parseToken(item)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		if slices.ContainsFunc(all, func(o Token) bool { return o.Token == t.Token }) {
			return nil, fmt.Errorf("[%d]: another token has the same secret", i)
		}
		all = append(all, t)
	}
	return all, nil
}

func parseToken(item any) (Token, error) {
	m, ok := item.(map[string]any)
	if !ok {
		return Token{}, errors.New("write name, token or token_file, and scopes")
	}
	var t Token
	var file string
	for name, raw := range m {
		var err error
		switch name {
		case "name":
			t.Name, err = parseText(raw)
		case "token":
			t.Token, err = parseText(raw)
		case "token_file":
			file, err = parseText(raw)
		case "scopes":
			err = list(&t.Scopes).set(raw)
		default:
			err = errors.New("unknown; a token has name, token or token_file, and scopes")
		}
		if err != nil {
			return Token{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if file != "" {
		if t.Token != "" {
			return Token{}, errors.New("give token or token_file, not both")
		}
		var err error
		if t.Token, err = readSecret(file); err != nil {
			return Token{}, err
		}
	}
	return t, t.check()
}

func (t Token) check() error {
	if t.Name == "" || t.Token == "" || len(t.Scopes) == 0 {
		return errors.New("name, token or token_file, and scopes are all needed")
	}
	if err := server.CheckName(t.Name); err != nil {
		return err
	}
	for _, s := range t.Scopes {
		if !slices.Contains(scopes, s) {
			return fmt.Errorf("scopes: %q is not one of %s", s, strings.Join(scopes, ", "))
		}
	}
	return nil
}

func printTokens(all []Token) string {
	items := make([]string, len(all))
	for i, t := range all {
		items[i] = fmt.Sprintf("{name: %s, token: %s, scopes: %s}", quote(t.Name), quote(t.Token), flow(t.Scopes))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// readSecret reads a secret from a file, without the line end that editors leave.
func readSecret(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	s := strings.TrimRight(string(raw), "\r\n")
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}
