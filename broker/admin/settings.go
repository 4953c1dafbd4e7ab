package admin

import (
	"encoding/json"
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

// maxDuration bounds durations: a hundred years.
const maxDuration = 100 * 365 * 24 * time.Hour

var queueSettings = []queueSetting{
	{"max_in_flight", feed.SetMaxInFlight, "a whole number from 0 to 65535", func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, 65535, &p.MaxInFlight)
	}},
	{"max_deliveries", feed.SetMaxDeliveries, "a whole number from 0 (no limit) to 1000000", func(b json.RawMessage, p *feed.Policy) bool {
		if !whole(b, 1_000_000, &p.MaxDeliveries) {
			return false
		}
		if p.MaxDeliveries == 0 {
			p.MaxDeliveries = -1
		}
		return true
	}},
	{"retry_delay", feed.SetRetryDelay, `a list of 1 to 100 durations, as in ["1s", "1m"]`, func(b json.RawMessage, p *feed.Policy) bool {
		var list []json.RawMessage
		if json.Unmarshal(b, &list) != nil {
			list = []json.RawMessage{b}
		}
		for _, item := range list {
			var d time.Duration
			if !duration(item, &d) {
				return false
			}
			p.RetryDelay = append(p.RetryDelay, d)
		}
		return len(list) > 0 && len(list) <= 100
	}},
	{"dead_letter", feed.SetDeadLetter, "a queue's name, or empty for <name>-dead", func(b json.RawMessage, p *feed.Policy) bool {
		return json.Unmarshal(b, &p.DeadLetter) == nil && (p.DeadLetter == "" || topic.ValidQueue(p.DeadLetter))
	}},
	{"ordered", feed.SetOrdered, "true or false", func(b json.RawMessage, p *feed.Policy) bool { return json.Unmarshal(b, &p.Ordered) == nil }},
	{"exclusive", feed.SetExclusive, "true or false", func(b json.RawMessage, p *feed.Policy) bool { return json.Unmarshal(b, &p.Exclusive) == nil }},
	{"ack_timeout", feed.SetAckTimeout, "a duration, as in \"30s\"; 0 for none", func(b json.RawMessage, p *feed.Policy) bool { return duration(b, &p.AckTimeout) }},
	{"max_messages", feed.SetMaxMessages, "a whole number; 0 for no limit", func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, 1<<50, &p.Limits.MaxMessages)
	}},
	{"max_bytes", feed.SetMaxBytes, "a number of bytes; 0 for no limit", func(b json.RawMessage, p *feed.Policy) bool {
		return whole(b, 1<<50, &p.Limits.MaxBytes)
	}},
	{"max_age", feed.SetMaxAge, "a duration, as in \"168h\"; 0 for no limit", func(b json.RawMessage, p *feed.Policy) bool { return duration(b, &p.Limits.MaxAge) }},
	{"overflow", feed.SetReject, "drop_oldest or reject", func(b json.RawMessage, p *feed.Policy) bool {
		var word string
		err := json.Unmarshal(b, &word)
		p.Limits.Reject = word == "reject"
		return err == nil && (p.Limits.Reject || word == "drop_oldest")
	}},
}

// whole reads a whole number from 0 to most.
func whole[T int | int64](b json.RawMessage, most T, v *T) bool {
	return json.Unmarshal(b, v) == nil && *v >= 0 && *v <= most
}

// duration reads a text like 1h30m or a number of seconds.
func duration(b json.RawMessage, d *time.Duration) bool {
	var text string
	var seconds float64
	var err error
	if json.Unmarshal(b, &text) == nil {
		*d, err = time.ParseDuration(text)
	} else if err = json.Unmarshal(b, &seconds); err == nil && math.Abs(seconds) <= maxDuration.Seconds() {
		*d = time.Duration(seconds * float64(time.Second))
	} else {
		return false
	}
	return err == nil && *d >= 0 && *d <= maxDuration
}

// parseChange reads what PATCH takes: null for a setting has it be as the broker's settings say.
func parseChange(in map[string]json.RawMessage) (c change, err error) {
	for name, raw := range in {
		i := slices.IndexFunc(queueSettings, func(s queueSetting) bool { return s.name == name })
		if i < 0 {
			var names []string
			for _, s := range queueSettings {
				names = append(names, s.name)
			}
			return c, bad("there is no setting %q; there are %s", name, strings.Join(names, ", "))
		}
		s := queueSettings[i]
		switch {
		case string(raw) == "null":
			c.reset |= s.bit
		case s.read(raw, &c.policy):
			c.set |= s.bit
		default:
			return c, bad("%s: %s is not possible: it must be %s", name, raw, s.wants)
		}
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
