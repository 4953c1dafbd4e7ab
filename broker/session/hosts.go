package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// hosts knows from which address each message came. A message has its publisher's number and no address; when a connection first
// publishes, the state is told the address, and from which offset on it holds. So a message costs nothing, and a connection that
// publishes 40 bytes, which go when all messages that it speaks of are deleted: while they are kept, so is where they came from.
type hosts struct {
	m *Manager

	mu    sync.Mutex
	known map[uint32][]host // of clients whose messages were delivered with an address lately; a list is never changed in place
	size  int               // hosts in known
	fresh map[uint32][]host // noted in the last minute: the commit may not have come yet

	// Of sweep.
	swept  uint64    // store.Holdings.Deleted of the last look; noSweep before
	before connected // a sweep ago
}

const noSweep = ^uint64(0)

// connected is which clients had a connection when the next message was to have an offset.
type connected struct {
	next    uint64
	clients map[string]struct{}
}

// has tells whether a client was connected, or is not known.
func (c connected) has(client string) bool {
	_, ok := c.clients[client]
	return ok || client == ""
}

// host is where a client published from.
type host struct {
	since uint64
	addr  string
	noted time.Time // of fresh ones
}

// maxHosts bounds what is remembered; it can be read again.
const maxHosts = 1 << 18

func (h *hosts) init(m *Manager) {
	h.m = m
	h.swept = noSweep
	h.known, h.fresh = map[uint32][]host{}, map[uint32][]host{}
}

const hostVersion = 1

// hostKey is the key of a host in the state: client number u32, since u64, both big-endian. The value is version u8, address.
func hostKey(client uint32, since uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(make([]byte, 0, 12), client), since)
}

// note has a client's messages from now on come from an address, and returns the change of state to append before them.
func (h *hosts) note(client uint32, addr string) store.Mutation {
	x := host{since: h.m.log.Next(), addr: addr, noted: time.Now()}
	h.mu.Lock()
	h.fresh[client] = append(h.fresh[client], x)
	if list, ok := h.known[client]; ok {
		h.known[client] = insert(list, x)
		h.size++
	}
	h.mu.Unlock()
	return record.Put(record.BucketHosts, hostKey(client, x.since), append([]byte{hostVersion}, addr...))
}

// insert returns a list with x in its place; the list itself is not changed.
func insert(list []host, x host) []host {
	i, there := slices.BinarySearchFunc(list, x.since, func(y host, since uint64) int {
		switch {
		case y.since < since:
			return -1
		case y.since > since:
			return 1
		}
		return 0
	})
	if list = slices.Clone(list); there {
		list[i] = x
		return list
	}
	return slices.Insert(list, i, x)
}

// origin is an address and for which of a client's messages it holds: a writer asks for many of one client in a row.
type origin struct {
	of       *hosts // writers' scratch goes from one broker of the process to another
	client   uint32
	from, to uint64 // to is not in it
	addr     string
}

// find returns where a client's message at off came from; the address is empty if that is not known.
func (h *hosts) find(client uint32, off uint64) origin {
	h.mu.Lock()
	list, ok := h.known[client]
	o := origin{of: h, client: client, to: h.m.log.Next()} // whoever is noted later begins behind that
	h.mu.Unlock()
	if !ok {
		var err error
		if list, o.to, err = h.load(client); err != nil {
			h.m.logger.Error("reading a publisher's addresses failed", "client", h.m.log.ClientName(client), "err", err)
			return o
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].since <= off {
			o.from, o.addr = list[i].since, list[i].addr
			break
		}
		o.to = list[i].since
	}
	return o
}

