// libfolio: Linux's file I/O path as a C library.
//
// A call has the name and the arguments of the system call, after the handle. It returns the value
// of the system call, or -errno; folio_last_error() says what failed, where and why. Sizes and
// offsets are in bytes. Flags are FOLIO_*: Linux's values on x86-64, on every machine. The manual is
// docs/c-library.md.
//
// Written by cbindgen from crates/folio-c; do not edit.

#ifndef FOLIO_H
#define FOLIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// The working directory as a directory descriptor.
#define FOLIO_AT_FDCWD -100

#define FOLIO_AT_SYMLINK_NOFOLLOW 256

#define FOLIO_AT_REMOVEDIR 512

#define FOLIO_AT_SYMLINK_FOLLOW 1024

#define FOLIO_AT_NO_AUTOMOUNT 2048

#define FOLIO_AT_EMPTY_PATH 4096

#define FOLIO_AT_STATX_FORCE_SYNC 8192

#define FOLIO_AT_STATX_DONT_SYNC 16384

// folio_copy_tree(): from the host.
#define FOLIO_COPY_IN 1

// folio_copy_tree(): to the host.
#define FOLIO_COPY_OUT 2

// folio_copy_tree(): names, content and symbolic links alone.
#define FOLIO_COPY_CONTENT 4

// folio_open(): read only.
#define FOLIO_O_RDONLY 0

#define FOLIO_O_WRONLY 1

#define FOLIO_O_RDWR 2

#define FOLIO_O_CREAT 64

#define FOLIO_O_EXCL 128

#define FOLIO_O_TRUNC 512

#define FOLIO_O_APPEND 1024

#define FOLIO_O_DSYNC 4096

#define FOLIO_O_DIRECTORY 65536

#define FOLIO_O_NOFOLLOW 131072

#define FOLIO_O_NOATIME 262144

// Has no effect: a descriptor of libfolio does not survive execve().
#define FOLIO_O_CLOEXEC 524288

#define FOLIO_O_SYNC 1052672

#define FOLIO_O_PATH 2097152

#define FOLIO_O_TMPFILE 4259840

// folio_lseek(): from the start.
#define FOLIO_SEEK_SET 0

#define FOLIO_SEEK_CUR 1

#define FOLIO_SEEK_END 2

#define FOLIO_SEEK_DATA 3

#define FOLIO_SEEK_HOLE 4

// folio_flock(): a lock that other open files may share.
#define FOLIO_LOCK_SH 1

#define FOLIO_LOCK_EX 2

#define FOLIO_LOCK_NB 4

#define FOLIO_LOCK_UN 8

// folio_fallocate(): keep the size of the file.
#define FOLIO_FALLOC_FL_KEEP_SIZE 1

#define FOLIO_FALLOC_FL_PUNCH_HOLE 2

#define FOLIO_FALLOC_FL_COLLAPSE_RANGE 8

#define FOLIO_FALLOC_FL_ZERO_RANGE 16

#define FOLIO_FALLOC_FL_INSERT_RANGE 32

// folio_renameat2(): fail with -EEXIST if the new name exists.
#define FOLIO_RENAME_NOREPLACE 1

#define FOLIO_RENAME_EXCHANGE 2

#define FOLIO_RENAME_WHITEOUT 4

// folio_setxattr(): fail with -EEXIST if the attribute exists.
#define FOLIO_XATTR_CREATE 1

// folio_setxattr(): fail with -ENODATA if the attribute does not exist.
#define FOLIO_XATTR_REPLACE 2

// folio_utimensat(), in tv_nsec: the current time.
#define FOLIO_UTIME_NOW 1073741823

// folio_utimensat(), in tv_nsec: keep the time.
#define FOLIO_UTIME_OMIT 1073741822

// folio_access(): the file exists.
#define FOLIO_F_OK 0

#define FOLIO_X_OK 1

#define FOLIO_W_OK 2

#define FOLIO_R_OK 4

// The file type in st_mode.
#define FOLIO_S_IFMT 61440

#define FOLIO_S_IFSOCK 49152

#define FOLIO_S_IFLNK 40960

#define FOLIO_S_IFREG 32768

#define FOLIO_S_IFBLK 24576

#define FOLIO_S_IFDIR 16384

#define FOLIO_S_IFCHR 8192

#define FOLIO_S_IFIFO 4096

// The file type in d_type: the directory does not record it.
#define FOLIO_DT_UNKNOWN 0

