package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/edgemq/edgemq/store/record"
	"github.com/edgemq/edgemq/store/vfs"
)

// data/index/<block>.idx is a record.FileHeader "EMQI" with the fields
//
//	first offset u64 | offsets u32 | topics u32 | postings length u32 | keys u32 | fingerprint u32 | crc u32 |
//	clients length u32 | their crc u32 | zeros
//
// and then, all little-endian, the directory, one entry a topic, by topic number:
//
//	topic u32 | records u32 | bytes u64 | where its postings begin u32 | their crc u32
//
// the fences, one a page of keys: lowest hash u64 | crc of the page u32; the postings of each topic, uvarints: the distance of
// each offset from the one before, of the first from the block's first; and the pages of keys, each of 341 (the last of fewer) keys by
// hash: hash u64 | offset in the block u32; and the numbers of the clients that published the block's messages, ascending, uvarints: the distance of each from the
// one before. Version 1 had no clients. The header's crc is over directory and fences. All are CRC-32C. The fingerprint
// tells whether the ledger still has the records that the file speaks of.
const (
	indexMagic   = "EMQI"
	indexVersion = 2
	topicSize    = 24
	fenceSize    = 12
	keySize      = 12
	pageKeys     = 341
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// indexBlock is the part of an index file that is kept in memory.
type indexBlock struct {
	path  string
	base  uint64
	size  uint64
	print uint32
	dir   []topicEntry // by topic
	fence []fence
	posts int64  // where the postings begin
	old   bool   // version 1
	pubs  span32 // where the clients are
	ends  uint32
	keyAt int64 // where the keys begin
	keys  uint32
	used  atomic.Uint64
}

// span32 is a part of a file, and its checksum.
type span32 struct {
	pos       int64
	size, crc uint32
}

type topicEntry struct {
	topic, records uint32
	bytes          uint64
	pos, crc       uint32
}

type fence struct {
	hash uint64
	crc  uint32
}

func (b *indexBlock) memory() int64 { return int64(len(b.dir)*24 + len(b.fence)*16 + 256) }

// writeIndex makes the file of a full block.
func writeIndex(fsys vfs.FS, path string, o *openBlock, print uint32) (err error) {
	b := encodeIndex(o, print)
	f, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(b, 0)
	return err
}

// encodeIndex returns the whole file.
func encodeIndex(o *openBlock, print uint32) []byte {
	dir, posts := encodePostings(o)
	keys := slices.Clone(o.keys)
	slices.SortFunc(keys, func(a, b indexKey) int {
		switch {
		case a.hash != b.hash && a.hash < b.hash:
			return -1
		case a.hash != b.hash:
			return 1
		}
		return int(a.rel) - int(b.rel)
	})
	var pages, fences []byte
	for page := range slices.Chunk(keys, pageKeys) {
		at := len(pages)
		for _, k := range page {
			pages = binary.LittleEndian.AppendUint64(pages, k.hash)
			pages = binary.LittleEndian.AppendUint32(pages, k.rel)
		}
		fences = binary.LittleEndian.AppendUint64(fences, page[0].hash)
		fences = binary.LittleEndian.AppendUint32(fences, crc32.Checksum(pages[at:], castagnoli))
	}
	h := record.FileHeader{Magic: indexMagic, Version: indexVersion, HeaderSize: record.FileHeaderSize}
	head := append(dir, fences...)
	le, fields := binary.LittleEndian, h.Fields[:]
	le.PutUint64(fields, o.base)
	le.PutUint32(fields[8:], uint32(len(o.topics)))
	le.PutUint32(fields[12:], uint32(len(dir)/topicSize))
	le.PutUint32(fields[16:], uint32(len(posts)))
	le.PutUint32(fields[20:], uint32(len(keys)))
	le.PutUint32(fields[24:], print)
	le.PutUint32(fields[28:], crc32.Checksum(head, castagnoli))
	pubs := encodeClients(o.clients)
	le.PutUint32(fields[32:], uint32(len(pubs)))
	le.PutUint32(fields[36:], crc32.Checksum(pubs, castagnoli))
	out := h.Append(make([]byte, 0, record.FileHeaderSize+len(head)+len(posts)+len(pages)+len(pubs)))
	out = append(out, head...)
	out = append(out, posts...)
	out = append(out, pages...)
	return append(out, pubs...)
}

// encodeClients lists each client once.
func encodeClients(clients []uint32) []byte {
	sorted := slices.Clone(clients)
	slices.Sort(sorted)
	var out []byte
	before := uint32(0)
	for _, client := range slices.Compact(sorted) {
		out = binary.AppendUvarint(out, uint64(client-before))
		before = client
	}
	return out
}

// clients reads which clients published the block's messages, false if the file does not tell.
func (b *indexBlock) clients(fsys vfs.FS) (clients []uint32, ok bool, err error) {
	if b.old {
		return nil, false, nil
	}
	f, err := fsys.OpenFile(b.path, os.O_RDONLY, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	p := make([]byte, b.pubs.size)
	if n, err := f.ReadAt(p, b.pubs.pos); n < len(p) {
		return nil, false, fmt.Errorf("read clients: %w", errors.Join(err, record.ErrShort))
	}
	if crc32.Checksum(p, castagnoli) != b.pubs.crc {
		return nil, false, record.ErrChecksum
	}
	at := uint64(0)
	for len(p) > 0 {
		d, n := binary.Uvarint(p)
		if at += d; n <= 0 || at > math.MaxUint32 {
			return nil, false, record.ErrMalformed
		}
		p = p[n:]
		clients = append(clients, uint32(at))
	}
	return clients, true, nil
}

// encodePostings groups the offsets by topic.
func encodePostings(o *openBlock) (dir, posts []byte) {
	number := map[uint32]int{} // topic → place in lists
	var topics []uint32
	var lists [][]uint32
	last, at := uint32(0), 0
	for rel, topic := range o.topics {
		if topic == 0 {
			continue
		}
		if topic != last {
			var ok bool
			if at, ok = number[topic]; !ok {
				at = len(lists)
				number[topic] = at
				topics, lists = append(topics, topic), append(lists, nil)
			}
			last = topic
		}
		lists[at] = append(lists[at], uint32(rel))
	}
	slices.Sort(topics)
	le := binary.LittleEndian
	for _, topic := range topics {
		list := lists[number[topic]]
		begin, before, bytes := len(posts), uint32(0), uint64(0)
		for _, rel := range list {
			posts = binary.AppendUvarint(posts, uint64(rel-before))
			before = rel
			bytes += uint64(o.sizes[rel])
		}
		dir = le.AppendUint32(dir, topic)
		dir = le.AppendUint32(dir, uint32(len(list)))
		dir = le.AppendUint64(dir, bytes)
		dir = le.AppendUint32(dir, uint32(begin))
		dir = le.AppendUint32(dir, crc32.Checksum(posts[begin:], castagnoli))
	}
	return dir, posts
}

var errIndexSize = errors.New("store: index file of another shape")

// readIndex reads header, directory and fences, and checks them.
func readIndex(fsys vfs.FS, path string, base, size uint64) (_ *indexBlock, err error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	length, err := f.Size()
	if err != nil {
		return nil, err
	}
	head := make([]byte, record.FileHeaderSize)
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return nil, fmt.Errorf("read header: %w", errors.Join(err, record.ErrShort))
	}
	h, err := record.ParseFileHeader(head, indexMagic, indexVersion, record.FileHeaderSize)
	if err != nil {
		return nil, err
	}
	le, fields := binary.LittleEndian, h.Fields[:]
	topics, posts, keys := int64(le.Uint32(fields[12:])), int64(le.Uint32(fields[16:])), int64(le.Uint32(fields[20:]))
	pages := (keys + pageKeys - 1) / pageKeys
	b := &indexBlock{path: path, base: base, size: size, print: le.Uint32(fields[24:]), keys: uint32(keys), ends: uint32(posts)}
	b.posts = record.FileHeaderSize + topics*topicSize + pages*fenceSize
	b.keyAt = b.posts + posts
	b.old = h.Version == 1
	b.pubs = span32{b.keyAt + keys*keySize, le.Uint32(fields[32:]), le.Uint32(fields[36:])}
	if le.Uint64(fields) != base || uint64(le.Uint32(fields[8:])) != size || b.pubs.pos+int64(b.pubs.size) != length {
		return nil, errIndexSize
	}
	body := make([]byte, b.posts-record.FileHeaderSize)
	if n, err := f.ReadAt(body, record.FileHeaderSize); n < len(body) {
		return nil, fmt.Errorf("read directory: %w", errors.Join(err, record.ErrShort))
	}
	if crc32.Checksum(body, castagnoli) != le.Uint32(fields[28:]) {
		return nil, record.ErrChecksum
	}
	b.dir = make([]topicEntry, topics)
	for i := range b.dir {
		p := body[i*topicSize:]
		b.dir[i] = topicEntry{le.Uint32(p), le.Uint32(p[4:]), le.Uint64(p[8:]), le.Uint32(p[16:]), le.Uint32(p[20:])}
	}
	body = body[topics*topicSize:]
	b.fence = make([]fence, pages)
	for i := range b.fence {
		p := body[i*fenceSize:]
		b.fence[i] = fence{le.Uint64(p), le.Uint32(p[8:])}
	}
	return b, nil
}

// topic returns the place of a topic in the directory.
func (b *indexBlock) topic(id uint32) (int, bool) {
	return slices.BinarySearchFunc(b.dir, id, func(e topicEntry, id uint32) int {
		switch {
		case e.topic < id:
			return -1
		case e.topic > id:
			return 1
		}
		return 0
	})
}

// postings appends the offsets of the directory's entry at place i that are at least from.
func (b *indexBlock) postings(f vfs.File, dst []uint64, i int, from uint64) ([]uint64, error) {
	end := b.ends
	if i+1 < len(b.dir) {
		end = b.dir[i+1].pos
	}
	e := &b.dir[i]
	if end < e.pos {
		return dst, errIndexSize
	}
	p := make([]byte, end-e.pos)
	if n, err := f.ReadAt(p, b.posts+int64(e.pos)); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = record.ErrShort
		}
		return dst, err
	}
	if crc32.Checksum(p, castagnoli) != e.crc {
		return dst, record.ErrChecksum
	}
	at := b.base
	for range e.records {
		d, n := binary.Uvarint(p)
		if n <= 0 {
			return dst, record.ErrMalformed
		}
		p = p[n:]
		if at += d; at >= from {
			dst = append(dst, at)
		}
	}
	return dst, nil
}

