package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Attach is attach; when it returns, the client's Will is on disk.
func (m *Manager) Attach(l *Link) (present bool, err error) {
	m.hearOut(l.Connect.ClientID)
	saved := newWaiter()
	if err := l.welcome(); err != nil {
		return false, err
	}
	if err := m.own(l); err != nil { // before its @Epoch counts
		return false, err
	}
	if err := m.connectEpoch(l, saved); err != nil {
		return false, err
	}
	if present, err = m.attach(l, saved); err != nil {
		return false, err
	}
	return present, saved.wait()
}

// attach gives the link its session: the one its client left behind, or a new one. An older connection of the same client ends. [MQTT-3.1.4-3]
func (m *Manager) attach(l *Link, saved *waiter) (present bool, err error) {
	c := l.Connect
	expiry := m.expiryOf(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := l.welcome(); err != nil { // once more: rules are looked at again with the lock held
		return false, err
	}
	if l.fence != nil { // a connection of a higher epoch may have come since ours was noted
		if err := l.fence.over(l.epoch); err != nil {
			return false, err
		}
	}
	if c.Will != nil && len(m.orphansOf(c.ClientID)) >= mostOrphans {
		return false, &packet.Error{Code: packet.CodeQuotaExceeded, Msg: "earlier Wills of this client wait for room on the disk"}
	}
	s := m.sessions[c.ClientID]
	if err := m.notOthers(s, l); err != nil {
		return false, err
	}
	if s != nil && m.takeOver(s, l) {
		s = nil
	}
	m.follow(l)
	var muts []store.Mutation
	moved := func() {}
	if c.Will != nil {
		muts, moved = m.makeWay(c.ClientID)
	}
	if present = s != nil; !present {
		s = m.newSession(c.ClientID, expiry > 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.expiry, s.offline, s.user = l, expiry, time.Time{}, l.user
	l.session.Store(s)
	switch {
	case s.durable && !present && c.Will == nil:
		m.newborn(s)
	case s.durable:
		muts = append(muts, s.mutation())
	}
	if c.Will != nil {
		s.will = newWill(c.Will, l.user, l.host())
		muts = append(muts, s.will.mutation(s.id))
	}
	if len(muts) > 0 {
		var done store.Completion
		if c.Will != nil {
			saved.add()
			done = saved
		}
		if err := m.hub.Save(muts, done); err != nil {
			if done != nil {
				saved.Committed(0, nil)
			}
			s.link, s.will = nil, nil
			l.session.Store(nil)
			if !present {
				m.end(s)
			} else { // the disk is full, perhaps: what the client left behind waits for it as before
				s.offline = m.log.Now()
				m.dueAt(s.nextEvent(s.offline))
			}
			return false, fmt.Errorf("save session: %w", err)
		}
		moved()
		s.unsaved = false
	}
	s.endDenied(l.allowed())
	l.resumes = len(s.resend.byKey) > 0
	s.resumeLoose(l)
	s.resumeReleased(l)
	return present, s.resume()
}

// own returns an error if the client id of a link is not its user's.
func (m *Manager) own(l *Link) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notOthers(m.sessions[l.Connect.ClientID], l)
}

// notOthers returns an error if a session, which may be nil, is another user's than that of a link with its client id; mu is held. What has no user is
// anybody's: it is from before there were users, or from somewhere where no names are asked for.
func (m *Manager) notOthers(s *Session, l *Link) error {
	if s == nil || !m.opt.Auth.Owned() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.user == "" || s.user == l.user || s.expired(m.log.Now()) {
		return nil
	}
	m.loginsRefused.Add(1)
	m.logger.Warn("client refused: its id has a session of another user", "client", s.id, "user", l.user, "owner", s.user, "remote", l.Remote)
	return &packet.Error{Code: packet.CodeNotAuthorized, Msg: "the client id has a session of another user"}
}

// takeOver takes a session from the link that it has, if it has one, for another, and reports whether it ends, as it does if it is over or the
// client wants a new one; mu is held.
func (m *Manager) takeOver(s *Session, l *Link) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.link
	if old != nil {
		s.release()
		m.taken[s.id] = append(m.taken[s.id], old)
		old.Kick(packet.CodeTakenOver, "another connection uses this client id")
	}
	over = l.Connect.Clean || s.expiry == 0 || s.expired(m.log.Now())
	s.willOnReturn(old != nil, over)
	if over { // [MQTT-3.1.2-4]
		m.end(s)
	}
	return over
}

// Detach is the end of a link: called once its reader is done, however it ended. The session rests, or ends with it.
func (m *Manager) Detach(l *Link) {
	m.links.remove(l)
	defer l.unfence()
	l.finish()
	s := l.session.Load()
	if s == nil {
		return
	}
	if l.in != nil { // the reader has panicked
		l.unadmit(l.in.msgs)
		l.in.batch.forget()
		l.in = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		m.forgetReceived(s)
	}
	if l.over = true; l.gone != nil {
		close(l.gone)
	}
	if s.link != l {
		m.dropTaken(l, s.id)
		return
	}
	s.release()
	s.willOnClose()
	if s.expiry == 0 {
		m.end(s)
		return
	}
	s.unsaved = false
	muts := []store.Mutation{s.mutation(), s.resend.mutation(s.id)}
	for sub := range s.subs.All() {
		if sub.Retained {
			muts = append(muts, s.saveSub(sub))
		}
	}
	m.dueAt(s.nextEvent(m.log.Now()))
	feeds := append(slices.Collect(maps.Values(s.solos)), s.own)
	if err := m.hub.SaveSoon(muts, feeds...); err != nil && !errors.Is(err, store.ErrFailed) {
		m.logger.Error("saving a session failed", "client", s.id, "err", err)
	}
}

// forgetReceived deletes the packet ids of publishes that the reader of a connection handed to the store when its session had been ended, by a
// connection that began a new one. After a restart they would be the new one's: its first publish under each of them would be taken for one sent again,
// acknowledged and not stored. What the new one publishes waits until they are gone (follow). Manager.mu and s.mu are held.
func (m *Manager) forgetReceived(s *Session) {
	if !s.durable {
		return
	}
	var muts []store.Mutation
	s.rxMu.Lock()
	for id := range s.received {
		muts = append(muts, record.Delete(record.BucketInflight, receivedKey(s.id, id)))
	}
	s.rxMu.Unlock()
	if len(muts) == 0 {
		return
	}
	if err := m.hub.Save(muts, nil); err != nil && !errors.Is(err, store.ErrFailed) {
		m.logger.Error("forgetting packet ids of a session that has ended failed", "client", s.id, "err", err)
	}
}

// follow has the link's publishes wait until the readers of all earlier connections of its client are done; mu is held. Those may have
// read publishes that they have not handed to the store yet, whatever has become since of the session, or of the connection that took it from
// them. A client that sends them again must find them stored, or they would come behind those that it sent after them; as duplicates
// they would be acknowledged before they are on disk; and the packet ids of a session that has ended must be gone before the next has its own.
func (m *Manager) follow(l *Link) {
	for _, old := range m.taken[l.Connect.ClientID] {
		l.after = append(l.after, old.awaited())
	}
}

// dropTaken forgets a connection that others took over from, now that its reader is done; mu is held.
func (m *Manager) dropTaken(l *Link, client string) {
	if rest := slices.DeleteFunc(m.taken[client], func(o *Link) bool { return o == l }); len(rest) > 0 {
		m.taken[client] = rest
	} else {
		delete(m.taken, client)
	}
}

// Goodbye carries out the client's DISCONNECT; Detach follows. What it says holds at once: the client may come back before
// this connection's end has been noticed. When it returns, and the client sees the connection end, a Will that is void is gone
// from the disk.
func (l *Link) Goodbye(d *packet.Disconnect) {
	if s := l.session.Load(); s != nil {
		saved := newWaiter()
		s.goodbye(l, d, saved)
		_ = saved.wait() // if it could not be saved, the store has failed and the broker ends
	}
}

func (s *Session) goodbye(l *Link, d *packet.Disconnect, saved *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return // taken over
	}
	if d.HasSessionExpiry {
		s.expiry = min(d.SessionExpiry, l.m.opt.MaxExpiry)
	}
	if d.Code == packet.CodeSuccess && s.will != nil { // [MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.14.4-3]
		s.will = nil
		saved.add()
		s.saveWill(saved)
	}
}
