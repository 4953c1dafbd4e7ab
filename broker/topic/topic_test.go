package topic

import (
	"errors"
	"strings"
	"testing"
)

func wantCode(t *testing.T, err error, code byte, say string) {
	t.Helper()
	var e *Error
	switch {
	case code == 0 && err == nil:
	case code == 0:
		t.Errorf("refused: %v", err)
	case err == nil:
		t.Errorf("accepted, want 0x%02X", code)
	case !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg, say):
		t.Errorf("got %v, want 0x%02X and %q", err, code, say)
	}
}

func TestValidName(t *testing.T) {
	tests := []struct {
		name, topic string
		l           Limits
		say         string // "" means valid
	}{
		{"one level", "a", Limits{}, ""},
		{"a slash alone has two empty levels", "/", Limits{}, ""},
		{"empty levels", "a//b/", Limits{}, ""},
		{"spaces", " a b ", Limits{}, ""},
		{"not ASCII", "☃/é", Limits{}, ""},
		{"dollar", "$queue/x", Limits{}, ""},
		{"empty", "", Limits{}, "empty"},
		{"plus", "a/+/b", Limits{}, "wildcard"},
		{"plus inside a level", "a+b", Limits{}, "wildcard"},
		{"hash", "a/#", Limits{}, "wildcard"},
		{"NUL", "a\x00", Limits{}, "U+0000"},
		{"not UTF-8", "a\xff", Limits{}, "UTF-8"},
		{"128 levels", strings.Repeat("/", 127), Limits{}, ""},
		{"129 levels", strings.Repeat("/", 128), Limits{}, "128 levels"},
		{"levels as configured", "a/b/c", Limits{MaxLevels: 2}, "2 levels"},
		{"more levels as configured", strings.Repeat("/", 200), Limits{MaxLevels: 201}, ""},
		{"bytes as configured", "abcd", Limits{MaxBytes: 3}, "3 bytes"},
		{"65535 bytes", strings.Repeat("a", 65535), Limits{}, ""},
		{"65536 bytes", strings.Repeat("a", 65536), Limits{}, "65535 bytes"},
		{"a limit over MQTT's own", strings.Repeat("a", 65536), Limits{MaxBytes: 1 << 20}, "65535 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code := CodeNameInvalid
			if tt.say == "" {
				code = 0
			}
			wantCode(t, ValidName([]byte(tt.topic), tt.l), code, tt.say)
		})
	}
}

func TestErrorText(t *testing.T) {
	if err := ValidName(nil, Limits{}); err.Error() != "topic: topic name is empty" {
		t.Error(err)
	}
}

func TestValidFilter(t *testing.T) {
	tests := []struct{ filter, say string }{
		{"#", ""},
		{"+", ""},
		{"/", ""},
		{"/#", ""},
		{"+/+", ""},
		{"/+", ""},
		{"+/#", ""},
		{"a/+/b/#", ""},
		{"$SYS/#", ""},
		{"a//+//b", ""},
		{"é/☃", ""},
		{strings.Repeat("+/", 127) + "#", ""},
		{"", "empty"},
		{"a#", "#"},
		{"#a", "#"},
		{"#/a", "#"},
		{"a/#/b", "#"},
		{"##", "#"},
		{"a/##", "#"},
		{"#/", "#"},
		{"a+", "+"},
		{"+a", "+"},
		{"a/b+/c", "+"},
		{"a/+b/c", "+"},
		{"++", "+"},
		{"+/++", "+"},
		{"+#", "#"},
		{"a\x00", "U+0000"},
		{"\xc3\x28", "UTF-8"},
		{strings.Repeat("a/", 128), "128 levels"},
		{strings.Repeat("a/", 32000), "128 levels"},
		{strings.Repeat("a", 65536), "65535 bytes"},
	}
	for _, tt := range tests {
		code := CodeFilterInvalid
		if tt.say == "" {
			code = 0
		}
		wantCode(t, ValidFilter(tt.filter, Limits{}), code, tt.say)
	}
}