// load reads a client's addresses from the state and remembers them. They hold below to. The lock is not held over the reading: publishers
// would wait for it.
func (h *hosts) load(client uint32) (list []host, to uint64, err error) {
	var bad error
	err = h.m.log.Range(record.BucketHosts, binary.BigEndian.AppendUint32(nil, client), func(k, v []byte) bool {
		var x host
		if x, bad = parseHost(k, v); bad == nil {
			list = append(list, x)
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	to = h.m.log.Next()
	if err != nil {
		return nil, to, err
	}
	if known, ok := h.known[client]; ok { // somebody else was quicker
		return known, to, nil
	}
	for _, x := range h.fresh[client] { // those noted meanwhile are among them
		list = insert(list, x)
	}
	if h.size += len(list) + 1; h.size > maxHosts {
		clear(h.known)
		h.size = len(list) + 1
	}
	h.known[client] = list
	return list, to, nil
}

func parseHost(k, v []byte) (host, error) {
	v, err := checkVersion(v, hostVersion)
	if err == nil && len(k) != 12 {
		err = errDamaged
	}
	if err != nil {
		return host{}, fmt.Errorf("address of a publisher: %w", err)
	}
	return host{since: binary.BigEndian.Uint64(k[4:]), addr: string(v)}, nil
}

// of returns the address that a message came from, "" if it is not known or the broker published it for the client.
func (h *hosts) of(rec *store.Record, last *origin) string {
	if relayed(rec.Flags, rec.PacketID) {
		return ""
	}
	if last.of != h || last.client != rec.Client || rec.Offset < last.from || rec.Offset >= last.to {
		*last = h.find(rec.Client, rec.Offset)
	}
	return last.addr
}

// relayedID is the packet id of messages at QoS 0 that the broker publishes for a client: delayed ones, Wills. Above QoS 0 theirs is 0.
// With a publish from a connection it is the other way round.
const relayedID = 1

func relayed(flags record.Flags, packetID uint16) bool { return (flags.QoS() == 0) == (packetID != 0) }

// relay marks a message as published by the broker for a client.
func relay(msg *store.Message) {
	if msg.PacketID = 0; msg.Flags.QoS() == 0 {
		msg.PacketID = relayedID
	}
}

// withHost returns the properties of a message to a queue that the broker will publish for a client, with the address it came from.
func withHost(props []byte, addr string) []byte {
	if _, own := packet.FindUser(props, wire.BornHost); own || addr == "" {
		return props
	}
	return packet.AppendUser(slices.Clone(props), wire.BornHost, addr)
}

// relay makes msg, to a queue, a copy of a stored message, and not one that its publisher sends now.
func (h *hosts) relay(rec *store.Record, msg *store.Message) {
	var last origin
	msg.Props = withHost(msg.Props, h.of(rec, &last))
	relay(msg)
}

// host is the address of the connection's other end, "" if it has none, as with a unix socket.
func (l *Link) host() string {
	if l.Remote == "@" {
		return ""
	}
	return l.Remote
}

// sweep forgets what was noted a while ago, and deletes the addresses whose messages are all deleted. A client's newest goes if there was
// no connection a sweep ago that could have added to its messages.
func (h *hosts) sweep(ctx context.Context, now time.Time) {
	h.mu.Lock()
	for client, list := range h.fresh {
		list = slices.DeleteFunc(list, func(x host) bool { return now.Sub(x.noted) > time.Minute })
		if h.fresh[client] = list; len(list) == 0 {
			delete(h.fresh, client)
		}
	}
	h.mu.Unlock()
	before := h.before
	h.before = connected{h.m.log.Next(), h.m.links.clients()}
	held := h.m.log.Holdings()
	if h.swept == held.Deleted {
		return
	}
	var muts []store.Mutation
	flush := func() {
		if err := h.m.log.Append(nil, muts, false, nil); err != nil {
			h.m.logger.Debug("deleting addresses failed, they are deleted later", "err", err)
		}
		muts = nil
	}
	gone := func(k []byte) {
		if muts = append(muts, record.Delete(record.BucketHosts, slices.Clone(k))); len(muts) == 1000 {
			flush()
		}
	}
	newest := func(k []byte) { // it holds for what its connection has yet to publish, too
		client, since := binary.BigEndian.Uint32(k), binary.BigEndian.Uint64(k[4:])
		if since < before.next && !held.Any(client, since, before.next) && !before.has(h.m.log.ClientName(client)) {
			gone(k)
		}
	}
	var last []byte // its messages are those up to the next key's, if that is of the same client
	err := h.m.log.Range(record.BucketHosts, nil, func(k, _ []byte) bool {
		switch {
		case len(k) != 12:
			return true
		case len(last) == 0:
		case string(k[:4]) != string(last[:4]):
			newest(last)
		case !held.Any(binary.BigEndian.Uint32(k), binary.BigEndian.Uint64(last[4:]), binary.BigEndian.Uint64(k[4:])):
			gone(last)
		}
		last = append(last[:0], k...)
		return ctx.Err() == nil
	})
	if len(last) > 0 && ctx.Err() == nil {
		newest(last)
	}
	if err == nil && ctx.Err() == nil && before.clients != nil && before.next <= held.Until { // else the newest are to be looked at the next time
		h.swept = held.Deleted
	}
	if err != nil {
		h.m.logger.Error("looking for addresses to delete failed", "err", err)
	}
	if len(muts) > 0 {
		flush()
	}
	h.mu.Lock()
	clear(h.known)
	h.size = 0
	h.mu.Unlock()
}
