package admin

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/sparse"
)

const (
	maxPage   = 10_000
	pageBytes = 16 << 20 // of a page's messages
	// patience is how long a request looks for messages before it answers with what it has.
	patience = 5 * time.Second
)

var errNoTopic = errors.New("no such topic")

// message makes the answer of a record.
func (s *Server) message(r *store.Record) Message {
	return NewMessage(r, s.Store.TopicName(r.Topic), s.Store.ClientName(r.Client))
}

// NewMessage is the message of a record. Its payload is the record's.
func NewMessage(r *store.Record, topic, client string) Message {
	m := Message{
		Offset: r.Offset, Time: time.UnixMicro(r.Time).UTC(), Topic: topic, Client: client,
		QoS: r.Flags.QoS(), Retain: r.Flags.Has(record.FlagRetain), UTF8: r.Flags.Has(record.FlagUTF8),
	}
	if r.Flags.Has(record.FlagExpiry) {
		m.Expiry = &r.Expiry
	}
	for p := range packet.Properties(r.Props) {
		switch p.ID {
		case packet.PropContentType:
			m.ContentType = string(p.Value)
		case packet.PropResponseTopic:
			m.ResponseTopic = string(p.Value)
		case packet.PropCorrelationData:
			m.CorrelationData = slices.Clone(p.Value)
		case packet.PropUser:
			m.User = append(m.User, [2]string{string(p.Name), string(p.Value)})
		}
	}
	if utf8.Valid(r.Payload) {
		text := string(r.Payload)
		m.Payload = &text
	} else {
		m.PayloadBase64 = r.Payload
	}
	return m
}

// messages answers GET /v1/messages: by offset alone that one message, by id or key those that have it, else those of a topic filter
// and a range of time, from an offset on.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	m, err := s.query(r)
	answer(w, m, err)
}

func (s *Server) query(r *http.Request) (Messages, error) {
	q := r.URL.Query()
	limit, err := number(r, "limit", 100, maxPage)
	if err != nil {
		return Messages{}, err
	}
	offset := uint64(0)
	if v := q.Get("offset"); v != "" {
		if offset, err = strconv.ParseUint(v, 10, 64); err != nil {
			return Messages{}, bad("offset: %q is not a number", v)
		}
	}
	for name := range q {
		if !slices.Contains([]string{"offset", "limit", "id", "key", "topic", "from", "to"}, name) {
			return Messages{}, bad("%s: there is no such parameter", name)
		}
	}
	for i, name := range []string{"id", "key"} {
		if v := q.Get(name); v != "" {
			if q.Get("topic") != "" {
				return Messages{}, bad("%s and topic: one of them", name)
			}
			return s.lookup(keyKinds[i], v, offset, int(limit), q.Get("from"), q.Get("to"))
		}
	}
	if q.Get("topic") == "" && q.Get("from") == "" && q.Get("to") == "" && q.Get("limit") == "" && offset > 0 {
		recs, _, err := s.Store.NewReader().Read(nil, offset, store.Limits{MaxScan: 1}, everything)
		return s.page(recs), err
	}
	return s.scan(offset, int(limit), cmp.Or(q.Get("topic"), "#"), q.Get("from"), q.Get("to"))
}

func everything(uint64, uint32) bool { return true }

// keyKinds are the kinds of keys for the parameters id and key.
var keyKinds = [2]byte{KindMessageID, KindSearchKey}

// bounds returns the offsets of a range of time, of which either end may be empty, from an offset on.
func (s *Server) bounds(offset uint64, from, to string) (first, end uint64, err error) {
	first, end = offset, s.Store.Committed()
	if from != "" {
		at, err := s.start(from)
		if err != nil {
			return 0, 0, err
		}
		first = max(offset, at)
	}
	if to != "" {
		at, err := s.start(to)
		if err != nil {
			return 0, 0, err
		}
		end = min(end, at)
	}
	return first, end, nil
}