#define FOLIO_DT_FIFO 1

#define FOLIO_DT_CHR 2

#define FOLIO_DT_DIR 4

#define FOLIO_DT_BLK 6

#define FOLIO_DT_REG 8

#define FOLIO_DT_LNK 10

#define FOLIO_DT_SOCK 12

// folio_statx(): the fields of struct folio_stat.
#define FOLIO_STATX_BASIC_STATS 2047

// folio_statx(): stx_btime.
#define FOLIO_STATX_BTIME 2048

// folio_statx(): stx_mnt_id.
#define FOLIO_STATX_MNT_ID 4096

// folio_mount(): refuse every change with -EROFS, and write nothing to the image.
#define FOLIO_MS_RDONLY 1

#define FOLIO_MS_NOSUID 2

#define FOLIO_MS_NODEV 4

#define FOLIO_MS_NOEXEC 8

#define FOLIO_MS_SYNCHRONOUS 16

#define FOLIO_MS_DIRSYNC 128

#define FOLIO_MS_NOATIME (1 << 10)

#define FOLIO_MS_NODIRATIME (1 << 11)

#define FOLIO_MS_SILENT (1 << 15)

#define FOLIO_MS_RELATIME (1 << 21)

#define FOLIO_MS_STRICTATIME (1 << 24)

#define FOLIO_MS_LAZYTIME (1 << 25)

// folio_mkfs_ext4(): overwrite what the device holds.
#define FOLIO_MKFS_FORCE 1

// A kernel: mounts and caches. A program may have many; they share nothing.
struct folio_kernel;

// A process: descriptors, working directory, credentials and umask. Any thread may use it.
struct folio_process;

// A time: seconds since 1970, and nanoseconds.
struct folio_timespec {
    int64_t tv_sec;
    int64_t tv_nsec;
};

// The attributes of a file.
struct folio_stat {
    // Differs for each mount of the program.
    uint64_t st_dev;
    uint64_t st_ino;
    uint32_t st_mode;
    uint32_t st_nlink;
    uint32_t st_uid;
    uint32_t st_gid;
    // Device number of a device node, for major(3) and minor(3).
    uint64_t st_rdev;
    int64_t st_size;
    int64_t st_blksize;
    // Space in use, in units of 512 bytes.
    int64_t st_blocks;
    struct folio_timespec st_atim;
    struct folio_timespec st_mtim;
    struct folio_timespec st_ctim;
};

// The attributes of a file, with those that stat(2) lacks.
struct folio_statx {
    // FOLIO_STATX_*: the fields that are filled in, whatever was asked for.
    uint32_t stx_mask;
    uint32_t stx_blksize;
    uint32_t stx_nlink;
    uint32_t stx_uid;
    uint32_t stx_gid;
    uint32_t stx_mode;
    uint64_t stx_ino;
    uint64_t stx_size;
    uint64_t stx_blocks;
    struct folio_timespec stx_atime;
    struct folio_timespec stx_btime;
    struct folio_timespec stx_ctime;
    struct folio_timespec stx_mtime;
    uint32_t stx_rdev_major;
    uint32_t stx_rdev_minor;
    uint32_t stx_dev_major;
    uint32_t stx_dev_minor;
    uint64_t stx_mnt_id;
    uint64_t stx_spare[8];
};

// Sizes and free space of a file system.
struct folio_statfs {
    uint64_t f_type;
    uint64_t f_bsize;
    uint64_t f_blocks;
    uint64_t f_bfree;
    uint64_t f_bavail;
    uint64_t f_files;
    uint64_t f_ffree;
    uint64_t f_namelen;
    uint64_t f_spare[4];
};

// A buffer of folio_readv() or folio_writev(): `struct iovec`.
struct folio_iovec {
    void *iov_base;
    size_t iov_len;
};

// Bytes of a file that folio_read_borrowed() lends, until folio_release().
struct folio_borrowed {
    // The bytes in order: `count` slices of memory, to be read only.
    const struct folio_iovec *slices;
    size_t count;
    // For folio_release().
    void *lease;
};

// Options of folio_image_create(); fields that are 0 have their default.
struct folio_image_options {
    // sizeof(struct folio_image_options).
    size_t size;
    // "raw" or "qcow2". By default qcow2 for a name that ends in .qcow2, else raw.
    const char *format;
    // Size of a cluster of qcow2, in bytes.
    uint32_t cluster_bytes;
    // 0.
    uint32_t reserved;
};