// find appends the offsets of a key, ascending.
func (b *indexBlock) find(fsys vfs.FS, dst []uint64, hash uint64) (_ []uint64, err error) {
	// The first page that may have it: the one before the first that begins with it or later.
	i := max(0, sort.Search(len(b.fence), func(i int) bool { return b.fence[i].hash >= hash })-1)
	if i >= len(b.fence) || b.fence[i].hash > hash {
		return dst, nil
	}
	f, err := fsys.OpenFile(b.path, os.O_RDONLY, 0)
	if err != nil {
		return dst, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var page [pageKeys * keySize]byte
	for ; i < len(b.fence) && b.fence[i].hash <= hash; i++ {
		p := page[:min(pageKeys, int(b.keys)-i*pageKeys)*keySize]
		if n, err := f.ReadAt(p, b.keyAt+int64(i)*pageKeys*keySize); n < len(p) {
			return dst, errors.Join(err, record.ErrShort)
		}
		if crc32.Checksum(p, castagnoli) != b.fence[i].crc {
			return dst, record.ErrChecksum
		}
		for ; len(p) > 0; p = p[keySize:] {
			if binary.LittleEndian.Uint64(p) == hash {
				dst = append(dst, b.base+uint64(binary.LittleEndian.Uint32(p[8:])))
			}
		}
	}
	return dst, nil
}