// lookup finds the messages that have a key in a range.
func (s *Server) lookup(kind byte, key string, offset uint64, limit int, from, to string) (Messages, error) {
	first, end, err := s.bounds(offset, from, to)
	if err != nil {
		return Messages{}, err
	}
	recs, err := s.Store.Lookup(nil, kind, []byte(key), first, limit)
	more := len(recs) == limit
	for len(recs) > 0 && recs[len(recs)-1].Offset >= end {
		recs, more = recs[:len(recs)-1], false
	}
	page := s.page(recs)
	if more {
		page.Next = recs[len(recs)-1].Offset + 1
	}
	return page, err
}

// scan reads the messages of a filter in a range.
func (s *Server) scan(offset uint64, limit int, filter, from, to string) (Messages, error) {
	offset, end, err := s.bounds(offset, from, to)
	if err != nil {
		return Messages{}, err
	}
	wants, err := s.matcher(filter)
	if err != nil {
		return Messages{}, err
	}
	var recs []store.Record
	r, began, bytes := s.Store.NewReader(), time.Now(), 0
	for offset < end && len(recs) < limit && bytes < pageBytes && time.Since(began) < patience {
		lim := store.Limits{MaxRecords: limit - len(recs), MaxBytes: 1 << 20, MaxScan: 1 << 18, Topics: wants}
		at := len(recs)
		if recs, offset, err = r.Read(recs, offset, lim, func(off uint64, id uint32) bool { return off < end && wants(id) }); err != nil {
			return Messages{}, err
		}
		for _, rec := range recs[at:] {
			bytes += len(rec.Payload) + len(rec.Props)
		}
	}
	page := s.page(recs)
	if offset < end {
		page.Next = offset
	}
	return page, nil
}

// matcher tells which topics a filter matches, by number. # does not match queues' own topics; $queue/<name> does.
func (s *Server) matcher(filter string) (func(id uint32) bool, error) {
	if name, ok := topic.QueueOf(filter); ok {
		filter = topic.QueuePrefix + name
	} else if f, err := topic.ParseFilter(filter, s.Topics); err != nil {
		return nil, err
	} else if f.Kind != topic.Plain || f.V5 {
		return nil, bad("%q: only plain topic filters and $queue/<name>", filter)
	}
	var known sparse.Table[int8]
	return func(id uint32) bool {
		at := known.Make(id)
		if *at == 0 {
			*at = -1
			if topic.Match(filter, s.Store.TopicName(id)) {
				*at = 1
			}
		}
		return *at > 0
	}, nil
}

// topics answers GET /v1/topics?filter=&after=&limit=: the topics of a filter that have messages, by name.
func (s *Server) topics(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := number(r, "limit", 1000, maxPage)
	if err != nil {
		answer(w, nil, err)
		return
	}
	wants, err := s.matcher(cmp.Or(q.Get("filter"), "#"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	totals, err := s.Store.TopicTotals()
	out := Topics{Topics: []Topic{}}
	after := q.Get("after")
	for id, t := range totals {
		if t.Records > 0 && wants(id) {
			if name := s.Store.TopicName(id); name > after {
				out.Topics = append(out.Topics, Topic{Name: name, Messages: t.Records, Bytes: t.Bytes})
			}
		}
	}
	slices.SortFunc(out.Topics, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	if len(out.Topics) > int(limit) {
		out.Topics = out.Topics[:limit]
		out.Next = out.Topics[limit-1].Name
	}
	answer(w, out, err)
}

// topicStat answers GET /v1/topic?name=.
func (s *Server) topicStat(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	id, ok := s.Store.LookupTopic([]byte(name))
	if !ok {
		answer(w, nil, errNoTopic)
		return
	}
	is := func(t uint32) bool { return t == id }
	n, err := s.Store.Count(0, s.Store.Committed(), is)
	if err != nil {
		answer(w, nil, err)
		return
	}
	t := Topic{Name: name, Messages: n.Records, Bytes: n.Bytes}
	if n.Records > 0 {
		if t.First, t.Last, err = s.Store.Ends(is); err == nil {
			t.FirstAt, t.LastAt = s.timeOf(t.First), s.timeOf(t.Last)
		}
	}
	answer(w, t, err)
}

func (s *Server) timeOf(offset uint64) *time.Time {
	if at, ok := s.Store.TimeOf(offset); ok && offset > 0 {
		t := time.UnixMicro(at).UTC()
		return &t
	}
	return nil
}
