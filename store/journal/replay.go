package journal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// found is a sound group on the disk.
type found struct {
	slot          int // index into replay.slots
	pos           int64
	size          int64
	group, synced uint64
}

// replay is the state of one Replay.
type replay struct {
	j      *Journal
	fn     func(g Group) error
	report Report
	slots  []*slot // lives that may hold groups from j.from on, ascending
	blank  bool    // there are slots of full length of which nothing is known: a power cut may have torn the header that began their life
	groups []found // in order of slot and pos
	buf    []byte  // window, and the group handed to fn

	expected uint64 // seq of the group to come
	endSlot  int    // index of the slot where it should be, or before
	endPos   int64  // and where, behind the last group
}

// Replay calls fn with every group whose seq is at least from.Group, in order and one at a time, and
// makes the journal ready for Append behind the last one. What it handed out is durable by then.
func (j *Journal) Replay(fn func(g Group) error) (Report, error) {
	r := &replay{j: j, fn: fn, buf: make([]byte, windowSize), expected: j.from.Group, endPos: BlockSize}
	if j.cur != nil || j.closed {
		return Report{}, errors.New("journal: Replay after Append or Close")
	}
	for _, step := range []func() error{r.sort, r.index, r.walk, r.settle} {
		if err := step(); err != nil {
			return r.report, err
		}
	}
	return r.report, nil
}

