package session

import (
	"fmt"
	"hash/maphash"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

// topicRef is what a link knows of a topic it publishes to. That of a plain topic is of all links (refs) and does not change.
type topicRef struct {
	wire      string // as the client wrote it
	name      string
	id        uint32
	queue     bool
	to        *feed.Feed // that queue's
	envelope  bool       // the payload begins with properties ($v5/)
	delayed   bool       // published delay later
	delay     uint32
	nack      string            // the queue that a message of is refused
	transient bool              // for live subscribers only (store.exclude)
	limit     *store.TopicLimit // nil if the topic's policy has none
	code      byte              // not 0: publishing to it is refused
	reason    string
	denied    bool // by a rule
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
	if l.client == 0 {
		s := l.session.Load()
		id, err := l.m.log.ClientID(s.id, s.durable)
		if err != nil {
			return nil, fatal(err)
		}
		l.client = id
	}
	if ref := l.m.refs.get(hash, name); ref != nil && l.access.Publish(ref.name) {
		return ref, nil
	}
	wire := string(name)
	n, err := topic.ParseName(name, l.m.opt.Topics)
	if err != nil {
		return &topicRef{wire: wire, code: codeOf(err), reason: err.Error()}, nil
	}
	if !mayPublish(l.access, &n) {
		return &topicRef{wire: wire, denied: true, code: packet.CodeNotAuthorized, reason: fmt.Sprintf("not allowed to publish to %q", name)}, nil
	}
	ref := &topicRef{
		wire: wire, name: string(n.Topic), queue: n.Queue != nil, envelope: n.V5, delayed: n.Kind == topic.Delayed, delay: n.Delay,
	}
	if len(n.Topic) == len(name) {
		ref.name = wire
	}
	ref.transient = l.m.excluded(ref.name)
	if n.Kind == topic.QueueNack {
		ref.nack = string(n.Queue)
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
		return l.m.refs.share(hash, ref), nil
	}
	return ref, nil
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
