package session

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/edgemq/edgemq/broker/auth"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
)

// owner is who a connection speaks for, and what that one may do.
type owner struct {
	user  string // "" if the client came without a name, or nobody could say whether it is its own
	proof []byte // of the password; nil if none was asked for

	// The reader's: what the client may do according to rules.
	rules  *auth.Rules
	access *auth.Access
}

// Door says how clients get in by a listener.
type Door struct {
	Certificate string // the name in the client's certificate, if names come from there; it goes before the CONNECT's
	NoAnonymous bool   // without a name there is no way in
	Assigned    bool   // the client id is one that we have made up
}

// Login lets the client of a CONNECT in, or says why not: a *packet.Error with the code for the CONNACK. The Will is looked at too, as it
// is published by whoever this is.
func (l *Link) Login(d Door) error {
	c := l.Connect
	err := l.identify(d)
	clear(c.Password)
	c.Password = nil
	if err != nil {
		l.m.loginsRefused.Add(1)
		l.m.logger.Warn("login refused", "client", c.ClientID, "user", c.Username, "remote", l.Remote, "err", err)
		return err
	}
	l.rules = l.m.opt.Auth.Rules()
	l.access = l.rules.For(l.user, c.ClientID)
	if c.Will != nil {
		return l.checkWill(c.Will)
	}
	return nil
}

func (l *Link) identify(d Door) error {
	c := l.Connect
	switch {
	case d.Certificate != "":
		l.user = d.Certificate
	case c.HasUsername && l.m.opt.Auth.HasUsers():
		proof, err := l.m.opt.Auth.Login(c.Username, c.Password)
		switch {
		case errors.Is(err, auth.ErrBusy):
			return &packet.Error{Code: packet.CodeServerBusy, Msg: "too many logins at once, try again"}
		case err != nil:
			return &packet.Error{Code: packet.CodeBadUserOrPassword, Msg: "user name or password is wrong"}
		}
		l.user, l.proof = c.Username, proof
	case d.NoAnonymous:
		return &packet.Error{Code: packet.CodeNotAuthorized, Msg: "a user name and password are needed"}
	}
	if !d.Assigned && !l.m.opt.Auth.MayUse(l.user, c.ClientID) { // [MQTT-3.1.3-8]
		return &packet.Error{Code: packet.CodeClientIDInvalid, Msg: "the client id must be the user's name, or begin with it and one of " + auth.Separators}
	}
	return nil
}

// checkWill returns an error if the Will could not be published.
func (l *Link) checkWill(w *packet.Will) error {
	n, err := topic.ParseName([]byte(w.Topic), l.m.opt.Topics)
	if err == nil && (n.V5 || n.Kind != topic.Plain && n.Kind != topic.Queue) {
		err = &topic.Error{Code: packet.CodeTopicInvalid, Msg: "a Will to this kind of topic is not supported"}
	}
	if err == nil && !l.access.Publish(w.Topic) {
		l.m.denied.Add(1)
		return &packet.Error{Code: packet.CodeNotAuthorized, Msg: fmt.Sprintf("Will: not allowed to publish to %q", w.Topic)}
	}
	if err == nil && n.Kind == topic.Queue {
		_, err = l.m.queues.Use(string(n.Queue))
	}
	if err != nil {
		return &packet.Error{Code: packet.CodeTopicInvalid, Msg: "Will: " + err.Error()}
	}
	return nil
}

// allowed returns what the client may do now; the reader's.
func (l *Link) allowed() *auth.Access {
	if r := l.m.opt.Auth.Rules(); r != l.rules {
		l.rules, l.access = r, r.For(l.user, l.Connect.ClientID)
	}
	return l.access
}

// relook looks at everything again that is remembered of topics, since the rules have changed.
func (l *Link) relook() error {
	l.allowed()
	return l.relearn()
}