// Options of folio_mkfs_ext4(); fields that are 0 have the default of mke2fs(8).
struct folio_mkfs_options {
    // sizeof(struct folio_mkfs_options).
    size_t size;
    // FOLIO_MKFS_FORCE.
    uint32_t flags;
    // Bytes per block: 1024, 2048 or 4096.
    uint32_t block_size;
    // Volume label, at most 16 bytes.
    const char *label;
    // UUID, 16 bytes; random if null.
    const uint8_t *uuid;
    // Bytes of the device per inode.
    uint32_t inode_ratio;
    // Number of inodes.
    uint32_t inode_count;
    // Owner of the root directory.
    uint32_t root_uid;
    uint32_t root_gid;
};

// A device of the program's own. Any thread may make any call at any time, also threads of the
// library. A call returns 0 or -errno, and neither throws nor calls longjmp(). Offsets and lengths
// are multiples of nothing in particular.
struct folio_device_ops {
    // sizeof(struct folio_device_ops).
    size_t size;
    // Reads `count` bytes at `offset`, all of them.
    int (*read)(void *context, void *buf, size_t count, uint64_t offset);
    // Writes `count` bytes at `offset`, all of them. Null for a device that is read only.
    int (*write)(void *context, const void *buf, size_t count, uint64_t offset);
    // Makes earlier writes survive a power cut. Null if they do without it.
    int (*flush)(void *context);
    // Notes that a range is no longer needed. Null if that is of no use.
    int (*discard)(void *context, uint64_t offset, uint64_t count);
    // Returns the size in bytes, which does not change.
    uint64_t (*device_size)(void *context);
    // Called once, after the last other call. May be null.
    void (*release)(void *context);
};

// Options of folio_kernel_new(); fields that are 0 have their default.
struct folio_kernel_options {
    // sizeof(struct folio_kernel_options).
    size_t size;
    // Memory for cached pages, inodes and names, in bytes.
    uint64_t cache_bytes;
    // Age in milliseconds from which background threads write dirty pages.
    uint64_t dirty_expire_ms;
    // 1: dirty pages are written by sync calls and when memory is needed, not in the background.
    uint32_t no_background_writeback;
    // 0.
    uint32_t reserved;
};

