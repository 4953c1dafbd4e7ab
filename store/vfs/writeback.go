package vfs

// writebacker is a File that can begin to write bytes to the disk without waiting for them.
type writebacker interface {
	Writeback(pos, n int64) error
}

// writebackMin is the least that is worth a call.
const writebackMin = 64 << 10

// Writeback begins to write the whole pages of f in [pos, pos+n) to the disk, if the system can, so that a later Datasync
// has less to wait for. It promises nothing and returns the position up to which it began, from which the next call may go on. An
// error is Datasync's to report: this does not take it away.
func Writeback(f File, pos, n int64) (end int64) {
	const page = 4096
	end = (pos + n) / page * page
	if w, ok := f.(writebacker); ok && end-pos >= writebackMin && w.Writeback(pos, end-pos) == nil {
		return end
	}
	return pos
}
