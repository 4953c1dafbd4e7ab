package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// bbolt trusts its file: it follows positions and lengths in pages without looking where they lead, which on a damaged file is any
// place in memory, and what it finds there it may write to another page. So the pages are walked before it gets the file,
// with plain reads. That costs a read of the file at a start; values are not looked at.
//
// The layout is that of bbolt, version 2, in the byte order of the machine.

const (
	pageHeader  = 16 // id u64 | flags u16 | count u16 | overflow u32
	pageElement = 16 // leaf: flags u32 | pos u32 | key size u32 | value size u32; branch: pos u32 | key size u32 | page u64

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01
	noFreelist    = math.MaxUint64
	metaMagic     = 0xED0CDAED
	metaBytes     = 64
)

var order = binary.NativeEndian

// pages is a walk over the pages of a file.
type pages struct {
	r    io.ReaderAt
	size uint64 // of a page
	high uint64 // pages from here on are not in use
	seen []bool
}

// checkPages walks all pages that the newest sound meta page leads to. The error says what is wrong with them. metas is how many meta
// pages are sound: with one of them bbolt may have gone back to the state before the last one.
func checkPages(r io.ReaderAt, size int64) (metas int, err error) {
	var root, freelist, newest uint64
	p := pages{r: r, size: 4096} // what create chose
	for i := range int64(2) {
		b := make([]byte, metaBytes)
		if _, err := r.ReadAt(b, i*int64(p.size)+pageHeader); err != nil && !errors.Is(err, io.EOF) {
			return metas, err
		}
		h := fnv.New64a()
		h.Write(b[:metaBytes-8])
		if order.Uint32(b) != metaMagic || order.Uint64(b[56:]) != h.Sum64() {
			continue
		}
		if n := order.Uint32(b[8:]); n != uint32(p.size) {
			return metas, fmt.Errorf("pages of %d bytes", n)
		}
		metas++
		if tx := order.Uint64(b[48:]); p.high == 0 || tx > newest {
			newest, root, freelist, p.high = tx, order.Uint64(b[16:]), order.Uint64(b[32:]), order.Uint64(b[40:])
		}
	}
	if p.high == 0 {
		return metas, errors.New("both meta pages are damaged")
	}
	if p.high > uint64(size)/p.size {
		return metas, fmt.Errorf("file is cut short, it has %d bytes of %d pages", size, p.high)
	}
	p.seen = make([]bool, p.high)
	if err := p.tree(root); err != nil {
		return metas, err
	}
	if freelist == noFreelist {
		return metas, nil
	}
	return metas, p.free(freelist)
}

// read reads a page with its overflow, which nobody has read before.
func (p *pages) read(id uint64) (b []byte, flags uint16, count int, err error) {
	if id < 2 || id >= p.high {
		return nil, 0, 0, fmt.Errorf("page %d is referred to, there are %d", id, p.high)
	}
	b = make([]byte, p.size)
	if _, err := p.r.ReadAt(b, int64(id*p.size)); err != nil {
		return nil, 0, 0, fmt.Errorf("page %d: %w", id, err)
	}
	n := 1 + uint64(order.Uint32(b[12:]))
	if order.Uint64(b) != id || n > p.high-id {
		return nil, 0, 0, fmt.Errorf("page %d is damaged", id)
	}
	for i := id; i < id+n; i++ {
		if p.seen[i] {
			return nil, 0, 0, fmt.Errorf("page %d is in use twice", i)
		}
		p.seen[i] = true
	}
	if n > 1 {
		b = append(b, make([]byte, (n-1)*p.size)...)
		if _, err := p.r.ReadAt(b[p.size:], int64((id+1)*p.size)); err != nil {
			return nil, 0, 0, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return b, order.Uint16(b[8:]), int(order.Uint16(b[10:])), nil
}

// tree walks a page and all below it.
func (p *pages) tree(id uint64) error {
	b, flags, count, err := p.read(id)
	if err != nil {
		return err
	}
	var children []uint64
	switch flags {
	case leafPage:
		children, err = leaf(b, count)
	case branchPage:
		children, err = branch(b, count)
	default:
		err = fmt.Errorf("unknown kind %#x", flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for _, child := range children {
		if err := p.tree(child); err != nil {
			return err
		}
	}
	return nil
}

// elements hands out the elements of a page: their bytes, and what pos and sizes in them refer to.
func elements(b []byte, count int, sizes func(e []byte) (pos, key, value uint32), fn func(e, key, value []byte) error) error {
	if pageHeader+count*pageElement > len(b) {
		return fmt.Errorf("%d elements do not fit", count)
	}
	var last []byte
	for i := range count {
		at := uint64(pageHeader + i*pageElement)
		e := b[at : at+pageElement]
		pos, k, v := sizes(e)
		begin := at + uint64(pos)
		mid := begin + uint64(k)
		end := mid + uint64(v)
		if begin < uint64(pageHeader+count*pageElement) || end > uint64(len(b)) {
			return fmt.Errorf("element %d lies outside", i)
		}
		key := b[begin:mid]
		if i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
		last = key
		if err := fn(e, key, b[mid:end]); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

// branch returns the pages below a branch page.
func branch(b []byte, count int) (children []uint64, err error) {
	if count == 0 {
		return nil, errors.New("a branch without elements")
	}
	sizes := func(e []byte) (pos, key, value uint32) { return order.Uint32(e), order.Uint32(e[4:]), 0 }
	err = elements(b, count, sizes, func(e, _, _ []byte) error {
		children = append(children, order.Uint64(e[8:]))
		return nil
	})
	return children, err
}

// leaf returns the roots of the buckets in a leaf page.
func leaf(b []byte, count int) (roots []uint64, err error) {
	sizes := func(e []byte) (pos, key, value uint32) {
		return order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
	}
	err = elements(b, count, sizes, func(e, _, value []byte) error {
		switch order.Uint32(e) {
		case 0:
			return nil
		case bucketElement:
		default:
			return errors.New("unknown kind")
		}
		if len(value) < 16 { // root u64 | sequence u64
			return errors.New("a bucket cut short")
		}
		if root := order.Uint64(value); root != 0 {
			roots = append(roots, root)
			return nil
		}
		inline := value[16:] // a small bucket is a page of its own within the value
		if len(inline) < pageHeader || order.Uint16(inline[8:]) != leafPage {
			return errors.New("a damaged inline bucket")
		}
		nested, err := leaf(inline, int(order.Uint16(inline[10:])))
		if err == nil && len(nested) > 0 {
			err = errors.New("an inline bucket with buckets")
		}
		return err
	})
	return roots, err
}

// free checks the list of free pages: to write to one that is in use would be the end of it.
func (p *pages) free(id uint64) error {
	b, flags, count, err := p.read(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	ids := b[pageHeader:]
	n := uint64(count)
	if count == math.MaxUint16 { // too many for the header
		n, ids = order.Uint64(ids), ids[8:]
	}
	if flags != freelistPage || n > uint64(len(ids)/8) {
		return fmt.Errorf("page %d: damaged list of free pages", id)
	}
	for i := range n {
		free := order.Uint64(ids[8*i:])
		if free < 2 || free >= p.high || p.seen[free] {
			return fmt.Errorf("page %d is free and in use, or free twice", free)
		}
		p.seen[free] = true
	}
	return nil
}
