package auth

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/edgemq/edgemq/broker/topic"
)

// Rules are the rules of a file, in order. Nil are no rules: everything is allowed.
type Rules struct{ rules []rule }

// rule is one line.
type rule struct {
	who                who
	name               string // of the user or client
	allow              bool
	publish, subscribe bool
	filter             string
	vars               bool // filter has %u or %c
}

type who byte

const (
	anyone who = iota
	user
	client
)

const (
	varUser   = "%u"
	varClient = "%c"

	form = "a rule is user NAME, client ID or anyone; then allow or deny; then publish, subscribe or both; then a topic filter, as in: user ann allow publish sensors/#"
)

// ParseRules reads a rules file. Errors are *FileError.
func ParseRules(path string, b []byte) (*Rules, error) {
	r := &Rules{}
	err := eachLine(path, b, func(_ int, line string) error {
		one, err := parseRule(line)
		r.rules = append(r.rules, one)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func parseRule(line string) (r rule, err error) {
	word, rest, err := cutWord(line)
	switch word {
	case "anyone":
	case "user", "client":
		if r.who = user; word == "client" {
			r.who = client
		}
		if err == nil {
			r.name, rest, err = cutWord(rest)
		}
		if err == nil && r.name == "" {
			err = fmt.Errorf("%s has no name; %s", word, form)
		}
	default:
		return r, fmt.Errorf("%q is not user, client or anyone; %s", word, form)
	}
	if err != nil {
		return r, err
	}
	word, rest, err = cutWord(rest)
	switch {
	case err != nil:
		return r, err
	case word == "allow":
		r.allow = true
	case word != "deny":
		return r, fmt.Errorf("%q is not allow or deny; %s", word, form)
	}
	word, rest, err = cutWord(rest)
	switch {
	case err != nil:
		return r, err
	case word != "publish" && word != "subscribe" && word != "both":
		return r, fmt.Errorf("%q is not publish, subscribe or both; %s", word, form)
	}
	r.publish, r.subscribe = word != "subscribe", word != "publish"
	if r.filter = rest; strings.HasPrefix(rest, `"`) {
		if r.filter, rest, err = cutWord(rest); err == nil && rest != "" {
			err = fmt.Errorf("there is more after the filter: %q", rest)
		}
		if err != nil {
			return r, err
		}
	}
	return r, r.check()
}

// cutWord takes the first word of a line, or what is in quotes, as in Go.
func cutWord(line string) (word, rest string, err error) {
	if strings.HasPrefix(line, `"`) {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return "", "", errors.New("a quotation mark has no end")
		}
		word, err = strconv.Unquote(quoted)
		if rest = line[len(quoted):]; err != nil || rest != "" && rest[0] != ' ' && rest[0] != '\t' {
			return "", "", fmt.Errorf("%s is not text in quotes, with space behind it", quoted)
		}
		return word, strings.TrimLeft(rest, " \t"), nil
	}
	at := strings.IndexAny(line, " \t")
	if at < 0 {
		return line, "", nil
	}
	return line[:at], strings.TrimLeft(line[at:], " \t"), nil
}

// check refuses a filter that is none, or that is not what the rule would be about.
func (r *rule) check() error {
	f := r.filter
	if f == "" {
		return errors.New("there is no topic filter; " + form)
	}
	if err := topic.ValidFilter(f, topic.Limits{}); err != nil {
		return fmt.Errorf("%q is no topic filter: %s", f, strings.TrimPrefix(err.Error(), "topic: "))
	}
	first, rest, _ := strings.Cut(f, "/")
	if topic.Own(f) {
		switch first {
		case "$SYS":
		case "$queue":
			if strings.Contains(rest, "/") && rest != "+/#" || rest == "" {
				return fmt.Errorf("%q is no queue: it is $queue/<name>, for all of them $queue/+. Who binds a filter to one must be allowed to subscribe to both", f)
			}
			if !strings.ContainsAny(rest, "+#%") && !topic.ValidQueue(rest) {
				return fmt.Errorf("%q is not a queue's name: 1 to 128 of A-Z a-z 0-9 _ . -", rest)
			}
		default:
			return fmt.Errorf("%q: rules are about what is reached in the end: leave out what comes before the topic or filter itself (%s/…/)", f, first)
		}
	}
	for level := range strings.SplitSeq(f, "/") {
		switch {
		case level == varUser, level == varClient:
			r.vars = true
		case strings.Contains(level, varUser), strings.Contains(level, varClient):
			return fmt.Errorf("%q: %s and %s stand for a whole level", f, varUser, varClient)
		}
	}
	return nil
}

// Len returns how many rules there are.
func (r *Rules) Len() int {
	if r == nil {
		return 0
	}
	return len(r.rules)
}

// Access is what one client may do. Nil is everything.
type Access struct {
	rules        []*rule // that are about it
	user, client string
}

// For returns what a client may do; user is "" if it came without one.
func (r *Rules) For(userName, clientID string) *Access {
	if r == nil {
		return nil
	}
	a := &Access{user: userName, client: clientID}
	for i := range r.rules {
		if one := &r.rules[i]; one.who == anyone || one.who == client && one.name == clientID || one.who == user && one.name == userName && userName != "" {
			a.rules = append(a.rules, one)
		}
	}
	return a
}

// Publish tells whether the client may publish to a topic: the first rule that matches it decides.
func (a *Access) Publish(name string) bool {
	if a == nil {
		return true
	}
	for _, r := range a.rules {
		if !r.publish {
			continue
		}
		if f, ok := a.filter(r); ok && topic.Match(f, name) {
			return r.allow
		}
	}
	return false
}

// Subscribe tells whether the client may subscribe to a filter: to everything that it can ever match. So one rule must allow
// all of it, and none before that may deny any of it.
func (a *Access) Subscribe(filter string) bool {
	if a == nil {
		return true
	}
	for _, r := range a.rules {
		if !r.subscribe {
			continue
		}
		switch f, ok := a.filter(r); {
		case !ok:
		case r.allow && topic.Covers(f, filter):
			return true
		case !r.allow && topic.Overlap(f, filter):
			return false
		}
	}
	return false
}

// filter returns the filter of a rule with the client's names in it. A name that is not one level cannot be put there: then the
// rule, if it allows, does not hold, and if it denies, does so whatever the level is.
func (a *Access) filter(r *rule) (_ string, ok bool) {
	if !r.vars {
		return r.filter, true
	}
	var b strings.Builder
	for i, level := range strings.Split(r.filter, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		name := level
		switch level {
		case varUser:
			name = a.user
		case varClient:
			name = a.client
		default:
			b.WriteString(level)
			continue
		}
		if name == "" || strings.ContainsAny(name, "/+#") {
			if r.allow {
				return "", false
			}
			name = "+"
		}
		if i == 0 && name[0] == '$' && r.allow { // or a client that calls itself $queue had all queues
			return "", false
		}
		b.WriteString(name)
	}
	return b.String(), true
}