// relearn looks at everything again that is remembered of topics.
func (l *Link) relearn() error {
	l.recent = nil
	for i, ref := range l.aliases {
		if ref == nil {
			continue
		}
		fresh, err := l.lookup(maphash.String(seed, ref.wire), []byte(ref.wire))
		if err != nil {
			return err
		}
		l.aliases[i] = fresh
	}
	return nil
}

// mayPublish tells whether the client may publish to a name. A refusal of a delivery is the business of those who may attach to the queue.
func mayPublish(a *auth.Access, n *topic.Name) bool {
	if a == nil {
		return true // without making a string
	}
	if n.Kind == topic.QueueNack {
		return a.Subscribe(string(n.Topic))
	}
	return a.Publish(string(n.Topic))
}

// maySubscribe returns an error if the client may not have what a filter reaches. Binding a filter to a queue needs both.
func maySubscribe(a *auth.Access, flt *topic.Filter) error {
	if a == nil {
		return nil
	}
	if flt.Queue != "" && !a.Subscribe(topic.QueuePrefix+flt.Queue) {
		return notAllowed(topic.QueuePrefix + flt.Queue)
	}
	if queue, ok := strings.CutPrefix(flt.Filter, wire.ClaimsQueue); ok && flt.Kind == topic.Exclusive {
		if !a.Subscribe(topic.QueuePrefix + queue) {
			return notAllowed(topic.QueuePrefix + queue)
		}
		return nil
	}
	if flt.Kind != topic.QueueAttach && !a.Subscribe(flt.Filter) {
		return notAllowed(flt.Filter)
	}
	return nil
}

func notAllowed(filter string) error {
	return &packet.Error{Code: packet.CodeNotAuthorized, Msg: fmt.Sprintf("not allowed to subscribe to %q", filter)}
}

// deniedSubs returns the subscriptions that a client may not have (any more), as it wrote them; mu is held.
func (s *Session) deniedSubs(a *auth.Access) (filters []string) {
	if a == nil {
		return nil
	}
	for sub := range s.subs.All() {
		flt, err := topic.ParseFilter(sub.Filter, s.m.opt.Topics)
		if err == nil && maySubscribe(a, &flt) != nil {
			filters = append(filters, sub.Filter)
		}
	}
	return filters
}

// endDenied ends subscriptions that the client may not have: rules have changed, or it is another user who comes with the client id.
// It reports how many; mu is held.
func (s *Session) endDenied(a *auth.Access) int {
	filters := s.deniedSubs(a)
	if len(filters) == 0 {
		return 0
	}
	c := &change{wait: newWaiter()}
	for _, filter := range filters {
		s.unsubscribe(filter, nil, c)
		s.m.logger.Warn("a subscription is not allowed any more and was ended", "client", s.id, "filter", filter)
	}
	s.commit(c) // whether it is on disk is not waited for: it is looked at again at the next connection
	s.m.denied.Add(int64(len(filters)))
	return len(filters)
}

// Recheck looks at every connection again after users or rules have changed. One whose user is gone or has another password ends, and
// so does one that has subscriptions it may not have any more, which end with it: it learns about them when it subscribes again.
func (m *Manager) Recheck() {
	m.mu.Lock() // whoever is attached later has looked at the new ones
	all := slices.Collect(maps.Values(m.sessions))
	m.mu.Unlock()
	for _, s := range all {
		s.recheck()
	}
}

func (s *Session) recheck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.link
	if l == nil {
		return
	}
	if err := l.welcome(); err != nil {
		l.Kick(packet.CodeNotAuthorized, reasonOf(err))
	} else if s.endDenied(s.m.opt.Auth.Rules().For(l.user, s.id)) > 0 {
		l.Kick(packet.CodeNotAuthorized, "not all subscriptions are allowed any more")
	}
}

// welcome returns an error if what the client showed when it logged in is not good any more.
func (l *Link) welcome() error {
	if l.proof == nil || l.m.opt.Auth.Holds(l.user, l.proof) {
		return nil
	}
	return &packet.Error{Code: packet.CodeNotAuthorized, Msg: "the user or its password has changed"}
}
