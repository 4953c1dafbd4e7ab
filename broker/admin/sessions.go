package admin

import (
	"net/http"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/session"
)

// sessions answers GET /v1/sessions?client=<part of the id>&connected=true|false&after=&limit=.
func (s *Server) sessions(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := number(r, "limit", 1000, maxPage)
	if err != nil {
		answer(w, nil, err)
		return
	}
	out := Sessions{Sessions: []Session{}}
	for _, i := range s.Sessions.Sessions() {
		if i.ID <= q.Get("after") && q.Has("after") || !strings.Contains(i.ID, q.Get("client")) ||
			q.Has("connected") && i.Connected != (q.Get("connected") == "true") {
			continue
		}
		if len(out.Sessions) == int(limit) {
			out.Next = out.Sessions[limit-1].Client
			break
		}
		sess, err := describe(&i)
		if err != nil {
			answer(w, nil, err)
			return
		}
		sess.Subscriptions = nil
		out.Sessions = append(out.Sessions, sess)
	}
	answer(w, out, nil)
}

// describe makes the answer of a session.
func describe(i *session.Info) (Session, error) {
	b, err := i.Backlog()
	if err != nil {
		return Session{}, err
	}
	out := Session{
		Client: i.ID, Connected: i.Connected, Remote: i.Remote, User: i.User, Durable: i.Durable, Will: i.Will, InFlight: i.InFlight,
		Receiving: i.Receiving, Depth: b.Messages, LagBytes: b.Bytes, Filters: len(i.Subscriptions),
	}
	out.Since, _ = since(i.Since)
	out.Oldest, _ = since(b.Oldest)
	if i.Expiry != session.Never {
		out.Expiry = &i.Expiry
	}
	if i.Connected {
		out.Protocol = protocol(i.Version)
	}
	for _, sub := range i.Subscriptions {
		out.Subscriptions = append(out.Subscriptions, Subscription(sub))
	}
	return out, nil
}

func protocol(v packet.Version) string {
	switch v {
	case packet.V5:
		return "MQTT 5.0"
	case packet.V311:
		return "MQTT 3.1.1"
	}
	return "MQTT 3.1"
}

func (s *Server) session(w http.ResponseWriter, r *http.Request) {
	i, err := s.Sessions.Session(r.PathValue("client"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	out, err := describe(&i)
	answer(w, out, err)
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("client")
	err := s.Sessions.Delete(id)
	if err == nil {
		s.Logger.Info("session deleted", "client", id)
	}
	answer(w, Done{OK: true}, err)
}

func (s *Server) disconnect(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("client")
	err := s.Sessions.Disconnect(id, "disconnected by an administrator")
	if err == nil {
		s.Logger.Info("client disconnected", "client", id)
	}
	answer(w, Done{OK: true}, err)
}

func (s *Server) connections(w http.ResponseWriter, _ *http.Request) {
	out := []Connection{}
	for _, c := range s.Sessions.Connections() {
		j := Connection{Client: c.Client, Remote: c.Remote, Since: c.Since.UTC()}
		if c.Client != "" {
			j.Protocol = protocol(c.Version)
		}
		out = append(out, j)
	}
	answer(w, out, nil)
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	st, se := s.Store.Stats(), s.Sessions.Stats()
	subs, _ := s.Sessions.Subscriptions()
	out := Status{
		Version: s.opt.Version, Started: s.started.UTC().Truncate(time.Second), Ready: s.ready.Load(), Sync: st.Sync.String(),
		Connections: se.Connections, Sessions: se.Sessions, Subscriptions: subs, Queues: len(s.Queues.Names()), Topics: st.Topics,
		Retained: s.Sessions.Retained(), MessagesIn: sum(se.MessagesIn), MessagesOut: sum(se.MessagesOut), Refused: se.Refused,
		First: st.First, Next: st.Next, StoreBytes: st.SegmentBytes + st.LedgerBytes + st.JournalBytes,
		DiskFree: st.DiskFree, Damaged: st.Damaged, Full: st.Full, Failed: errorText(st.Failed),
	}
	answer(w, out, nil)
}

func sum(byQoS [3]int64) int64 { return byQoS[0] + byQoS[1] + byQoS[2] }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *Server) storeStats(w http.ResponseWriter, _ *http.Request) {
	st := s.Store.Stats()
	answer(w, Store{
		Sync: st.Sync.String(), First: st.First, Next: st.Next, Committed: st.Committed, Flushed: st.Flushed,
		Checkpointed: st.Checkpointed, Indexed: st.Indexed,
		Groups: st.Groups, Records: st.Records, Syncs: st.Syncs,
		SyncP50: st.SyncLatency.Quantile(.5).Seconds(), SyncP99: st.SyncLatency.Quantile(.99).Seconds(),
		CommitP50: st.CommitLatency.Quantile(.5).Seconds(), CommitP99: st.CommitLatency.Quantile(.99).Seconds(),
		JournalBytes: st.JournalBytes, TailBytes: st.TailBytes, UnflushedBytes: st.UnflushedBytes, CacheBytes: st.CacheBytes,
		Segments: st.Segments, SegmentBytes: st.SegmentBytes, LedgerBytes: st.LedgerBytes, DeletedSegments: st.DeletedSegments,
		Checkpoints: st.Checkpoints, CheckpointAge: st.CheckpointAge.Seconds(), CheckpointSeconds: st.CheckpointLatency.Seconds(),
		DiskFree: st.DiskFree, Damaged: st.Damaged, Full: st.Full, Failed: errorText(st.Failed),
	}, nil)
}

// health answers GET /health, 200 while the store works, and GET /ready, 200 while clients are served and publishes are taken.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	st := s.Store.Stats()
	out := struct {
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{Status: "ok"}
	switch ready := r.URL.Path == "/ready"; {
	case st.Failed != nil:
		out.Reason = "the store has failed"
	case ready && !s.ready.Load():
		out.Reason = "not serving clients"
	case ready && st.Full:
		out.Reason = "the disk is full: publishes of QoS 1 and 2 are refused"
	}
	if out.Reason != "" {
		out.Status = "unavailable"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	answer(w, out, nil)
}
