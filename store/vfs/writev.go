package vfs

// vectorWriter is a File that can write several buffers with one call.
type vectorWriter interface {
	WriteVAt(bufs [][]byte, pos int64) error
}

// WriteV writes bufs one behind the other from pos on, with one call if the system can: a file system does better with one
// large write than with many. After an error any part of it may have been written. bufs itself is used up.
func WriteV(f File, bufs [][]byte, pos int64) error {
	if w, ok := f.(vectorWriter); ok {
		return w.WriteVAt(bufs, pos)
	}
	for _, b := range bufs {
		n, err := f.WriteAt(b, pos)
		if err != nil {
			return err
		}
		pos += int64(n)
	}
	return nil
}
