package store

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/edgemq/edgemq/store/segment"
	"github.com/edgemq/edgemq/store/vfs"
)

// maxHandles bounds the segment files that are open for reading and not in use; Options.MaxFiles may ask for fewer.
const maxHandles = 512

// handle is a segment that is open for reading.
type handle struct {
	id   uint32
	r    *segment.Reader
	refs int    // users, and 1 while it is in the table
	used uint64 // when, by handles.clock
}

// handles keeps segments open between reads; who was idle longest is closed, after its last user.
type handles struct {
	s     *Store
	most  int
	mu    sync.Mutex
	open  map[uint32]*handle
	clock uint64
}

func (h *handles) init(s *Store) {
	h.s, h.open, h.most = s, make(map[uint32]*handle), max(1, min(maxHandles, s.opt.MaxFiles/2))
}

// acquire opens a segment, or takes one that is open. Release it after use.
func (h *handles) acquire(g *seg) (*handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	if o := h.open[g.id]; o != nil {
		o.refs++
		o.used = h.clock
		return o, nil
	}
	if h.open == nil {
		return nil, ErrClosed
	}
	path := segment.Path(h.s.segments, g.client, g.id)
	r, err := segment.OpenRead(h.s.fs, path)
	for vfs.Scarce(err) && len(h.open) > 0 {
		h.evict()
		r, err = segment.OpenRead(h.s.fs, path)
	}
	if err != nil {
		return nil, err
	}
	if h.s.table.get(g.id) == nil { // deleted meanwhile; open, it would keep its blocks on the disk
		return nil, errors.Join(fmt.Errorf("segment %d: %w", g.id, fs.ErrNotExist), r.Close())
	}
	if len(h.open) >= h.most {
		h.evict()
	}
	o := &handle{id: g.id, r: r, refs: 2, used: h.clock}
	h.open[g.id] = o
	return o, nil
}

// evict closes the handle idle longest of a few picked at random, which is near enough.
func (h *handles) evict() {
	var oldest *handle
	looked := 0
	for _, o := range h.open {
		if oldest == nil || o.used < oldest.used {
			oldest = o
		}
		if looked++; looked == 8 {
			break
		}
	}
	delete(h.open, oldest.id)
	h.unref(oldest)
}

// shed closes all that nobody uses.
func (h *handles) shed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, o := range h.open {
		if o.refs == 1 {
			delete(h.open, id)
			h.unref(o)
		}
	}
}

func (h *handles) release(o *handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unref(o)
}

func (h *handles) unref(o *handle) {
	if o.refs--; o.refs > 0 {
		return
	}
	if err := o.r.Close(); err != nil {
		h.s.log.Warn("close segment", "segment", o.id, "err", err)
	}
}

// forget closes a deleted segment once its last reader is done.
func (h *handles) forget(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.open[id]; o != nil {
		delete(h.open, id)
		h.unref(o)
	}
}

func (h *handles) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, o := range h.open {
		if o.refs--; o.refs == 0 {
			errs = append(errs, o.r.Close())
		}
	}
	h.open = nil
	return errors.Join(errs...)
}
