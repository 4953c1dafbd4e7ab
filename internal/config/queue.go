package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// QueueSettings turns texts like max_deliveries=3 into what the broker's API takes (PATCH /v1/queues/<name>): the keys of an
// item of queues, by the same rules. The value default has a setting be as the broker's settings say.
func QueueSettings(texts []string) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not key=value", text)
		}
		v, err := queueSetting(name, value)
		if err != nil {
			return nil, err
		}
		if out[name], err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func queueSetting(name, value string) (any, error) {
	var names []string
	for _, k := range queueKeys {
		if k.name == "name" || k.name == "topics" {
			continue
		}
		if names = append(names, k.name); k.name != name {
			continue
		}
		if value == "default" {
			return nil, nil
		}
		var q Queue
		if problems := k.rule.set(k.field(&q), value); len(problems) > 0 {
			return nil, fmt.Errorf("%s: %s", name, problems[0].Message)
		}
		return jsonOf(name, k.field(&q)), nil
	}
	return nil, fmt.Errorf("there is no setting %q; there are %s", name, strings.Join(names, ", "))
}

// jsonOf returns a setting as the API wants it: it knows no days, and no units of bytes.
func jsonOf(name string, field any) any {
	switch v := field.(type) {
	case *time.Duration:
		return v.String()
	case *[]string:
		out := make([]string, 0, len(*v))
		for _, s := range *v {
			d, err := ParseDuration(s)
			if err != nil {
				panic("config: " + name + ": " + err.Error()) // the rule has checked it
			}
			out = append(out, d.String())
		}
		return out
	}
	return field
}
