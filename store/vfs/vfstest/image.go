package vfstest

import (
	"bytes"
	"math/rand/v2"
	"slices"
)

// Seeds of AfterCut with a fixed meaning. Every other seed is some mix.
const (
	LoseAll uint64 = iota // all that is not certain is lost
	KeepAll               // all is kept, as after kill -9
	InOrder               // what came before some moment is kept, what came after is lost
)

// fate decides what becomes of pending changes.
type fate struct {
	rng  *rand.Rand
	mode uint64
	upto uint64  // InOrder: the number of the change at which the power went
	keep float64 // the mix: how likely a change is kept
}

const mix = InOrder + 1

func newFate(seed, cut, last uint64) *fate {
	f := &fate{rng: rand.New(rand.NewPCG(seed, cut)), mode: seed}
	if seed > InOrder {
		// One in four keeps the order; the others differ in how much they keep.
		f.keep = [...]float64{0, 0.2, 0.5, 0.9}[f.rng.IntN(4)]
		f.mode = mix
		if f.keep == 0 {
			f.mode = InOrder
		}
	}
	back := [...]uint64{8, 8, 256}[f.rng.IntN(3)] // mostly near the end: what is older tends to be synced
	f.upto = last - f.rng.Uint64N(min(last, back)+1)
	return f
}

// keeps decides on a change as a whole.
func (f *fate) keeps(seq uint64) bool {
	switch f.mode {
	case LoseAll:
		return false
	case KeepAll:
		return true
	case InOrder:
		return seq <= f.upto
	}
	return f.rng.Float64() < f.keep
}

// keepsSector decides on one sector of a write. InOrder tears the write at which the power went.
func (f *fate) keepsSector(seq uint64) bool {
	if f.mode == InOrder && seq == f.upto+1 {
		return f.rng.IntN(2) == 0
	}
	return f.keeps(seq)
}

// keepName decides on the name or the last Commit of an external file, which has no number.
func (f *fate) keepName() bool {
	switch f.mode {
	case LoseAll:
		return false
	case KeepAll:
		return true
	}
	return f.rng.IntN(2) == 0
}

// garbles decides whether a lost sector of a write is garbage: more likely if the power went during that very write.
func (f *fate) garbles(inFlight bool) bool {
	if f.mode == LoseAll || f.mode == KeepAll {
		return false
	}
	if inFlight {
		return f.rng.IntN(4) == 0
	}
	return f.mode == mix && f.rng.IntN(16) == 0
}

// AfterCut returns the disk that a machine could find after the power has come back: a disk with nothing pending, no faults
// and no limit, on which the power stays on unless CutAfter says otherwise. A seed gives the same disk each time. If the
// power has not been cut, it is as if it went now. The disk itself does not change.
func (d *Disk) AfterCut(seed uint64) *Disk {
	d.commitMu.Lock()
	defer d.commitMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	image := NewDisk(Never)
	image.tear = d.tear
	f := newFate(seed, uint64(d.ops), d.seq)

	// Names first: a change is kept only with the earlier ones of the same names.
	names := make(map[*node][]nameEdit)
	lost := make(map[nameKey]bool)
	for _, op := range d.names {
		kept := f.keeps(op.seq)
		for _, e := range op.edits {
			kept = kept && !lost[e.key]
		}
		for _, e := range op.edits {
			if kept {
				names[e.key.dir] = append(names[e.key.dir], e)
			} else {
				lost[e.key] = true
			}
		}
	}
	image.root = d.copyDir(image, d.root, "", names, f)
	if err := d.ext.copyTo(image, f); err != nil {
		panic(err) // the machine that runs the test is broken
	}
	d.images = append(d.images, image)
	return image
}

