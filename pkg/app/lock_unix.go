//go:build unix

package app

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"lapse/pkg/order"
)

// lockData makes data this process's own. The operating system gives it back however the process ends.
func lockData(data string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(data, "dev.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() { _ = f.Close() }, nil // nothing was written
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, order.Errorf(order.Conflict, "data_in_use", "another `lapse dev` runs on %s", data).
			WithHint("Stop it, or give this one a directory of its own with --data.")
	}
	return nil, order.Errorf(order.Unavailable, "data_not_locked", "%s cannot be locked", f.Name()).Wrap(err)
}
