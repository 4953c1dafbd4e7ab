package auth

import (
	"errors"
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/topic"
)

const someRules = `
# comments, and empty lines

anyone        deny  both       secret/#
user ann      allow publish    sensors/#
user ann      deny  subscribe  sensors/raw/#
user ann      allow subscribe  sensors/#
client meter-7 allow both      meters/%c/#
anyone        allow both       home/%u/#
anyone        deny  subscribe  inbox/%c/private
anyone        allow subscribe  inbox/%c/+
user ann      allow both       $queue/jobs
user ann      allow subscribe  with space/+
user "two words" allow publish "quoted #1/x"
anyone        allow subscribe  allowed
user root     allow both       #
user root     allow both       $queue/+
anyone        allow both       %c/#
`

func TestRules(t *testing.T) {
	rules, err := ParseRules("rules", []byte(strings.ReplaceAll(someRules, `"quoted #1/x"`, `"quoted 1/x"`)))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		user, client string
		publish      bool
		what         string
		want         bool
	}{
		{"ann", "c", true, "sensors/a", true},
		{"ann", "c", true, "sensors", true},
		{"ann", "c", true, "secret/a", false},
		{"bob", "c", true, "sensors/a", false},
		{"", "c", true, "sensors/a", false},
		{"root", "c", true, "secret/a", false},
		{"root", "c", true, "a", true},
		{"root", "c", true, "$aws/x", false},
		{"root", "c", true, "$queue/any", true},
		{"ann", "c", true, "$queue/jobs", true},
		{"ann", "c", true, "$queue/other", false},
		{"ann", "c", false, "$queue/jobs", true},
		{"ann", "c", false, "sensors/a", true},
		{"ann", "c", false, "sensors/raw/a", false},
		{"ann", "c", false, "sensors/raw", false},
		{"ann", "c", false, "sensors/#", false}, // raw would come with it
		{"ann", "c", false, "sensors/+", false},
		{"ann", "c", false, "sensors/+/x", false},
		{"ann", "c", false, "sensors/a/#", true},
		{"ann", "c", false, "#", false},
		{"ann", "c", false, "+/a", false},
		{"root", "c", false, "#", false},
		{"root", "c", false, "a/#", true},
		{"root", "c", false, "+/a", false}, // secret/a
		{"root", "c", false, "$SYS/#", false},
		{"", "meter-7", true, "meters/meter-7/x", true},
		{"", "meter-8", true, "meters/meter-8/x", false},
		{"", "meter-7", true, "meters/meter-8/x", false},
		{"ann", "c", true, "home/ann/x", true},
		{"ann", "c", true, "home/bob/x", false},
		{"", "c", true, "home//x", false},
		{"", "c", true, "home/+/x", false},
		{"x/y", "c", true, "home/x/y/x", false},
		{"+", "c", false, "home/+/x", false},
		{"#", "c", false, "home/#", false},
		{"", "c1", false, "inbox/c1/a", true},
		{"", "c1", false, "inbox/c1/+", false},
		{"", "c1", false, "inbox/c1/private", false},
		{"", "a/b", false, "inbox/a/b", false},
		{"", "c", false, "allowed", true},
		{"", "c", false, "allowed/secret", false},
		{"ann", "c", false, "with space/x", true},
		{"two words", "c", true, "quoted 1/x", true},
		{"", "c1", true, "c1/x", true},
		{"", "$queue", true, "$queue/any", false},
		{"", "$SYS", false, "$SYS/#", false},
	}
	for _, tt := range tests {
		a := rules.For(tt.user, tt.client)
		got := a.Subscribe(tt.what)
		if tt.publish {
			got = a.Publish(tt.what)
		}
		if got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	var none *Rules
	if a := none.For("", "c"); !a.Publish("x") || !a.Subscribe("#") {
		t.Error("without rules everything is allowed")
	}
	empty, err := ParseRules("rules", []byte("# nothing yet\n"))
	if a := empty.For("", "c"); err != nil || a.Publish("x") || a.Subscribe("x") {
		t.Errorf("an empty file allows nothing: %v", err)
	}
}

func TestRulesInvalid(t *testing.T) {
	tests := []struct{ line, say string }{
		{"ann allow publish a", "not user, client or anyone"},
		{"anyone", "not allow or deny"},
		{"anyone permit publish a", "not allow or deny"},
		{"anyone allow a", "not publish, subscribe or both"},
		{"anyone allow read a", "not publish, subscribe or both"},
		{"anyone allow both", "no topic filter"},
		{"user", "has no name"},
		{`user "" allow both a`, "has no name"},
		{"client", "has no name"},
		{`user "ann allow both a`, "quotation mark"},
		{`user "ann"allow both a`, "space behind it"},
		{`anyone allow both "a" b`, "more after the filter"},
		{"anyone allow both a/#/b", "no topic filter"},
		{"anyone allow both a+", "no topic filter"},
		{"anyone allow both \xff", "UTF-8"},
		{"anyone allow both $share/g/a", "leave out"},
		{"anyone allow both $v5/a", "leave out"},
		{"anyone allow both $s/earliest/a", "leave out"},
		{"anyone allow both $delayed/+/a", "leave out"},
		{"anyone allow both $exclusive/a", "leave out"},
		{"anyone allow both $queue", "is no queue"},
		{"anyone allow both $queue/q/a/#", "is no queue"},
		{"anyone allow both $queue/q a", "not a queue's name"},
		{"anyone allow both home/x%u/a", "a whole level"},
		{"anyone allow both home/%%c", "a whole level"},
	}
	for _, tt := range tests {
		_, err := ParseRules("rules", []byte("# first\n"+tt.line+"\nanyone allow both fine\n"))
		var fe *FileError
		if !errors.As(err, &fe) || len(fe.Problems) != 1 || fe.Problems[0].Line != 2 || !strings.Contains(err.Error(), tt.say) || !strings.HasPrefix(err.Error(), "rules:2: ") {
			t.Errorf("%q: %v, want %q", tt.line, err, tt.say)
		}
	}
}

// Whoever may subscribe to a filter may receive, by the first rule that matches, every topic that it matches.
func FuzzRules(f *testing.F) {
	f.Add([]byte(someRules), "ann", "meter-7", "sensors/+/x", "sensors/raw/x")
	f.Add([]byte("anyone deny both %c/#\nanyone allow both #"), "a/b", "$x", "+/#", "$x/y")
	f.Fuzz(func(t *testing.T, b []byte, userName, clientID, filter, name string) {
		rules, err := ParseRules("rules", b)
		if err != nil || topic.ValidFilter(filter, topic.Limits{}) != nil || topic.ValidName([]byte(name), topic.Limits{}) != nil {
			return
		}
		a := rules.For(userName, clientID)
		if !topic.Match(filter, name) || !a.Subscribe(filter) {
			return
		}
		if !a.Subscribe(name) {
			t.Errorf("%q may subscribe to %q and not to %q", userName, filter, name)
		}
	})
}