// sort finds the slots whose life is not over.
func (r *replay) sort() error {
	j := r.j
	j.nextSeq = j.from.File + 1
	var hurt []*slot
	for _, s := range j.free {
		if s.hurt {
			of, ok, err := s.identify(r.buf)
			if err != nil {
				return fmt.Errorf("read journal file: %w", err)
			}
			if !ok {
				r.blank = r.blank || !s.short
				continue // never used, or a first group that was never whole: nothing to lose
			}
			s.life = of
			hurt = append(hurt, s)
		}
		j.nextSeq = max(j.nextSeq, s.seq+1)
		if s.seq >= j.from.File {
			r.slots = append(r.slots, s)
		}
	}
	slices.SortStableFunc(r.slots, func(a, b *slot) int { return cmp.Compare(a.seq, b.seq) })
	for _, s := range r.slots {
		if slices.Contains(hurt, s) {
			r.report.Rebuilt++
			j.opts.Logger.Warn("journal file has a damaged header, using its groups", "path", s.path, "file", s.seq)
		}
		if j.opts.ReadOnly {
			continue
		}
		// A crash of the process alone leaves groups in the page cache that no fdatasync has reached.
		// Whoever gets them from us may act on them, so they have to be durable first.
		if err := s.file.Datasync(); err != nil {
			return fmt.Errorf("sync journal file before replay: %w", err)
		}
		if s.hurt {
			if err := s.writeHeader(s.life, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// index finds all sound groups.
func (r *replay) index() error {
	for i, s := range r.slots {
		err := newScanner(s.file, s.size, r.buf).groups(s.life, func(pos int64, h groupHeader) {
			r.groups = append(r.groups, found{i, pos, h.size(), h.group, h.synced})
		})
		if err != nil {
			return fmt.Errorf("read journal file %s: %w", s.path, err)
		}
	}
	if r.j.opts.Salvage {
		return nil
	}
	if f := r.j.from.File; f != 0 && (len(r.slots) == 0 || r.slots[0].seq != f) && (len(r.groups) == 0 || r.groups[0].group != r.expected) {
		r.j.opts.Logger.Error("journal file of the checkpoint is missing", "file", f, "group", r.expected)
		r.damage(Damage{Path: r.j.opts.Dir, First: r.expected, Last: r.expected})
		r.report.Damaged++ // at least
		return nil
	}
	r.missing()
	r.cut()
	return nil
}

// cut looks for files that are shorter than they were made, which no crash does: their size is durable before their header is. If groups
// follow in another file, their numbers tell what is lost; if not, something may be.
func (r *replay) cut() {
	for i, s := range r.slots {
		if n := len(r.groups); s.whole == 0 || n > 0 && i < r.groups[n-1].slot {
			continue
		}
		after := r.after()
		r.j.opts.Logger.Error("journal file is cut short", "path", s.path, "size", s.size, "was", s.whole, "group", after)
		r.damage(Damage{Path: s.path, Pos: s.size, Len: s.whole - s.size, First: after, Last: after})
		r.report.Damaged++ // at least
		for _, next := range r.slots {
			if next.prev == s.seq { // the file may be removed, and is not to be missing then
				next.prev, next.told = 0, true
			}
		}
	}
}

// after is the number behind the last group found.
func (r *replay) after() uint64 {
	if n := len(r.groups); n > 0 {
		return max(r.groups[n-1].group+1, r.expected)
	}
	return r.expected
}

// missing looks for a file that was in use and is not there, with nothing behind it that would tell: the file that was made ready to follow it
// knows of it.
func (r *replay) missing() {
	if len(r.slots) == 0 || r.blank {
		return
	}
	last := r.slots[len(r.slots)-1]
	if last.prev < r.j.from.File || last.prev == 0 || slices.ContainsFunc(r.slots, func(s *slot) bool { return s.seq == last.prev }) {
		return
	}
	if n := len(r.groups); n > 0 && r.groups[n-1].slot == len(r.slots)-1 {
		return // groups in it: the numbers of groups tell
	}
	after := r.after()
	r.j.opts.Logger.Error("journal file is missing", "file", last.prev, "group", after)
	r.damage(Damage{Path: r.j.opts.Dir, First: after, Last: after})
	r.report.Damaged++ // at least
	last.prev, last.told = 0, true
}

// walk hands out the groups, and decides at every gap whether it is damage or the end.
func (r *replay) walk() error {
	if r.j.opts.Salvage {
		return r.all()
	}
	// durableAfter[i] is the highest synced seq of the groups from i on.
	durableAfter := make([]uint64, len(r.groups)+1)
	for i := len(r.groups) - 1; i >= 0; i-- {
		durableAfter[i] = max(durableAfter[i+1], r.groups[i].synced)
	}
	for i, g := range r.groups {
		if g.group > r.expected {
			if durableAfter[i] < r.expected {
				// Nobody was told that the missing group is durable: the power went before its fdatasync
				// was through, and what lies behind it got to the disk first.
				r.report.Dropped = len(r.groups) - i
				return r.torn(r.groups[i:])
			}
			r.gap(g)
			r.expected = g.group
		}
		if g.group == r.expected {
			if err := r.hand(g); err != nil {
				return err
			}
			r.expected++
		} else if g.group >= r.j.from.Group {
			r.j.opts.Logger.Warn("journal group out of order, ignored", "path", r.slots[g.slot].path, "pos", g.pos)
			continue
		}
		r.endSlot, r.endPos = g.slot, g.pos+padded(g.size)
	}
	return r.torn(nil)
}

// all hands out all groups.
func (r *replay) all() error {
	for _, g := range r.groups {
		if g.group < r.expected {
			continue
		}
		if err := r.hand(g); err != nil {
			return err
		}
		r.expected = g.group + 1
	}
	return nil
}

// hand reads one group and calls fn.
func (r *replay) hand(g found) error {
	s := r.slots[g.slot]
	if int64(len(r.buf)) < g.size {
		r.buf = make([]byte, padded(g.size))
	}
	sc := newScanner(s.file, s.size, r.buf)
	h, _, sound, err := sc.groupAt(g.pos, s.life)
	if err != nil {
		return fmt.Errorf("read journal file %s: %w", s.path, err)
	}
	if !sound || h.size() != g.size {
		return &CorruptError{Path: s.path, Pos: g.pos, Err: errors.New("reads differently the second time")}
	}
	b, err := sc.bytes(g.pos, int(g.size))
	if err != nil {
		return fmt.Errorf("read journal file %s: %w", s.path, err)
	}
	mutations := HeaderSize + int(h.records)
	r.report.Groups++
	r.report.Records += int(h.count)
	return r.fn(Group{
		Seq: h.group, Base: h.base, Count: int(h.count),
		Records: b[HeaderSize:mutations:mutations], Mutations: b[mutations:],
	})
}

// gap reports the groups between the end so far and g, which were acknowledged, and sets their bytes aside.
func (r *replay) gap(g found) {
	lost := Damage{First: r.expected, Last: g.group - 1}
	r.report.Damaged += int(g.group - r.expected)
	reported := false
	for i := r.endSlot; i <= g.slot; i++ {
		s := r.slots[i]
		from, to := int64(BlockSize), s.size
		if i == r.endSlot {
			from = r.endPos
		}
		if i == g.slot {
			to = g.pos
		}
		if from >= to {
			continue
		}
		d := lost
		d.Path, d.Pos, d.Len = s.path, from, to-from
		d.Aside = r.setAside(s, from, to)
		r.damage(d)
		reported = true
	}
	if !reported { // a whole file is missing
		lost.Path, lost.Pos = r.slots[g.slot].path, g.pos
		r.damage(lost)
	}
}

// damage adds d to the report.
func (r *replay) damage(d Damage) {
	r.report.Damage = append(r.report.Damage, d)
	r.j.opts.Logger.Error("journal is damaged, acknowledged groups are lost", "path", d.Path, "pos", d.Pos,
		"length", d.Len, "first_group", d.First, "last_group", d.Last, "aside", d.Aside)
}

// torn notes where the log ends and, if it does not end cleanly, makes what is behind the end unreadable: a
// later replay must not take a group dropped now for the successor of one appended from now on.
func (r *replay) torn(dropped []found) error {
	type place struct {
		slot int
		pos  int64
	}
	var wipe []place
	for _, g := range dropped {
		wipe = append(wipe, place{g.slot, g.pos})
	}
	if r.endSlot < len(r.slots) {
		s := r.slots[r.endSlot]
		_, plausible, sound, err := newScanner(s.file, s.size, r.buf).groupAt(r.endPos, s.life)
		if err != nil {
			return fmt.Errorf("read journal file %s: %w", s.path, err)
		}
		if plausible && !sound {
			if s.whole != 0 {
				r.setAside(s, r.endPos, s.size)
			}
			wipe = append(wipe, place{r.endSlot, r.endPos})
		}
		if len(wipe) > 0 {
			r.report.TornPath, r.report.TornPos = s.path, r.endPos
		}
	}
	if len(wipe) == 0 {
		return nil
	}
	r.j.opts.Logger.Info("journal ends in a torn group, cut", "path", r.report.TornPath, "pos", r.report.TornPos,
		"group", r.expected, "dropped", len(dropped))
	if r.j.opts.ReadOnly {
		return nil
	}
	touched := make(map[int]bool)
	for _, p := range wipe {
		if _, err := r.slots[p.slot].file.WriteAt(make([]byte, BlockSize), p.pos); err != nil {
			return fmt.Errorf("cut torn end of the journal: %w", err)
		}
		touched[p.slot] = true
	}
	for i := range touched {
		if err := r.slots[i].file.Datasync(); err != nil {
			return fmt.Errorf("cut torn end of the journal: %w", err)
		}
	}
	return nil
}

// settle makes the journal ready for Append.
func (r *replay) settle() error {
	j := r.j
	j.group, j.synced = r.expected-1, r.expected-1
	r.report.Next = Position{j.from.File, r.expected}
	if len(r.slots) > 0 {
		r.report.Next.File = r.slots[r.endSlot].seq
	}
	if j.opts.ReadOnly {
		return nil
	}
	for _, s := range r.slots {
		if s.whole != 0 || s.told {
			if err := s.writeHeader(s.life, s.prev); err != nil {
				return err
			}
		}
	}
	j.prepareMu.Lock()
	defer j.prepareMu.Unlock()
	j.mu.Lock()
	keep := r.slots[:min(r.endSlot+1, len(r.slots))]
	j.free = slices.DeleteFunc(j.free, func(s *slot) bool { return slices.Contains(keep, s) })
	j.live = slices.Clone(keep)
	if n := len(keep); n > 0 {
		j.cur, j.pos = keep[n-1], r.endPos
	}
	j.trim()
	extra := j.removed
	j.mu.Unlock()
	j.remove(extra)
	if j.cur == nil {
		if err := j.prepare(); err != nil {
			return err
		}
		j.mu.Lock()
		j.use(j.next, BlockSize)
		j.next = nil
		j.mu.Unlock()
	}
	r.report.Next = j.publish()
	return nil
}
