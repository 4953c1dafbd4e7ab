package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
)

func (s *Server) queueRoutes(m *http.ServeMux) {
	m.HandleFunc("GET /v1/queues", s.listQueues)
	m.HandleFunc("POST /v1/queues", s.createQueue)
	m.HandleFunc("GET /v1/queues/{queue}", s.showQueue)
	m.HandleFunc("PATCH /v1/queues/{queue}", s.configureQueue)
	m.HandleFunc("GET /v1/queues/{queue}/messages", s.peek)
	m.HandleFunc("DELETE /v1/queues/{queue}", s.changes(func(q string, _ *http.Request) (int64, error) { return 0, s.Queues.Delete(q) }))
	m.HandleFunc("POST /v1/queues/{queue}/purge", s.changes(func(q string, _ *http.Request) (int64, error) { return s.Queues.Purge(q) }))
	m.HandleFunc("POST /v1/queues/{queue}/pause", s.changes(func(q string, _ *http.Request) (int64, error) { return 0, s.Queues.Pause(q, true) }))
	m.HandleFunc("POST /v1/queues/{queue}/resume", s.changes(func(q string, _ *http.Request) (int64, error) { return 0, s.Queues.Pause(q, false) }))
	m.HandleFunc("POST /v1/queues/{queue}/bind", s.changes(s.bind))
	m.HandleFunc("POST /v1/queues/{queue}/unbind", s.changes(s.unbind))
	m.HandleFunc("POST /v1/queues/{queue}/reset", s.reset)
	m.HandleFunc("POST /v1/queues/{queue}/move", s.changes(s.move))
	m.HandleFunc("POST /v1/queues/{queue}/redrive", s.changes(s.redrive))
}

// changes is the handler of a request that changes a queue.
func (s *Server) changes(do func(queue string, r *http.Request) (messages int64, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		queue := r.PathValue("queue")
		n, err := do(queue, r)
		if err == nil {
			s.Logger.Info("queue changed", "queue", queue, "request", r.Method+" "+r.URL.Path, "records", n)
		}
		answer(w, Done{OK: err == nil, Messages: n}, err)
	}
}

func (s *Server) listQueues(w http.ResponseWriter, _ *http.Request) {
	qs, err := s.allQueues()
	answer(w, qs, err)
}

func (s *Server) allQueues() ([]Queue, error) {
	qs := []Queue{}
	for _, name := range s.Queues.Names() {
		q, err := s.queue(name)
		if statusOf(err) == http.StatusNotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		qs = append(qs, q)
	}
	return qs, nil
}

// queue describes a queue.
func (s *Server) queue(name string) (Queue, error) {
	i, err := s.Queues.Info(name)
	if err != nil {
		return Queue{}, err
	}
	b, err := s.Queues.Backlog(name)
	if err != nil {
		return Queue{}, err
	}
	q := Queue{
		Name: name, Bindings: i.Bindings, Paused: i.Paused, Members: i.Members, Depth: b.Messages, LagBytes: b.Bytes,
		InFlight: i.InFlight, Retrying: i.Retrying, Cursor: i.Cursor, NextOffset: s.Store.Next(),
		Sent: i.Stats.Sent, Settled: i.Stats.Settled, Expired: i.Stats.Expired, Redelivered: i.Stats.Redelivered, Dead: i.Stats.Dead, Dropped: i.Stats.Dropped,
		DeadLetter: i.Policy.DeadLetters(name), Settings: settingsOf(name, &i.Policy), Set: namesOf(i.Set),
	}
	if q.Bindings == nil {
		q.Bindings = []string{}
	}
	q.Oldest, q.LagSeconds = since(b.Oldest)
	return q, nil
}

// since returns a time, and how long ago it is.
func since(t time.Time) (*time.Time, float64) {
	if t.IsZero() {
		return nil, 0
	}
	t = t.UTC()
	return &t, max(0, time.Since(t).Seconds())
}

