package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
)

// change is what a request changes in a queue's settings.
type change struct {
	set, reset feed.Setting
	policy     feed.Policy
}

// queueSetting is one setting, as requests name it.
type queueSetting struct {
	name  string
	bit   feed.Setting
	wants string
	read  func(b json.RawMessage, p *feed.Policy) bool
}

// The bounds are feed's, and the same as in the broker's settings.
var queueSettings = []queueSetting{
	{"max_in_flight", feed.SetMaxInFlight, fmt.Sprintf("a whole number from 0 (its window) to %d", feed.MostInFlight), func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, 1, feed.MostInFlight, &p.MaxInFlight)
	}},
	{"max_deliveries", feed.SetMaxDeliveries, fmt.Sprintf("a whole number from 0 (no limit) to %d", feed.MostDeliveries), func(b json.RawMessage, p *feed.Policy) bool {
		if !whole(b, 1, feed.MostDeliveries, &p.MaxDeliveries) {
			return false
		}
		if p.MaxDeliveries == 0 {
			p.MaxDeliveries = -1
		}
		return true
	}},
	{"retry_delay", feed.SetRetryDelay, fmt.Sprintf(`a list of 1 to %d durations, as in ["1s", "1m"], each from %s`, feed.MostRetryDelays, fromTo(feed.LeastRetryDelay, feed.MostRetryDelay)), func(b json.RawMessage, p *feed.Policy) bool {
		var list []json.RawMessage
		if json.Unmarshal(b, &list) != nil {
			list = []json.RawMessage{b}
		}
		for _, item := range list {
			var d time.Duration
			if !duration(item, feed.LeastRetryDelay, feed.MostRetryDelay, &d) || d == 0 {
				return false
			}
			p.RetryDelay = append(p.RetryDelay, d)
		}
		return len(list) > 0 && len(list) <= feed.MostRetryDelays
	}},
	{"dead_letter", feed.SetDeadLetter, "a queue's name, or empty for <name>-dead", func(b json.RawMessage, p *feed.Policy) bool {
		return json.Unmarshal(b, &p.DeadLetter) == nil && (p.DeadLetter == "" || topic.ValidQueue(p.DeadLetter))
	}},
	{"ordered", feed.SetOrdered, "true or false", func(b json.RawMessage, p *feed.Policy) bool { return json.Unmarshal(b, &p.Ordered) == nil }},
	{"exclusive", feed.SetExclusive, "true or false", func(b json.RawMessage, p *feed.Policy) bool { return json.Unmarshal(b, &p.Exclusive) == nil }},
	{"ack_timeout", feed.SetAckTimeout, "0 (none), or a duration from " + fromTo(feed.LeastAckTimeout, feed.MostAckTimeout), func(b json.RawMessage, p *feed.Policy) bool {
		return duration(b, feed.LeastAckTimeout, feed.MostAckTimeout, &p.AckTimeout)
	}},
	{"max_messages", feed.SetMaxMessages, fmt.Sprintf("a whole number from 0 (no limit) to %d", int64(feed.MostMessages)), func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, 1, feed.MostMessages, &p.Limits.MaxMessages)
	}},
	{"max_bytes", feed.SetMaxBytes, fmt.Sprintf("0 (no limit), or a number of bytes from %d to %d", feed.LeastBytes, int64(feed.MostBytes)), func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, feed.LeastBytes, feed.MostBytes, &p.Limits.MaxBytes)
	}},
	{"max_age", feed.SetMaxAge, "0 (no limit), or a duration from " + fromTo(feed.LeastAge, feed.MostAge), func(b json.RawMessage, p *feed.Policy) bool {
		return duration(b, feed.LeastAge, feed.MostAge, &p.Limits.MaxAge)
	}},
	{"overflow", feed.SetReject, "drop_oldest or reject", func(b json.RawMessage, p *feed.Policy) bool {
		var word string
		err := json.Unmarshal(b, &word)
		p.Limits.Reject = word == "reject"
		return err == nil && (p.Limits.Reject || word == "drop_oldest")
	}},
}

// fromTo writes the bounds of a duration in the units that requests have, which know no days.
func fromTo(least, most time.Duration) string {
	return fmt.Sprintf(`"%v" to "%.0fh"`, least, most.Hours())
}

// whole reads a whole number from least to most, or 0.
func whole[T int | int64](b json.RawMessage, least, most T, v *T) bool {
	return json.Unmarshal(b, v) == nil && (*v == 0 || *v >= least && *v <= most)
}

// duration reads a text like 1h30m or a number of seconds, from least to most, or 0.
func duration(b json.RawMessage, least, most time.Duration, d *time.Duration) bool {
	var text string
	var seconds float64
	var err error
	if json.Unmarshal(b, &text) == nil {
		*d, err = time.ParseDuration(text)
	} else if err = json.Unmarshal(b, &seconds); err == nil && math.Abs(seconds) <= most.Seconds() {
		*d = time.Duration(seconds * float64(time.Second))
	} else {
		return false
	}
	return err == nil && (*d == 0 && seconds == 0 || *d >= least && *d <= most)
}

// parseChange reads what PATCH takes: null for a setting has it be as the broker's settings say. Its error names all that is wrong.
func parseChange(in map[string]json.RawMessage) (c change, err error) {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(in)) {
		i := slices.IndexFunc(queueSettings, func(s queueSetting) bool { return s.name == name })
		if i < 0 {
			var names []string
			for _, s := range queueSettings {
				names = append(names, s.name)
			}
			wrong = append(wrong, fmt.Sprintf("there is no setting %q; there are %s", name, strings.Join(names, ", ")))
			continue
		}
		s, raw := queueSettings[i], in[name]
		switch {
		case string(raw) == "null":
			c.reset |= s.bit
		case s.read(raw, &c.policy):
			c.set |= s.bit
		default:
			wrong = append(wrong, fmt.Sprintf("%s: %s is not possible: it must be %s", name, raw, s.wants))
		}
	}
	if len(wrong) > 0 {
		return change{}, bad("%s", strings.Join(wrong, "; "))
	}
	return c, nil
}

// settingsOf is a policy as the API shows it.
func settingsOf(queue string, p *feed.Policy) Settings {
	s := Settings{
		MaxInFlight: p.MaxInFlight, MaxDeliveries: p.Deliveries(), RetryDelay: []string{}, DeadLetter: p.DeadLetters(queue),
		Ordered: p.Ordered, Exclusive: p.Exclusive, AckTimeout: p.AckTimeout.String(),
		MaxMessages: p.Limits.MaxMessages, MaxBytes: p.Limits.MaxBytes, MaxAge: p.Limits.MaxAge.String(), Overflow: "drop_oldest",
	}
	if p.Limits.Reject {
		s.Overflow = "reject"
	}
	for _, d := range p.Delays() {
		s.RetryDelay = append(s.RetryDelay, d.String())
	}
	return s
}

// namesOf lists settings.
func namesOf(set feed.Setting) []string {
	names := []string{}
	for _, s := range queueSettings {
		if set&s.bit != 0 {
			names = append(names, s.name)
		}
	}
	return names
}
