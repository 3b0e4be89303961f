//go:build unix

package storedir

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/hapax-dev/hapax/engine/storage"
)

// access rejects a directory in which a user other than root may replace files. It returns warnings
// about permissions that are wider than necessary.
func access(path string, info fs.FileInfo) (warnings []string, err error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, nil
	}
	return accessOf(path, info.Mode().Perm(), stat.Uid, stat.Gid)
}

func accessOf(path string, mode fs.FileMode, uid, gid uint32) (warnings []string, err error) {
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("%w: the directory %s %s", storage.ErrForeign, path, fmt.Sprintf(format, args...))
	}
	if me := os.Geteuid(); uid != 0 && int(uid) != me {
		return refuse("belongs to user %d and this process runs as user %d: change the owner, or give a directory inside of it", uid, me)
	}
	if mode&0o002 != 0 {
		return refuse("is world-writable (mode %v): chmod 0700 it", mode)
	}
	if mode&0o020 != 0 {
		groups, err := os.Getgroups()
		if err != nil {
			return nil, fmt.Errorf("hapax: reading the groups of this process: %w", err)
		}
		if int(gid) != os.Getegid() && !slices.Contains(groups, int(gid)) {
			return refuse("is writable by group %d, in which this process is not (mode %v): chmod 0700 it", gid, mode)
		}
		return []string{fmt.Sprintf("group %d may replace the files of the store in %s (mode %v): if no other process needs that, chmod 0700 it", gid, path, mode)}, nil
	}
	if mode&0o055 != 0 {
		return []string{fmt.Sprintf("other users may list the directory of the store, %s (mode %v), although they cannot read its files: chmod 0700 it", path, mode)}, nil
	}
	return nil, nil
}