func (s *Server) createQueue(w http.ResponseWriter, r *http.Request) {
	var n NewQueue
	err := body(r, &n)
	if err == nil && !topic.ValidQueue(n.Name) {
		err = bad("%q: a queue's name is 1 to 128 of A-Z a-z 0-9 _ . -", n.Name)
	}
	for _, filter := range n.Topics {
		if err == nil {
			err = s.checkFilter(filter)
		}
	}
	var c change
	if err == nil {
		c, err = parseChange(n.Settings)
	}
	if err == nil { // before there is a queue
		err = s.Queues.CheckSettings(n.Name, c.set, c.policy, c.reset)
	}
	if err == nil {
		_, err = s.Queues.Create(n.Name)
	}
	if err == nil && len(n.Settings) > 0 {
		err = s.Queues.Configure(n.Name, c.set, c.policy, c.reset)
	}
	for _, filter := range n.Topics {
		if err == nil {
			err = s.bindTo(n.Name, filter)
		}
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	s.Logger.Info("queue created", "queue", n.Name)
	q, err := s.queue(n.Name)
	answer(w, q, err)
}

// configureQueue changes settings of a queue and answers with the queue.
func (s *Server) configureQueue(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("queue")
	var in map[string]json.RawMessage
	err := body(r, &in)
	if err == nil && len(in) == 0 {
		err = bad("no setting is given")
	}
	var c change
	if err == nil {
		c, err = parseChange(in)
	}
	if err == nil {
		err = s.Queues.Configure(name, c.set, c.policy, c.reset)
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	s.Logger.Info("queue configured", "queue", name, "set", namesOf(c.set), "reset", namesOf(c.reset))
	q, err := s.queue(name)
	answer(w, q, err)
}

func (s *Server) showQueue(w http.ResponseWriter, r *http.Request) {
	q, err := s.queue(r.PathValue("queue"))
	answer(w, q, err)
}

// checkFilter refuses what no queue can be bound to.
func (s *Server) checkFilter(filter string) error {
	f, err := topic.ParseFilter(filter, s.Topics)
	if err == nil && (f.Kind != topic.Plain || f.V5) {
		err = bad("%q: only plain topic filters can be bound", filter)
	}
	return err
}

func (s *Server) bind(queue string, r *http.Request) (int64, error) {
	var b Binding
	if err := body(r, &b); err != nil {
		return 0, err
	}
	if err := s.checkFilter(b.Filter); err != nil {
		return 0, err
	}
	return 0, s.bindTo(queue, b.Filter)
}

func (s *Server) bindTo(queue, filter string) error {
	f, err := s.Queues.Find(queue)
	if err != nil {
		return err
	}
	done := make(committed, 1)
	if err := s.Queues.Bind(f, filter, done); err != nil {
		return err
	}
	return <-done
}

func (s *Server) unbind(queue string, r *http.Request) (int64, error) {
	var b Binding
	if err := body(r, &b); err != nil {
		return 0, err
	}
	f, err := s.Queues.Find(queue)
	if err != nil {
		return 0, err
	}
	if _, ok := f.Filter(b.Filter); !ok || b.Filter == topic.QueuePrefix+queue {
		return 0, bad("queue %q is not bound to %q", queue, b.Filter)
	}
	done := make(committed, 1)
	if _, err := s.Queues.Unbind(f, b.Filter, done); err != nil {
		return 0, err
	}
	return 0, <-done
}

// committed is a store.Completion that tells a channel.
type committed chan error

// Committed implements store.Completion.
func (c committed) Committed(_ uint64, err error) { c <- err }

// reset moves a queue in the log, and says where it is then.
func (s *Server) reset(w http.ResponseWriter, r *http.Request) {
	queue := r.PathValue("queue")
	var to Reset
	err := body(r, &to)
	d := Done{OK: true}
	if err == nil {
		d.Offset, d.Note, err = s.resetTo(queue, to.To)
	}
	if err == nil {
		s.Logger.Info("queue changed", "queue", queue, "request", r.Method+" "+r.URL.Path, "offset", d.Offset)
	}
	answer(w, d, err)
}

func (s *Server) resetTo(queue, to string) (offset uint64, note string, err error) {
	if to == "latest" {
		offset = feed.Now
	} else if offset, err = s.start(to); err != nil {
		return 0, "", err
	}
	first, next := s.Store.First(), s.Store.Next()
	future, err := s.future(to)
	switch {
	case err != nil:
		return 0, "", err
	case offset == feed.Now:
		offset = next
	case offset > next:
		return 0, "", bad("%s is beyond the end of the log: the next message gets offset %d; for what comes from now on, reset to latest", to, next)
	case future:
		note = fmt.Sprintf("%s is in the future: only what is published from now on is handed out, also before then", to)
	case offset < first:
		note = fmt.Sprintf("%s is not kept any more: the oldest message that is has offset %d", to, first)
		offset = first
	}
	if to == "latest" {
		return offset, "", s.Queues.Reset(queue, feed.Now)
	}
	return offset, note, s.Queues.Reset(queue, offset)
}

// parseStart does not speak of a topic as SUBACKs do: here it is none.
func parseStart(text string) (topic.Start, error) {
	st, err := topic.ParseStart(text)
	if te, ok := errors.AsType[*topic.Error](err); ok {
		return st, bad("%s", te.Msg)
	}
	return st, err
}

// future reports whether a start is a time that is yet to come.
func (s *Server) future(text string) (bool, error) {
	if text == "latest" {
		return false, nil
	}
	st, err := parseStart(text)
	return st.Kind == topic.AtTime && st.Time > time.Now().UnixMicro(), err
}

// start returns the offset of a start as $s/<start>/… has it.
func (s *Server) start(text string) (uint64, error) {
	st, err := parseStart(text)
	if err != nil {
		return 0, err
	}
	switch st.Kind {
	case topic.Earliest:
		return s.Store.First(), nil
	case topic.AtTime:
		return s.Store.SearchTime(st.Time), nil
	case topic.Back:
		return s.Store.SearchTime(time.Now().Add(-st.Back).UnixMicro()), nil
	case topic.AtOffset:
		return st.Offset, nil
	}
	return s.Store.Committed(), nil
}

func (s *Server) move(queue string, r *http.Request) (int64, error) {
	var m Move
	if err := body(r, &m); err != nil {
		return 0, err
	}
	if !topic.ValidQueue(m.To) || m.To == queue {
		return 0, bad("to: %q is not another queue's name", m.To)
	}
	return s.moveAll(queue, m.To, m.Count)
}

// redrive moves the dead letters of a queue back to it.
func (s *Server) redrive(queue string, r *http.Request) (int64, error) {
	var m Move
	if err := body(r, &m); err != nil {
		return 0, err
	}
	i, err := s.Queues.Info(queue)
	if err != nil {
		return 0, err
	}
	n, err := s.moveAll(i.Policy.DeadLetters(queue), queue, m.Count)
	if errors.Is(err, feed.ErrNoQueue) {
		return 0, nil // there never was a dead letter
	}
	return n, err
}

// moveAll moves some messages, or what there is now.
func (s *Server) moveAll(from, to string, some *int) (int64, error) {
	if some != nil && *some < 1 {
		return 0, bad("count: %d is no number of messages to move; without it all are moved", *some)
	}
	b, err := s.Queues.Backlog(from)
	if err != nil {
		return 0, err
	}
	count := b.Messages
	if some != nil {
		count = min(count, int64(*some))
	}
	if count == 0 {
		return 0, nil
	}
	n, err := s.Queues.Move(from, to, int(count))
	return int64(n), err
}

func (s *Server) peek(w http.ResponseWriter, r *http.Request) {
	limit, err := number(r, "limit", 10, maxPage)
	if err != nil {
		answer(w, nil, err)
		return
	}
	recs, err := s.Queues.Peek(r.PathValue("queue"), int(limit))
	answer(w, s.page(recs), err)
}

// page makes the answer of records.
func (s *Server) page(recs []store.Record) Messages {
	m := Messages{Messages: []Message{}}
	for i := range recs {
		m.Messages = append(m.Messages, s.message(&recs[i]))
	}
	return m
}

// number reads a parameter from 1 to most.
func number(r *http.Request, name string, def, most uint64) (uint64, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil || n == 0 || n > most {
		return 0, bad("%s: %q is not a number from 1 to %d", name, v, most)
	}
	return n, nil
}
