package session

import (
	"fmt"
	"hash/maphash"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// topicRef is what a link knows of a topic it publishes to. That of a plain topic is of all links (refs) and does not change. What each
// message needs is at the beginning, the name too if it is not long: with very many topics every line of memory that is looked at is fetched from afar.
type topicRef struct {
	short     [32]byte          // what wire begins with
	to        *feed.Feed        // the queue's, of a queue
	limit     *store.TopicLimit // nil if the topic's policy has none
	id        uint32
	code      byte // not 0: publishing to it is refused
	queue     bool
	envelope  bool // the payload begins with properties ($v5/)
	delayed   bool // published delay later
	transient bool // for live subscribers only (store.exclude)
	denied    bool // by a rule
	nacks     bool // a message of the queue nack is refused

	delay  uint32
	wire   string // as the client wrote it
	name   string
	nack   string // a queue, if nacks
	reason string // of code
}

// newRef returns what is known of a topic before anything is: how the client wrote it.
func newRef(wire string) *topicRef {
	ref := &topicRef{wire: wire}
	copy(ref.short[:], wire)
	return ref
}

// is tells whether it is that topic's.
func (ref *topicRef) is(name []byte) bool {
	if len(name) < len(ref.short) && ref.short[len(name)] == 0 { // no name has a NUL: that is how it ends
		return string(ref.short[:len(name)]) == string(name)
	}
	return ref.wire == string(name)
}

// resolve returns what is known of the publish's topic, by its alias if it has one.
func (l *Link) resolve(p *packet.Publish) (*topicRef, error) {
	if p.Alias != 0 {
		if int(p.Alias) > l.m.opt.TopicAliasMaximum {
			return nil, &packet.Error{Code: packet.CodeAliasInvalid, Rule: "MQTT-3.3.2-9", Msg: "topic alias is above the maximum"}
		}
		if len(p.Topic) == 0 {
			if int(p.Alias) >= len(l.aliases) || l.aliases[p.Alias] == nil {
				return nil, &packet.Error{Code: packet.CodeAliasInvalid, Msg: "topic alias was never set"} // 3.3.2.3.4
			}
			return l.current(l.aliases[p.Alias])
		}
	}
	hash := maphash.Bytes(seed, p.Topic)
	ref := l.recent.get(hash, p.Topic)
	var err error
	if ref != nil {
		ref, err = l.current(ref)
	} else if ref, err = l.lookup(hash, p.Topic); err == nil {
		l.recent.put(hash, ref)
	}
	if err != nil {
		return nil, err
	}
	if p.Alias != 0 { // [MQTT-3.3.2-12]
		for int(p.Alias) >= len(l.aliases) {
			l.aliases = append(l.aliases, nil)
		}
		l.aliases[p.Alias] = ref
	}
	return ref, nil
}

// current brings what is known of a topic up to date: its queue may have been deleted, or created, since.
func (l *Link) current(ref *topicRef) (*topicRef, error) {
	if !ref.queue || ref.to != nil && !ref.to.Ended() {
		return ref, nil
	}
	if l.useQueue(ref); ref.code == 0 && ref.id == 0 {
		var err error
		if ref.id, err = l.m.log.TopicID(ref.name); err != nil {
			return nil, fatal(err)
		}
	}
	return ref, nil
}

// lookup finds out about a topic that the link has not published to before, or has forgotten.
func (l *Link) lookup(hash uint64, name []byte) (*topicRef, error) {
	if err := l.number(); err != nil {
		return nil, err
	}
	if ref := l.m.refs.get(l.numbers, hash, name); ref != nil && (l.access == nil || l.access.Publish(ref.name)) { // where there are no rules, the name is not waited for
		return ref, nil
	}
	ref := newRef(string(name))
	n, err := topic.ParseName(name, l.m.opt.Topics)
	if err != nil {
		ref.code, ref.reason = codeOf(err), err.Error()
		return ref, nil
	}
	if !mayPublish(l.access, &n) {
		ref.denied, ref.code, ref.reason = true, packet.CodeNotAuthorized, fmt.Sprintf("not allowed to publish to %q", name)
		return ref, nil
	}
	ref.queue, ref.envelope, ref.delayed, ref.delay = n.Queue != nil, n.V5, n.Kind == topic.Delayed, n.Delay
	if ref.name = ref.wire; len(n.Topic) != len(name) {
		ref.name = string(n.Topic)
	}
	ref.transient = l.m.excluded(ref.name)
	if n.Kind == topic.QueueNack {
		ref.nacks, ref.nack = true, string(n.Queue)
		return ref, nil
	}
	if ref.queue {
		if l.useQueue(ref); ref.code != 0 {
			return ref, nil
		}
	}
	if ref.id, err = l.m.log.TopicID(ref.name); err != nil {
		return nil, fatal(err)
	}
	ref.limit = l.m.log.Limit(ref.id)
	if n.Kind == topic.Plain && !n.V5 {
		return l.m.refs.share(l.numbers, hash, ref), nil
	}
	return ref, nil
}

// number sees to it that the link has its client's number.
func (l *Link) number() error {
	if l.client != 0 {
		return nil
	}
	s := l.session.Load()
	id, err := l.m.log.ClientID(s.id, s.durable)
	if err != nil {
		return fatal(err)
	}
	l.client = id
	return nil
}

// renumber has the numbers looked up again that the link remembers: what nobody has used for long may have another by now.
func (l *Link) renumber() error {
	was := l.client
	l.client = 0
	if err := l.number(); err != nil {
		return err
	}
	if l.client != was {
		l.noted = false // where it publishes from was noted under the number before
	}
	return l.relearn()
}

// useQueue finds the queue that a topic is of, creates it if it may, or notes that there is none.
func (l *Link) useQueue(ref *topicRef) {
	name, _ := topic.QueueOf(ref.name)
	f, err := l.m.queues.Use(name)
	if err != nil {
		ref.to, ref.code, ref.reason = nil, codeOf(err), err.Error()
		return
	}
	ref.to, ref.code, ref.reason = f, 0, ""
}

// fatal is the error that ends a connection whose publish cannot be taken at all.
func fatal(err error) error {
	return &packet.Error{Code: codeOf(err), Msg: err.Error()}
}
