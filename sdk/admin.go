package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// QueueInfo is how a queue stands.
type QueueInfo struct {
	Name       string   `json:"name"`
	Bindings   []string `json:"bindings"`    // topic filters
	Consumers  int      `json:"members"`     // attached
	Messages   int64    `json:"depth"`       // not settled
	LagBytes   int64    `json:"lag_bytes"`   // and their bytes
	LagSeconds float64  `json:"lag_seconds"` // age of the oldest
	InFlight   int      `json:"in_flight"`   // with consumers
	Cursor     uint64   `json:"cursor"`      // all below this offset is settled
}

// Queue asks the broker's admin API how a queue stands. It needs WithAdmin.
func (c *Client) Queue(ctx context.Context, name string) (QueueInfo, error) {
	var q QueueInfo
	err := c.admin(ctx, http.MethodGet, "/v1/queues/"+url.PathEscape(name), nil, &q)
	return q, err
}

// admin makes one request to the admin API.
func (c *Client) admin(ctx context.Context, method, path string, in, out any) error {
	if c.o.admin == "" {
		return errors.New("edgemq: the broker's admin address is not known: see WithAdmin")
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.o.admin+path, body)
	if err != nil {
		return fmt.Errorf("edgemq: admin: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.o.adminToken != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.adminToken)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("edgemq: admin: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("edgemq: admin: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("edgemq: admin: %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(text))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// Lag is how many messages of the queue are not settled. It needs WithAdmin.
func (p *PullConsumer) Lag(ctx context.Context) (int64, error) {
	p.mu.Lock()
	queue := p.queue
	p.mu.Unlock()
	if queue == "" {
		return 0, ErrNotAttached
	}
	q, err := p.client.Queue(ctx, queue)
	return q.Messages, err
}

// errSeek ends a connection whose consumer was moved.
var errSeek = errors.New("seeking")

// Seek moves the queue's position, for all its consumers and for good: FromEarliest, FromLatest, FromTime, FromOffset,
// FromAgo. Messages polled before cannot be settled any more (ErrStale). It needs WithAdmin.
func (p *PullConsumer) Seek(ctx context.Context, to Start) error {
	p.attach.Lock()
	defer p.attach.Unlock()
	p.mu.Lock()
	queue, s := p.queue, p.session
	p.mu.Unlock()
	if queue == "" {
		return ErrNotAttached
	}
	in := map[string]string{"to": to.text}
	if err := p.client.admin(ctx, http.MethodPost, "/v1/queues/"+url.PathEscape(queue)+"/reset", in, nil); err != nil {
		return err
	}
	p.mu.Lock()
	p.epoch++ // what came so far is of another time
	p.history, p.open, p.last = history{}, map[uint64]*Delivery{}, nil
	p.markers++
	p.mu.Unlock()
	l, err := s.connected(ctx)
	if err != nil {
		return err
	}
	l.fail(errSeek) // attaching anew is what makes the broker say once more when the backlog is through
	return nil
}
