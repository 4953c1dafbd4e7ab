package vfstest

import (
	"io/fs"
	"time"
)

const (
	sectorBytes = 512
	blockBytes  = 4096
)

// node is a file or a directory.
type node struct {
	mode fs.FileMode
	time time.Time

	// Of a directory: what a process sees, and what is certain.
	entries, certain map[string]*node

	// Of a file: what a process reads, what is certain, and the changes since that are not, oldest first.
	data, base []byte
	dirty      []dataOp

	blocks []bool // allocated ones
	linked bool   // it has a name
	opens  int
}

// dataOp is a pending change of a file.
type dataOp struct {
	seq      uint64
	resize   bool
	pos      int64 // the new size, of a resize
	data     []byte
	inFlight bool
}

func newDir() *node {
	return &node{
		mode: fs.ModeDir | 0o755, time: time.Now(), linked: true,
		entries: make(map[string]*node), certain: make(map[string]*node),
	}
}

func newFile(perm fs.FileMode) *node {
	return &node{mode: perm.Perm(), time: time.Now(), linked: true}
}

func (n *node) isDir() bool { return n.mode.IsDir() }

func (n *node) info(name string) info {
	return info{name, int64(len(n.data)), n.mode, n.time}
}

// change makes op visible to processes.
func (n *node) change(op dataOp) {
	n.data = op.apply(n.data)
	n.dirty = append(n.dirty, op)
	n.time = time.Now()
}

// settle makes all pending changes certain.
func (n *node) settle() {
	for _, op := range n.dirty {
		n.base = op.apply(n.base)
	}
	n.dirty = nil
}

// drop forgets pending writes, though they still read back. Sizes are metadata and have a journal of their own.
func (n *node) drop() {
	for _, op := range n.dirty {
		if op.resize {
			n.base = op.apply(n.base)
		}
	}
	n.dirty = nil
}

func (op dataOp) apply(b []byte) []byte {
	if op.resize {
		return resize(b, op.pos)
	}
	if end := op.pos + int64(len(op.data)); end > int64(len(b)) {
		b = resize(b, end)
	}
	copy(b[op.pos:], op.data)
	return b
}

// resize cuts b or adds zeros.
func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		clear(b[size:]) // growing again must show zeros
		return b[:size]
	}
	if size <= int64(cap(b)) {
		old := len(b)
		b = b[:size]
		clear(b[old:])
		return b
	}
	grown := make([]byte, size, max(size, int64(cap(b))*5/4))
	copy(grown, b)
	return grown
}

// fit allocates the blocks of [pos, pos+n) as far as room goes and returns how many of the n bytes fit.
func (n *node) fit(pos, count int64, room *int64) int64 {
	for b := pos / blockBytes; b*blockBytes < pos+count; b++ {
		for int64(len(n.blocks)) <= b {
			n.blocks = append(n.blocks, false)
		}
		if n.blocks[b] {
			continue
		}
		if *room < blockBytes {
			return max(b*blockBytes-pos, 0)
		}
		n.blocks[b] = true
		*room -= blockBytes
	}
	return count
}

// free gives back the blocks beyond size and returns their bytes.
func (n *node) free(size int64) int64 {
	first := (size + blockBytes - 1) / blockBytes
	if first >= int64(len(n.blocks)) {
		return 0
	}
	var freed int64
	for _, used := range n.blocks[first:] {
		if used {
			freed += blockBytes
		}
	}
	n.blocks = n.blocks[:first]
	return freed
}
