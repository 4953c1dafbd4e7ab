package broker

import (
	"time"

	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// policyOf returns the policy of a topic, nil if it has none.
func (o *Options) policyOf(name string) *Topic {
	for i := range o.Topics {
		if topic.Match(o.Topics[i].Filter, name) {
			return &o.Topics[i]
		}
	}
	return nil
}

// topicPolicies tells the store of the policies.
func (o *Options) topicPolicies() {
	if len(o.Topics) == 0 {
		return
	}
	o.Store.Topic = func(name string) *store.TopicPolicy {
		t := o.policyOf(name)
		if t == nil || t.NoStore || t.Policy == (store.TopicPolicy{}) {
			return nil
		}
		return &t.Policy
	}
	other := o.Store.MaxAge
	o.Store.MaxAge = func(name string) time.Duration {
		if t := o.policyOf(name); t != nil && t.Policy.MaxAge != 0 {
			return t.Policy.MaxAge
		}
		if other != nil {
			return other(name)
		}
		return 0
	}
}

// excluded tells whether a topic's messages are for live subscribers only.
func (o *Options) excluded(name string) bool {
	for _, f := range o.Exclude {
		if topic.Match(f, name) {
			return true
		}
	}
	t := o.policyOf(name)
	return t != nil && t.NoStore
}
