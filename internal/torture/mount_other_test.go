//go:build !linux

package torture

import "errors"

func mount(string, int) error { return errors.ErrUnsupported }

func unmount(string) error { return nil }