// One entry of a directory, as folio_getdents64() stores it: d_reclen bytes, the name ends in a
// zero byte.
struct folio_dirent {
    uint64_t d_ino;
    // Position of the next entry, for folio_lseek().
    int64_t d_off;
    uint16_t d_reclen;
    // FOLIO_DT_*.
    uint8_t d_type;
    // Only the bytes up to d_reclen are there.
    char d_name[256];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// stat(2).
int folio_stat(const struct folio_process *process, const char *path, struct folio_stat *statbuf);

// lstat(2).
int folio_lstat(const struct folio_process *process, const char *path, struct folio_stat *statbuf);

// fstatat(2), with FOLIO_AT_SYMLINK_NOFOLLOW and FOLIO_AT_EMPTY_PATH.
int folio_fstatat(const struct folio_process *process,
                  int dirfd,
                  const char *path,
                  struct folio_stat *statbuf,
                  int flags);

// fstat(2).
int folio_fstat(const struct folio_process *process, int fd, struct folio_stat *statbuf);

// statx(2). Every field is filled in, whatever `mask` asks for.
int folio_statx(const struct folio_process *process,
                int dirfd,
                const char *path,
                int flags,
                uint32_t mask,
                struct folio_statx *statxbuf);

// truncate(2).
int folio_truncate(const struct folio_process *process, const char *path, int64_t length);

// chmod(2).
int folio_chmod(const struct folio_process *process, const char *path, uint32_t mode);

// fchmod(2).
int folio_fchmod(const struct folio_process *process, int fd, uint32_t mode);

// fchmodat(2), without flags.
int folio_fchmodat(const struct folio_process *process,
                   int dirfd,
                   const char *path,
                   uint32_t mode);

// chown(2); -1 keeps an id.
int folio_chown(const struct folio_process *process,
                const char *path,
                uint32_t owner,
                uint32_t group);

// lchown(2); -1 keeps an id.
int folio_lchown(const struct folio_process *process,
                 const char *path,
                 uint32_t owner,
                 uint32_t group);

// fchown(2); -1 keeps an id.
int folio_fchown(const struct folio_process *process, int fd, uint32_t owner, uint32_t group);

// fchownat(2); -1 keeps an id.
int folio_fchownat(const struct folio_process *process,
                   int dirfd,
                   const char *path,
                   uint32_t owner,
                   uint32_t group,
                   int flags);

// utimensat(2): `times` is an array of two, access and modification, or null for the current
// time. FOLIO_UTIME_NOW and FOLIO_UTIME_OMIT are values of tv_nsec. A null `path` means the file
// `dirfd`.
int folio_utimensat(const struct folio_process *process,
                    int dirfd,
                    const char *path,
                    const struct folio_timespec *times,
                    int flags);

// statfs(2).
int folio_statfs(const struct folio_process *process, const char *path, struct folio_statfs *buf);

// fstatfs(2).
int folio_fstatfs(const struct folio_process *process, int fd, struct folio_statfs *buf);

// Reads as pread(2) does, without a copy: stores where the cached bytes are, up to `count` bytes
// from `offset` on; fewer at the end of the file and after 2 MiB. Returns the number of bytes.
// After success, also of 0 bytes, folio_release() is due.
//
// The bytes are the file's own, as with mmap(2) and MAP_SHARED: a write to the file changes them.
// Neither truncation nor reclaim reuses their memory, which also outlives the process and the
// kernel.
ssize_t folio_read_borrowed(const struct folio_process *process,
                            int fd,
                            struct folio_borrowed *borrowed,
                            size_t count,
                            int64_t offset);

// Returns borrowed bytes; they may not be used afterwards. Any thread may release them.
int folio_release(struct folio_borrowed *borrowed);

// open(2). `mode` counts only if the call creates a file.
int folio_open(const struct folio_process *process, const char *path, int flags, uint32_t mode);

// openat(2). `mode` counts only if the call creates a file.
int folio_openat(const struct folio_process *process,
                 int dirfd,
                 const char *path,
                 int flags,
                 uint32_t mode);

// read(2).
ssize_t folio_read(const struct folio_process *process, int fd, void *buf, size_t count);

// pread(2).
ssize_t folio_pread(const struct folio_process *process,
                    int fd,
                    void *buf,
                    size_t count,
                    int64_t offset);

// write(2).
ssize_t folio_write(const struct folio_process *process, int fd, const void *buf, size_t count);

// pwrite(2).
ssize_t folio_pwrite(const struct folio_process *process,
                     int fd,
                     const void *buf,
                     size_t count,
                     int64_t offset);

// lseek(2).
int64_t folio_lseek(const struct folio_process *process, int fd, int64_t offset, int whence);

// getdents64(2): fills `dirp` with struct folio_dirent, and returns the number of bytes; 0 at the
// end of the directory. `dirp` is aligned to 8 bytes.
ssize_t folio_getdents64(const struct folio_process *process, int fd, void *dirp, size_t count);

// ftruncate(2).
int folio_ftruncate(const struct folio_process *process, int fd, int64_t length);

// fallocate(2).
int folio_fallocate(const struct folio_process *process,
                    int fd,
                    int mode,
                    int64_t offset,
                    int64_t length);

// fsync(2).
int folio_fsync(const struct folio_process *process, int fd);

// fdatasync(2).
int folio_fdatasync(const struct folio_process *process, int fd);

// syncfs(2).
int folio_syncfs(const struct folio_process *process, int fd);

// flock(2). Locks exclude open files of the same kernel only, and a wait ends with the lock.
int folio_flock(const struct folio_process *process, int fd, int operation);

// Creates an image of `length` bytes that reads as zeros. Fails with -EEXIST if the file exists.
// `options` may be null.
int folio_image_create(const char *path,
                       uint64_t length,
                       const struct folio_image_options *options);

// Makes an empty ext4 file system on the image `source` (IMAGE, or IMAGE@N for its Nth
// partition), which exists. Fails with -EEXIST unless its first 128 KiB are zeros, or
// FOLIO_MKFS_FORCE is set. `options` may be null.
int folio_mkfs_ext4(const char *source, const struct folio_mkfs_options *options);

// Makes an empty ext4 file system on a device of the program's own, as folio_mkfs_ext4() does.
// `ops->release` is called in the end.
int folio_mkfs_ext4_device(const struct folio_device_ops *ops,
                           void *context,
                           const struct folio_mkfs_options *options);

// Makes a kernel with an empty ramfs as its root. `options` may be null. Returns null after a
// failure.
struct folio_kernel *folio_kernel_new(const struct folio_kernel_options *options);

// Frees a kernel: syncs every file system and returns the first error. The file systems are
// unmounted once the kernel's processes are freed too. Null is ignored.
int folio_kernel_free(struct folio_kernel *kernel);

// Mounts a file system over the directory `target`, as mount(2) does. `type` is "auto", with the
// image `source` (IMAGE, or IMAGE@N for its Nth partition) of any file system that Folio reads:
// ext2, ext3, ext4, FAT, squashfs, erofs; "ext4", to accept ext2, ext3 and ext4 alone; "hostfs",
// with a directory of the host; "ramfs" or "tmpfs", without a source. `flags` combines FOLIO_MS_*,
// and `data` has options of the file system as `mount -o` writes them; it may be null.
int folio_mount(const struct folio_kernel *kernel,
                const char *source,
                const char *target,
                const char *type,
                uint64_t flags,
                const char *data);

// Mounts the file system on a device of the program's own. `ops` is copied; `context` is
// passed to its calls. After a failure `ops->release` was called, too.
int folio_mount_device(const struct folio_kernel *kernel,
                       const struct folio_device_ops *ops,
                       void *context,
                       const char *target,
                       uint64_t flags,
                       const char *data);

// Syncs and detaches the file system mounted at `target`. Fails with -EBUSY while files on it are
// open.
int folio_umount(const struct folio_kernel *kernel, const char *target);

// Returns what the last failed call of the calling thread reports: operation, place and cause
// ("open: /a/b: No such file or directory"). Empty if no call of the thread failed. A successful
// call does not change it. Valid until the thread's next failed call, or its end.
const char *folio_last_error(void);

// mkdir(2).
int folio_mkdir(const struct folio_process *process, const char *path, uint32_t mode);

// mkdirat(2).
int folio_mkdirat(const struct folio_process *process, int dirfd, const char *path, uint32_t mode);

// mknodat(2). `dev` is encoded as by makedev(3).
int folio_mknodat(const struct folio_process *process,
                  int dirfd,
                  const char *path,
                  uint32_t mode,
                  uint64_t dev);

// unlink(2).
int folio_unlink(const struct folio_process *process, const char *path);

// unlinkat(2).
int folio_unlinkat(const struct folio_process *process, int dirfd, const char *path, int flags);

// rmdir(2).
int folio_rmdir(const struct folio_process *process, const char *path);

// rename(2).
int folio_rename(const struct folio_process *process, const char *oldpath, const char *newpath);

// renameat2(2).
int folio_renameat2(const struct folio_process *process,
                    int olddirfd,
                    const char *oldpath,
                    int newdirfd,
                    const char *newpath,
                    uint32_t flags);

// link(2).
int folio_link(const struct folio_process *process, const char *oldpath, const char *newpath);

// linkat(2).
int folio_linkat(const struct folio_process *process,
                 int olddirfd,
                 const char *oldpath,
                 int newdirfd,
                 const char *newpath,
                 int flags);

// symlink(2).
int folio_symlink(const struct folio_process *process, const char *target, const char *linkpath);

// symlinkat(2).
int folio_symlinkat(const struct folio_process *process,
                    const char *target,
                    int newdirfd,
                    const char *linkpath);

// readlink(2): the result has no zero byte, and is cut off after `bufsiz` bytes.
ssize_t folio_readlink(const struct folio_process *process,
                       const char *path,
                       char *buf,
                       size_t bufsiz);

// readlinkat(2): the result has no zero byte, and is cut off after `bufsiz` bytes.
ssize_t folio_readlinkat(const struct folio_process *process,
                         int dirfd,
                         const char *path,
                         char *buf,
                         size_t bufsiz);

// access(2), with FOLIO_R_OK, FOLIO_W_OK and FOLIO_X_OK.
int folio_access(const struct folio_process *process, const char *path, int mode);

// Makes a process whose root and working directory are `/`, and whose umask is 022. User 0 has all
// capabilities. Returns null after a failure.
struct folio_process *folio_process_new(const struct folio_kernel *kernel,
                                        uint32_t uid,
                                        uint32_t gid);

// Ends a process and closes its descriptors. Null is ignored.
int folio_process_free(struct folio_process *process);

// close(2).
int folio_close(const struct folio_process *process, int fd);

// dup(2).
int folio_dup(const struct folio_process *process, int fd);

// chdir(2).
int folio_chdir(const struct folio_process *process, const char *path);

// getcwd(2): returns the length with the zero byte.
ssize_t folio_getcwd(const struct folio_process *process, char *buf, size_t size);

// umask(2).
int folio_umask(const struct folio_process *process, uint32_t mask);

// sync(2), but returns the first error.
int folio_sync(const struct folio_process *process);

// readv(2).
ssize_t folio_readv(const struct folio_process *process,
                    int fd,
                    const struct folio_iovec *iov,
                    int iovcnt);

// preadv(2).
ssize_t folio_preadv(const struct folio_process *process,
                     int fd,
                     const struct folio_iovec *iov,
                     int iovcnt,
                     int64_t offset);

// writev(2).
ssize_t folio_writev(const struct folio_process *process,
                     int fd,
                     const struct folio_iovec *iov,
                     int iovcnt);

// pwritev(2).
ssize_t folio_pwritev(const struct folio_process *process,
                      int fd,
                      const struct folio_iovec *iov,
                      int iovcnt,
                      int64_t offset);

// sendfile(2).
ssize_t folio_sendfile(const struct folio_process *process,
                       int out_fd,
                       int in_fd,
                       int64_t *offset,
                       size_t count);

// copy_file_range(2).
ssize_t folio_copy_file_range(const struct folio_process *process,
                              int fd_in,
                              int64_t *off_in,
                              int fd_out,
                              int64_t *off_out,
                              size_t size,
                              uint32_t flags);

// Copies a file, or a directory with everything below it, between the host and what the process
// sees. `flags` has FOLIO_COPY_IN (`from` is a path of the host) or FOLIO_COPY_OUT (`to` is one).
// The copy has the path `to`, whose parent exists; if both are directories, the contents of `from`
// are added to those of `to`. Modes, owners, times, extended attributes and hard links are kept,
// unless FOLIO_COPY_CONTENT is given, too: then new files have the modes that the umask of the
// program leaves. Symbolic links are copied as links; on the host, those that were there before
// are followed. After the failure of one file the copy continues, and the result is the first
// failure. One that ends the copy, as ENOSPC, is returned instead. folio_last_error() names the
// file.
int folio_copy_tree(const struct folio_process *process,
                    const char *from,
                    const char *to,
                    int flags);

// getxattr(2): with a size of 0 returns the length of the value.
ssize_t folio_getxattr(const struct folio_process *process,
                       const char *path,
                       const char *name,
                       void *value,
                       size_t size);

// lgetxattr(2): with a size of 0 returns the length of the value.
ssize_t folio_lgetxattr(const struct folio_process *process,
                        const char *path,
                        const char *name,
                        void *value,
                        size_t size);

// fgetxattr(2): with a size of 0 returns the length of the value.
ssize_t folio_fgetxattr(const struct folio_process *process,
                        int fd,
                        const char *name,
                        void *value,
                        size_t size);

// setxattr(2), with FOLIO_XATTR_*.
int folio_setxattr(const struct folio_process *process,
                   const char *path,
                   const char *name,
                   const void *value,
                   size_t size,
                   int flags);

// lsetxattr(2), with FOLIO_XATTR_*.
int folio_lsetxattr(const struct folio_process *process,
                    const char *path,
                    const char *name,
                    const void *value,
                    size_t size,
                    int flags);

// fsetxattr(2), with FOLIO_XATTR_*.
int folio_fsetxattr(const struct folio_process *process,
                    int fd,
                    const char *name,
                    const void *value,
                    size_t size,
                    int flags);

// listxattr(2): with a size of 0 returns the length of the list.
ssize_t folio_listxattr(const struct folio_process *process,
                        const char *path,
                        char *list,
                        size_t size);

// llistxattr(2): with a size of 0 returns the length of the list.
ssize_t folio_llistxattr(const struct folio_process *process,
                         const char *path,
                         char *list,
                         size_t size);

// flistxattr(2): with a size of 0 returns the length of the list.
ssize_t folio_flistxattr(const struct folio_process *process, int fd, char *list, size_t size);

// removexattr(2).
int folio_removexattr(const struct folio_process *process, const char *path, const char *name);

// lremovexattr(2).
int folio_lremovexattr(const struct folio_process *process, const char *path, const char *name);

// fremovexattr(2).
int folio_fremovexattr(const struct folio_process *process, int fd, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOLIO_H */