// matches are the examples of 4.7 and the cases that brokers get wrong.
var matches = []struct {
	filter, topic string
	want          bool
}{
	{"sport/tennis/player1/#", "sport/tennis/player1", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/ranking", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true},
	{"sport/#", "sport", true},
	{"sport/#", "sports", false},
	{"sport/#", "sport/", true},
	{"#", "a", true},
	{"#", "/", true},
	{"#", "a/b/c", true},
	{"sport/tennis/+", "sport/tennis/player1", true},
	{"sport/tennis/+", "sport/tennis/player1/ranking", false},
	{"sport/+", "sport", false},
	{"sport/+", "sport/", true},
	{"+/+", "/finance", true},
	{"/+", "/finance", true},
	{"+", "/finance", false},
	{"+/#", "a", true},
	{"+/#", "a/b/c", true},
	{"+/+/#", "a", false},
	{"+/+/#", "a/b", true},
	{"a/+/#", "a", false},
	{"a/+/#", "a/b", true},
	{"+/tennis/#", "sport/tennis", true},
	{"a", "A", false},
	{"a", "a", true},
	{"a", "a/b", false},
	{"a/b", "a", false},
	{"/a", "a", false},
	{"a/", "a", false},
	{"a//b", "a/b", false},
	{"a/+/b", "a//b", true},
	{"#", "$SYS", false},
	{"#", "$SYS/broker", false},
	{"#", "$", false},
	{"+", "$SYS", false},
	{"+/monitor/Clients", "$SYS/monitor/Clients", false},
	{"+/#", "$queue/x", false},
	{"$SYS/#", "$SYS/", true},
	{"$SYS/#", "$SYS", true},
	{"$SYS/monitor/+", "$SYS/monitor/Clients", true},
	{"$SYS/+/#", "$SYS/a/$b", true},
	{"a/+", "a/$b", true},
	{"a/#", "a/$b/c", true},
	{"/#", "/$x", true},
	{"/+", "/$x", true},
	{"+/$x", "/$x", true},
	{"allowed", "allowed/secret", false},
}

func TestMatch(t *testing.T) {
	for _, tt := range matches {
		if got := Match(tt.filter, tt.topic); got != tt.want {
			t.Errorf("Match(%q, %q) = %v", tt.filter, tt.topic, got)
		}
		if got := slowMatch(tt.filter, tt.topic); got != tt.want {
			t.Errorf("slowMatch(%q, %q) = %v: the reference is wrong", tt.filter, tt.topic, got)
		}
		var x Index[int, int]
		x.Add(tt.filter, 1, 1)
		n := 0
		x.Match(tt.topic, func(int, int) { n++ })
		if (n == 1) != tt.want {
			t.Errorf("Index: %q finds %q %d times", tt.topic, tt.filter, n)
		}
		var names Names[int]
		names.Set(tt.topic, 1)
		n = 0
		names.Match(tt.filter, func(string, int) bool { n++; return true })
		if (n == 1) != tt.want {
			t.Errorf("Names: %q finds %q %d times", tt.filter, tt.topic, n)
		}
	}
}

// slowMatch is 4.7 word for word.
func slowMatch(filter, topic string) bool {
	f, t := strings.Split(filter, "/"), strings.Split(topic, "/")
	if strings.HasPrefix(topic, "$") && (f[0] == "+" || f[0] == "#") {
		return false
	}
	if f[len(f)-1] == "#" {
		f = f[:len(f)-1]
		if len(t) < len(f) {
			return false
		}
		t = t[:len(f)] // the parent and any number of child levels
	}
	if len(f) != len(t) {
		return false
	}
	for i := range f {
		if f[i] != "+" && f[i] != t[i] {
			return false
		}
	}
	return true
}

func FuzzMatch(f *testing.F) {
	for _, tt := range matches {
		f.Add(tt.filter, tt.topic)
	}
	f.Fuzz(func(t *testing.T, filter, topic string) {
		got := Match(filter, topic)
		if ValidFilter(filter, Limits{}) != nil || ValidName([]byte(topic), Limits{}) != nil {
			return // no panic is all that is asked
		}
		if want := slowMatch(filter, topic); got != want {
			t.Fatalf("Match(%q, %q) = %v", filter, topic, got)
		}
	})
}

// FuzzValid holds the checks against 4.7 told level by level.
func FuzzValid(f *testing.F) {
	for _, tt := range matches {
		f.Add(tt.filter)
	}
	f.Fuzz(func(t *testing.T, s string) {
		levels := strings.Split(s, "/")
		text := s != "" && len(s) <= 65535 && len(levels) <= 128 && strings.ToValidUTF8(s, "") == s && !strings.Contains(s, "\x00")
		filter := text
		for i, level := range levels {
			if strings.Contains(level, "+") && level != "+" || strings.Contains(level, "#") && (level != "#" || i < len(levels)-1) {
				filter = false
			}
		}
		if got := ValidFilter(s, Limits{}); (got == nil) != filter {
			t.Fatalf("ValidFilter(%q): %v", s, got)
		}
		if got := ValidName([]byte(s), Limits{}); (got == nil) != (text && !strings.ContainsAny(s, "+#")) {
			t.Fatalf("ValidName(%q): %v", s, got)
		}
	})
}