// AfterKill returns the disk that the next process finds when one has died and the power stays on: it reads everything, and what
// was not certain is still not. The disk itself does not change.
func (d *Disk) AfterKill() *Disk {
	d.commitMu.Lock()
	defer d.commitMu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	image := NewDisk(Never)
	image.tear, image.seq, image.used = d.tear, d.seq, d.used
	copies := make(map[*node]*node)
	image.root = d.root.clone(copies)
	for _, op := range d.names {
		edits := make([]nameEdit, len(op.edits))
		for i, e := range op.edits {
			edits[i] = nameEdit{nameKey{e.key.dir.clone(copies), e.key.name}, e.to.clone(copies)}
		}
		image.names = append(image.names, nameOp{op.seq, edits})
	}
	if err := d.ext.copyTo(image, nil); err != nil {
		panic(err) // the machine that runs the test is broken
	}
	d.images = append(d.images, image)
	return image
}

// clone copies a node and what it refers to, each node once.
func (n *node) clone(copies map[*node]*node) *node {
	if n == nil || copies[n] != nil {
		return copies[n]
	}
	c := *n
	copies[n] = &c
	c.opens = 0
	c.data, c.base, c.blocks, c.dirty = bytes.Clone(n.data), bytes.Clone(n.base), slices.Clone(n.blocks), nil
	for _, op := range n.dirty {
		op.data, op.inFlight = bytes.Clone(op.data), false
		c.dirty = append(c.dirty, op)
	}
	for _, m := range []*map[string]*node{&c.entries, &c.certain} {
		if *m == nil {
			continue
		}
		copied := make(map[string]*node, len(*m))
		for name, child := range *m {
			copied[name] = child.clone(copies)
		}
		*m = copied
	}
	return &c
}

// copyDir copies a directory as fate would have it.
func (d *Disk) copyDir(image *Disk, dir *node, name string, names map[*node][]nameEdit, f *fate) *node {
	certain := make(map[string]*node, len(dir.certain))
	for elem, n := range dir.certain {
		certain[elem] = n
	}
	for _, e := range names[dir] {
		e.apply(certain)
	}
	c := newDir()
	for _, elem := range sortedKeys(certain) { // in order: the choices come from one random source
		n := certain[elem]
		var cn *node
		if n.isDir() {
			cn = d.copyDir(image, n, name+elem+"/", names, f)
		} else {
			cn = newFile(n.mode)
			cn.time = n.time
			cn.base = n.image(f, d.tear != nil && d.tear(name+elem))
			cn.data = bytes.Clone(cn.base)
			room := int64(1) << 62
			before := room
			cn.fit(0, int64(len(cn.data)), &room)
			image.used += before - room
		}
		c.entries[elem] = cn
		c.certain[elem] = cn
	}
	return c
}

// image returns the file's bytes as fate would have them.
func (n *node) image(f *fate, tear bool) []byte {
	b := bytes.Clone(n.base)
	size, sizeStuck := int64(len(b)), false
	stuck := make(map[int64]bool) // sectors that reached the disk for the last time
	var hit []int64               // sectors to turn to garbage, with tear
	for _, op := range n.dirty {
		if op.resize {
			if sizeStuck = sizeStuck || !f.keeps(op.seq); !sizeStuck {
				size = op.pos
				if size < int64(len(b)) {
					b = resize(b, size)
				}
			}
			continue
		}
		end := op.pos + int64(len(op.data))
		if end > size {
			if sizeStuck = sizeStuck || !f.keeps(op.seq); !sizeStuck {
				size = end
			}
		}
		if end > int64(len(b)) {
			b = resize(b, end)
		}
		for s := op.pos / sectorBytes; s*sectorBytes < end; s++ {
			if stuck[s] {
				continue
			}
			from, to := max(s*sectorBytes, op.pos), min((s+1)*sectorBytes, end)
			switch {
			case f.keepsSector(op.seq):
				copy(b[from:to], op.data[from-op.pos:to-op.pos])
				continue
			case f.garbles(op.inFlight):
				f.fill(b[from:to])
				if tear {
					hit = append(hit, s)
				}
			}
			stuck[s] = true
		}
	}
	for _, s := range hit {
		if from := s * sectorBytes; from < int64(len(b)) {
			f.fill(b[from:min(from+sectorBytes, int64(len(b)))])
		}
	}
	return resize(b, size)
}

func (f *fate) fill(b []byte) {
	for i := range b {
		b[i] = byte(f.rng.Uint32())
	}
}
