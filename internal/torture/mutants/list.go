package main

const (
	syncs     = "	if b.force || b.durable && s.opt.Sync == SyncAlways {\n"
	published = "	return s.publish(b, pos), nil\n"
)

var storeCut = test{"./store", "^TestPowerCut$", ""}

var mutants = []mutant{
	{"skip-fsync", "the journal is not synced before a publish is acknowledged", []edit{
		{"store/committer.go", "	if err := s.journal.Sync(); err != nil {\n", "	if err := error(nil); err != nil {\n"},
	}, []test{storeCut, torture}},
	{"ack-before-commit", "acknowledgements go out before the group is synced", []edit{
		{"store/committer.go", syncs, "	b.answer(nil)\n	b.dones = nil\n" + syncs},
	}, []test{storeCut, torture}},
	{"deliver-before-commit", "subscribers are sent messages before the group is synced", []edit{
		{"store/committer.go", published, "	return g, nil\n"},
		{"store/committer.go", syncs, "	g := s.publish(b, pos)\n	s.tail.tell(g, false)\n" + syncs},
	}, []test{storeCut, torture}},
	{"forget-dir-sync", "the names of new segment files are not made durable", []edit{
		{
			"store/checkpoint.go", "	if err := f.atOnce(len(dirs), func(i int) error { return fs.SyncDir(segment.Dir(root, dirs[i])) }); err != nil {\n",
			"	if err := f.atOnce(len(dirs), func(i int) error { return nil }); err != nil {\n",
		},
	}, []test{storeCut, torture}},
	{"forget-segment-sync", "a checkpoint does not sync the segments that it vouches for", []edit{
		{"store/checkpoint.go", "	if err := f.sync(); vfs.Scarce(err) {\n", "	if err := error(nil); vfs.Scarce(err) {\n"},
	}, []test{storeCut, torture}},
	{"early-release", "journal files are given back before the checkpoint is saved", []edit{
		{
			"store/checkpoint.go", "	if err := s.state.Save(cp, extra); err != nil {\n",
			"	s.journal.Release(journalPosition(cp))\n	if err := s.journal.Prepare(); err != nil {\n		return err\n	}\n	if err := s.state.Save(cp, extra); err != nil {\n",
		},
	}, []test{storeCut, torture}},
	{"retry-fsync", "a failed fsync is tried again, and believed", []edit{
		{
			"store/journal/append.go", "	if err := j.cur.file.Datasync(); err != nil {\n",
			"	err := j.cur.file.Datasync()\n	if err != nil {\n		err = j.cur.file.Datasync()\n	}\n	if err != nil {\n",
		},
	}, []test{{"./store/journal", "^TestFailedWritesAndSyncsStopTheJournal$", ""}, {"./internal/torture", "^TestDiskErrors$", "-failures=300"}}},
	{"trust-journal", "a group of the journal with a wrong checksum is taken", []edit{
		{"store/journal/group.go", "	return h, true, crc == h.crc, nil\n", "	return h, true, crc == h.crc || true, nil\n"},
	}, []test{torture, {"./store/journal", "^TestFlippedBits$", ""}}},
	{"trust-record", "a record with a wrong checksum is delivered", []edit{
		{"store/record/record.go", "	if binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {\n", "	if false && binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {\n"},
	}, []test{{"./store/record", "^TestFlippedBits$", ""}, {"./store", "^TestFlippedBits$", ""}}},
	{"trust-ledger", "a ledger entry with a wrong checksum is followed", []edit{
		{"store/ledger/entry.go", "	if binary.LittleEndian.Uint32(b) != checksum(offset, b) {\n", "	if false && binary.LittleEndian.Uint32(b) != checksum(offset, b) {\n"},
	}, []test{{"./store/ledger", "^TestDamage$", ""}, {"./store", "^TestFlippedBits$", ""}}},
	{"swap", "two messages of a feed change places", []edit{
		{"broker/feed/member.go", "		dst = append(dst, s.Item)\n", "		dst = append(dst, s.Item)\n		if k := len(dst); k-n > 1 {\n			dst[k-1], dst[k-2] = dst[k-2], dst[k-1]\n		}\n"},
	}, []test{torture}},
	{"drop-last-cursor", "a clean stop does not save the cursors", []edit{
		{"broker/feed/hub.go", "	wg.Wait()\n	h.saver.flush()\n", "	wg.Wait()\n"},
	}, []test{torture}},
	{"drop-cursors", "cursors are not saved while the broker runs", []edit{
		{"broker/feed/cursor.go", "	if err := s.hub.log.Append(nil, muts, true, done); err != nil {\n", "	if done != nil {\n		return false\n	}\n	if err := s.hub.log.Append(nil, muts, true, done); err != nil {\n"},
	}, []test{torture}},
	{"forget-received-ids", "packet ids of QoS 2 publishes are not saved", []edit{
		{
			"broker/session/publish.go", "	if s.durable {\n		in.muts = append(in.muts, record.Put(record.BucketInflight, receivedKey",
			"	if s.durable && false {\n		in.muts = append(in.muts, record.Put(record.BucketInflight, receivedKey",
		},
	}, []test{torture}},
	{"forget-sent-ids", "packet ids of QoS 2 deliveries are saved under another id", []edit{
		{"broker/session/state.go", "	return record.Put(record.BucketInflight, sentKey(s.id, fl.id), b)\n", "	return record.Put(record.BucketInflight, sentKey(s.id, fl.id^0x4000), b)\n"},
	}, []test{torture}},
	{"lose-subscription", "a subscription of a session is not saved", []edit{
		{
			"broker/session/subscribe.go", "	if s.durable {\n		c.muts = append(c.muts, s.saveSub(sub))\n	}\n	return nil\n}\n\n// subscribeShare",
			"	return nil\n}\n\n// subscribeShare",
		},
	}, []test{torture}},
	{"lose-will", "a Will is not saved with the CONNECT", []edit{
		{"broker/session/attach.go", "		muts = append(muts, s.will.mutation(s.id))\n", "		_ = s.will.mutation(s.id)\n"},
	}, []test{torture}},
	{"lose-retained", "the newest retained message is not saved", []edit{
		{"broker/session/publish.go", "		in.muts = append(in.muts, r.mut)\n	}\n	l.owe(p, nil)\n", "	}\n	l.owe(p, nil)\n"},
	}, []test{torture}},
	{"unprotected", "retention does not spare what queues and sessions still need", []edit{
		{"broker/broker.go", "		return h.Protect()\n", "		return h.Protect() | 1<<62\n"},
	}, []test{torture, {"./broker/feed", "^TestProtect$", ""}}},
	{"lose-handover", "what a consumer that leaves had not acknowledged is taken for done", []edit{
		{
			"broker/feed/member.go", "			s.state, s.m = waiting, nil\n			f.waiting++\n			s.key.sent--\n		}\n	}\n	f.rebalance()\n}\n\n// Reserve",
			"			f.settle(s)\n		}\n	}\n	f.rebalance()\n}\n\n// Reserve",
		},
	}, []test{torture}},
}
