/*
 * Every call, its result and its errno, for two backends: libfolio on an ext4 image, and with
 * -DKERNEL the system calls on a mount of the same image. The outputs must be equal.
 *
 *     conformance IMAGE        libfolio
 *     conformance DIRECTORY    the kernel, as root, in a chroot of the mount
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "backend.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(const char *call, long value)
{
	if (value < 0)
		printf("%s = -%s\n", call, strerrorname_np((int)-value));
	else
		printf("%s = %ld\n", call, value);
}

static int show_fd(const char *call, long value)
{
	if (value < 0)
		show(call, value);
	else
		printf("%s = a descriptor\n", call);
	return (int)value;
}

/* Prints a call and its value. */
#define SHOW(name, ...) show(#name "(" #__VA_ARGS__ ")", CALL(name, __VA_ARGS__))
/* The same for a call that returns a descriptor; its number depends on the backend. */
#define SHOW_FD(name, ...) show_fd(#name "(" #__VA_ARGS__ ")", CALL(name, __VA_ARGS__))

static void show_stat(const char *what, const STRUCT(stat) *found)
{
	printf("%s: mode %o, links %u, owner %u:%u, size %lld, blocks %lld, of %ld\n", what,
	       (unsigned)found->st_mode, (unsigned)found->st_nlink, (unsigned)found->st_uid,
	       (unsigned)found->st_gid, (long long)found->st_size, (long long)found->st_blocks,
	       (long)found->st_blksize);
}

static void show_path(const char *path)
{
	STRUCT(stat) found;
	if (CALL(lstat, path, &found) == 0)
		show_stat(path, &found);
	else
		printf("%s: not found\n", path);
}

static void show_bytes(const char *what, const char *bytes, size_t len)
{
	printf("%s: ", what);
	for (size_t at = 0; at < len; at++)
		putchar(bytes[at] >= ' ' && bytes[at] < 127 ? bytes[at] : '.');
	putchar('\n');
}

static void names(void)
{
	char text[64];
	SHOW(mkdir, "/d", 0777);
	SHOW(mkdir, "/d", 0777);
	SHOW(mkdir, "/none/d", 0777);
	SHOW(mkdir, "", 0777);
	SHOW(mkdir, "/d/.", 0777);
	SHOW(umask, 077);
	SHOW(mkdir, "/d/private", 0777);
	SHOW(umask, 022);
	show_path("/d/private");
	SHOW(symlink, "private", "/d/link");
	SHOW(symlink, "", "/d/empty");
	SHOW(symlink, "x", "/d/link");
	SHOW(symlink, "loop", "/loop");
	SHOW(readlink, "/d/link", text, sizeof text);
	SHOW(readlink, "/d/link", text, 3);
	show_bytes("target", text, 3);
	SHOW(readlink, "/d/link", text, 0);
	SHOW(readlink, "/d", text, sizeof text);
	SHOW(readlink, "/loop/x", text, sizeof text);
	SHOW_FD(open, "/loop", F(O_RDONLY), 0);
	int file = SHOW_FD(open, "/d/file", F(O_CREAT) | F(O_EXCL) | F(O_RDWR), 0666);
	SHOW_FD(open, "/d/file", F(O_CREAT) | F(O_EXCL) | F(O_RDWR), 0666);
	SHOW(close, file);
	SHOW(close, file);
	SHOW(close, -1);
	SHOW(link, "/d/file", "/d/second");
	SHOW(link, "/d/file", "/d/second");
	SHOW(link, "/d", "/d2");
	SHOW(link, "/none", "/d2");
	show_path("/d/file");
	SHOW(rename, "/d/second", "/third");
	SHOW(rename, "/d", "/d/private/d");
	SHOW(rename, "/d/private", "/third");
	SHOW(rename, "/third", "/d");
	SHOW(rename, "/none", "/x");
	SHOW(renameat2, F(AT_FDCWD), "/third", F(AT_FDCWD), "/d/file", F(RENAME_NOREPLACE));
	SHOW(renameat2, F(AT_FDCWD), "/third", F(AT_FDCWD), "/d/private", F(RENAME_EXCHANGE));
	SHOW(renameat2, F(AT_FDCWD), "/third", F(AT_FDCWD), "/d/private", F(RENAME_EXCHANGE));
	SHOW(renameat2, F(AT_FDCWD), "/third", F(AT_FDCWD), "/x", 64);
	SHOW(unlink, "/third");
	SHOW(unlink, "/third");
	SHOW(unlink, "/d");
	SHOW(unlink, "/d/file/");
	SHOW(rmdir, "/d");
	SHOW(rmdir, "/d/file");
	SHOW(rmdir, "/d/.");
	SHOW(unlinkat, F(AT_FDCWD), "/d/private", F(AT_REMOVEDIR));
	SHOW(unlinkat, F(AT_FDCWD), "/d/link", 0x8000);
	SHOW(mknodat, F(AT_FDCWD), "/d/fifo", F(S_IFIFO) | 0640, 0);
	SHOW(mknodat, F(AT_FDCWD), "/d/null", F(S_IFCHR) | 0666, makedev(1, 3));
	SHOW(mknodat, F(AT_FDCWD), "/d/dir", F(S_IFDIR) | 0666, 0);
	show_path("/d/fifo");
	STRUCT(stat) found;
	SHOW(lstat, "/d/null", &found);
	printf("/d/null: device %u:%u\n", major(found.st_rdev), minor(found.st_rdev));
	SHOW(chdir, "/d/file");
	SHOW(chdir, "/d");
	SHOW(getcwd, text, sizeof text);
	SHOW(getcwd, text, 2);
	SHOW(access, "file", F(R_OK) | F(W_OK));
	SHOW(access, "file", F(X_OK));
	SHOW(access, "none", F(F_OK));
	SHOW(access, "file", 64);
	SHOW(chdir, "/");
	char name[300];
	memset(name, 'n', sizeof name);
	name[256] = 0;
	show("mkdir(name of 256 bytes)", CALL(mkdir, name, 0755));
	name[255] = 0;
	show("mkdir(name of 255 bytes)", CALL(mkdir, name, 0755));
	show("rmdir(name of 255 bytes)", CALL(rmdir, name));
}

static void at_calls(void)
{
	char text[64];
	STRUCT(stat) found;
	int dir = SHOW_FD(open, "/d", F(O_RDONLY) | F(O_DIRECTORY), 0);
	int path = SHOW_FD(open, "/d/file", F(O_PATH), 0);
	int file = SHOW_FD(openat, dir, "file", F(O_RDWR), 0);
	SHOW_FD(openat, file, "file", F(O_RDWR), 0);
	SHOW_FD(openat, -1, "file", F(O_RDWR), 0);
	SHOW_FD(openat, dir, "link", F(O_RDONLY) | F(O_NOFOLLOW), 0);
	SHOW_FD(openat, dir, "fifo", F(O_RDONLY) | F(O_DIRECTORY), 0);
	SHOW(mkdirat, dir, "at", 0700);
	SHOW(symlinkat, "at", dir, "to-at");
	SHOW(readlinkat, dir, "to-at", text, sizeof text);
	SHOW(linkat, dir, "file", dir, "at/file", 0);
	SHOW(linkat, path, "", dir, "at/by-descriptor", F(AT_EMPTY_PATH));
	SHOW(linkat, dir, "to-at", dir, "at/none", 1 << 20);
	SHOW(fstatat, dir, "at/file", &found, 0);
	show_stat("at/file", &found);
	SHOW(fstatat, dir, "to-at", &found, F(AT_SYMLINK_NOFOLLOW));
	SHOW(fstatat, dir, "", &found, F(AT_EMPTY_PATH));
	SHOW(fstatat, dir, "", &found, 0);
	SHOW(fstatat, path, "", &found, F(AT_EMPTY_PATH));
	SHOW(fstatat, dir, "file", &found, 1 << 20);
	SHOW(fchmodat, dir, "file", 0640);
	SHOW(fchmodat, dir, "none", 0640);
	SHOW(fchownat, dir, "to-at", 7, 8, F(AT_SYMLINK_NOFOLLOW));
	show_path("/d/to-at");
	SHOW(unlinkat, dir, "at", 0);
	SHOW(unlinkat, dir, "at", F(AT_REMOVEDIR));
	SHOW(unlinkat, dir, "at/file", 0);
	SHOW(unlinkat, dir, "at/by-descriptor", 0);
	SHOW(unlinkat, dir, "at", F(AT_REMOVEDIR));
	SHOW(read, path, text, 1);
	SHOW(read, dir, text, 1);
	SHOW(fchmod, path, 0600);
	SHOW(fsync, path);
	SHOW(fstat, path, &found);
	SHOW(close, path);
	SHOW(close, file);
	SHOW(close, dir);
}

static void data(void)
{
	char text[64] = { 0 };
	STRUCT(iovec) parts[2] = { { text, 3 }, { text + 10, 5 } };
	STRUCT(stat) found;
	int fd = SHOW_FD(open, "/data", F(O_CREAT) | F(O_RDWR), 0644);
	int reader = SHOW_FD(open, "/data", F(O_RDONLY), 0);
	int end = SHOW_FD(open, "/data", F(O_WRONLY) | F(O_APPEND), 0);
	SHOW(write, fd, "0123456789", 10);
	SHOW(write, reader, "x", 1);
	SHOW(read, end, text, 1);
	SHOW(read, fd, text, 5);
	SHOW(lseek, fd, 2, F(SEEK_SET));
	SHOW(read, fd, text, 5);
	show_bytes("read", text, 5);
	SHOW(pread, fd, text, sizeof text, 8);
	SHOW(pread, fd, text, sizeof text, 10);
	SHOW(pread, fd, text, sizeof text, -1);
	SHOW(pwrite, fd, "AB", 2, 4);
	SHOW(pwrite, fd, "AB", 2, -1);
	SHOW(pwrite, end, "end", 3, 0);
	SHOW(lseek, fd, 0, F(SEEK_CUR));
	SHOW(lseek, fd, -2, F(SEEK_END));
	SHOW(lseek, fd, -100, F(SEEK_CUR));
	SHOW(lseek, fd, 0, 9);
	SHOW(lseek, 99, 0, F(SEEK_SET));
	SHOW(preadv, fd, parts, 2, 1);
	show_bytes("parts", text, 3);
	show_bytes("parts", text + 10, 5);
	SHOW(preadv, fd, parts, -1, 1);
	SHOW(preadv, fd, parts, 2, -1);
	SHOW(pwritev, fd, parts, 2, 20);
	SHOW(pwritev, reader, parts, 2, 20);
	SHOW(readv, reader, parts, 2);
	SHOW(writev, end, parts, 2);
	SHOW(pread, fd, text, sizeof text, 0);
	show_bytes("all", text, 36);
	SHOW(ftruncate, fd, 5);
	SHOW(ftruncate, reader, 5);
	SHOW(ftruncate, fd, -1);
	SHOW(truncate, "/data", 1 << 20);
	SHOW(truncate, "/data", -1);
	SHOW(truncate, "/d", 0);
	SHOW(truncate, "/none", 0);
	SHOW(lseek, fd, 0, F(SEEK_DATA));
	SHOW(lseek, fd, 0, F(SEEK_HOLE));
	SHOW(lseek, fd, 1 << 20, F(SEEK_DATA));
	SHOW(lseek, fd, 8192, F(SEEK_DATA));
	SHOW(fallocate, fd, 0, 1 << 20, 1 << 16);
	SHOW(fallocate, fd, F(FALLOC_FL_KEEP_SIZE), 2 << 20, 1 << 16);
	SHOW(fallocate, fd, F(FALLOC_FL_PUNCH_HOLE) | F(FALLOC_FL_KEEP_SIZE), 0, 4096);
	SHOW(fallocate, fd, F(FALLOC_FL_PUNCH_HOLE), 0, 4096);
	SHOW(fallocate, fd, F(FALLOC_FL_ZERO_RANGE), 4096, 4096);
	SHOW(fallocate, fd, F(FALLOC_FL_COLLAPSE_RANGE), 0, 4096);
	SHOW(fallocate, fd, F(FALLOC_FL_COLLAPSE_RANGE), 1, 4096);
	SHOW(fallocate, fd, F(FALLOC_FL_INSERT_RANGE), 4096, 4096);
	SHOW(fallocate, fd, 0, 0, 0);
	SHOW(fallocate, fd, 0, -1, 1);
	SHOW(fallocate, fd, 0x800, 0, 1);
	SHOW(fallocate, reader, 0, 0, 1);
	SHOW(fallocate, 99, 0, 0, 1);
	SHOW(fsync, fd);
	SHOW(fdatasync, fd);
	SHOW(syncfs, fd);
	SHOW(fsync, 99);
	SHOW(syncfs, 99);
	SHOW(fstat, fd, &found);
	show_stat("/data", &found);
	SHOW(fstat, 99, &found);
	int copy = SHOW_FD(dup, fd);
	SHOW(lseek, fd, 77, F(SEEK_SET));
	SHOW(lseek, copy, 0, F(SEEK_CUR));
	SHOW_FD(dup, 99);
	SHOW(close, copy);
	SHOW(close, end);
	SHOW(close, reader);
	SHOW(close, fd);
}

static void copies(void)
{
	char text[32] = { 0 };
	int64_t from = 2, to = 30;
	int in = SHOW_FD(open, "/in", F(O_CREAT) | F(O_RDWR), 0644);
	int out = SHOW_FD(open, "/out", F(O_CREAT) | F(O_RDWR), 0644);
	int dir = SHOW_FD(open, "/d", F(O_RDONLY), 0);
	SHOW(write, in, "copied bytes", 12);
	SHOW(sendfile, out, in, OFFSET(&from), 4);
	printf("from %lld\n", (long long)from);
	SHOW(sendfile, out, in, NULL, 100);
	SHOW(lseek, in, 0, F(SEEK_SET));
	SHOW(sendfile, out, in, NULL, 100);
	SHOW(sendfile, out, dir, NULL, 1);
	SHOW(sendfile, 99, in, NULL, 1);
	from = 0;
	SHOW(copy_file_range, in, OFFSET(&from), out, OFFSET(&to), 6, 0);
	printf("from %lld to %lld\n", (long long)from, (long long)to);
	SHOW(copy_file_range, in, OFFSET(&from), out, NULL, 3, 0);
	SHOW(copy_file_range, in, NULL, out, NULL, 3, 1);
	SHOW(copy_file_range, dir, NULL, out, NULL, 3, 0);
	from = 0;
	to = 1;
	SHOW(copy_file_range, in, OFFSET(&from), in, OFFSET(&to), 6, 0);
	SHOW(pread, out, text, sizeof text, 0);
	show_bytes("out", text, 32);
	SHOW(flock, in, F(LOCK_EX));
	int other = SHOW_FD(open, "/in", F(O_RDONLY), 0);
	SHOW(flock, other, F(LOCK_SH) | F(LOCK_NB));
	SHOW(flock, in, F(LOCK_SH));
	SHOW(flock, other, F(LOCK_SH) | F(LOCK_NB));
	SHOW(flock, in, F(LOCK_EX) | F(LOCK_NB));
	SHOW(flock, other, F(LOCK_UN));
	SHOW(flock, other, 64);
	SHOW(flock, 99, F(LOCK_SH));
	SHOW(close, other);
	SHOW(close, dir);
	SHOW(close, out);
	SHOW(close, in);
}

static void attributes(void)
{
	STRUCT(stat) found;
	STRUCT(statx) more;
	STRUCT(statfs) sizes;
	STRUCT(timespec) times[2] = { { 1000, 5 }, { 2000, 6 } };
	int fd = SHOW_FD(open, "/a", F(O_CREAT) | F(O_RDWR), 0644);
	SHOW(chmod, "/a", 06755);
	SHOW(chown, "/a", 5, 6);
	show_path("/a");
	SHOW(chmod, "/a", 04711);
	SHOW(chown, "/a", -1, 9);
	show_path("/a");
	SHOW(fchmod, fd, 0600);
	SHOW(fchown, fd, 1, -1);
	SHOW(lchown, "/loop", 3, 4);
	show_path("/loop");
	SHOW(chmod, "/loop", 0600);
	SHOW(chmod, "/none", 0600);
	SHOW(fchmod, 99, 0600);
	SHOW(fchownat, F(AT_FDCWD), "/a", 1, 1, 1 << 20);
	SHOW(utimensat, F(AT_FDCWD), "/a", times, 0);
	SHOW(stat, "/a", &found);
	printf("times %lld.%ld %lld.%ld\n", (long long)found.st_atim.tv_sec,
	       (long)found.st_atim.tv_nsec, (long long)found.st_mtim.tv_sec,
	       (long)found.st_mtim.tv_nsec);
	times[0].tv_nsec = F(UTIME_OMIT);
	times[1].tv_sec = 3000;
	SHOW(utimensat, fd, NULL, times, 0);
	SHOW(statx, F(AT_FDCWD), "/a", 0, F(STATX_BASIC_STATS) | F(STATX_BTIME), &more);
	printf("times %lld %lld, mode %o, size %lld, has btime %d\n",
	       (long long)more.stx_atime.tv_sec, (long long)more.stx_mtime.tv_sec,
	       (unsigned)more.stx_mode, (long long)more.stx_size,
	       (more.stx_mask & F(STATX_BTIME)) != 0 && more.stx_btime.tv_sec > 0);
	times[1].tv_nsec = F(UTIME_OMIT);
	SHOW(utimensat, F(AT_FDCWD), "/none", times, 0);
	times[1].tv_nsec = 1000000000;
	SHOW(utimensat, F(AT_FDCWD), "/a", times, 0);
	SHOW(utimensat, F(AT_FDCWD), "/none", NULL, 0);
	SHOW(utimensat, F(AT_FDCWD), "/a", NULL, 1 << 20);
	SHOW(statx, fd, "", F(AT_EMPTY_PATH), F(STATX_BASIC_STATS), &more);
	SHOW(statx, F(AT_FDCWD), "/none", 0, F(STATX_BASIC_STATS), &more);
	SHOW(statx, F(AT_FDCWD), "/a", 1 << 20, F(STATX_BASIC_STATS), &more);
	SHOW(statx, F(AT_FDCWD), "/a", 0x6000, F(STATX_BASIC_STATS), &more);
	SHOW(statx, F(AT_FDCWD), "/a", 0, 1U << 31, &more);
	SHOW(stat, "/a/", &found);
	SHOW(stat, "/a/b", &found);
	SHOW(stat, "", &found);
	SHOW(lstat, "/loop", &found);
	SHOW(stat, "/loop", &found);
	SHOW(statfs, "/", &sizes);
	printf("type %lx, %ld x %lld, %lld inodes, names of %ld\n", (long)sizes.f_type,
	       (long)sizes.f_bsize, (long long)sizes.f_blocks, (long long)sizes.f_files,
	       (long)sizes.f_namelen);
	SHOW(statfs, "/none", &sizes);
	SHOW(fstatfs, fd, &sizes);
	SHOW(fstatfs, 99, &sizes);
	SHOW(close, fd);
}

static void xattrs(void)
{
	char text[64] = { 0 };
	int fd = SHOW_FD(open, "/x", F(O_CREAT) | F(O_RDWR), 0644);
	SHOW(setxattr, "/x", "user.one", "first", 5, 0);
	SHOW(setxattr, "/x", "user.one", "again", 5, F(XATTR_CREATE));
	SHOW(setxattr, "/x", "user.two", "x", 1, F(XATTR_REPLACE));
	SHOW(fsetxattr, fd, "user.two", "", 0, 0);
	SHOW(getxattr, "/x", "user.one", text, sizeof text);
	show_bytes("value", text, 5);
	SHOW(getxattr, "/x", "user.one", NULL, 0);
	SHOW(getxattr, "/x", "user.one", text, 3);
	SHOW(getxattr, "/x", "user.none", text, 3);
	SHOW(getxattr, "/x", "none", text, 3);
	SHOW(getxattr, "/x", "", text, 3);
	SHOW(getxattr, "/none", "user.one", text, 3);
	SHOW(fgetxattr, fd, "user.two", text, sizeof text);
	SHOW(fgetxattr, 99, "user.two", text, sizeof text);
	SHOW(listxattr, "/x", NULL, 0);
	SHOW(listxattr, "/x", text, 5);
	SHOW(flistxattr, fd, text, sizeof text);
	show_bytes("names", text, 18);
	SHOW(lsetxattr, "/loop", "user.one", "x", 1, 0);
	SHOW(lsetxattr, "/loop", "trusted.one", "x", 1, 0);
	SHOW(lgetxattr, "/loop", "trusted.one", text, sizeof text);
	SHOW(llistxattr, "/loop", text, sizeof text);
	SHOW(lremovexattr, "/loop", "trusted.one");
	SHOW(setxattr, "/x", "user.big", text, 1 << 20, 0);
	SHOW(setxattr, "/x", "user.one", "x", 1, 64);
	SHOW(removexattr, "/x", "user.one");
	SHOW(removexattr, "/x", "user.one");
	SHOW(fremovexattr, fd, "user.two");
	SHOW(listxattr, "/x", text, sizeof text);
	SHOW(close, fd);
}

static int compare(const void *one, const void *two)
{
	return strcmp((const char *)one, (const char *)two);
}

static void directories(void)
{
	union {
		char bytes[4096];
		uint64_t alignment;
	} buf;
	char found[40][32];
	char path[32];
	int count = 0;
	long len;
	SHOW(mkdir, "/many", 0755);
	for (int number = 0; number < 30; number++) {
		snprintf(path, sizeof path, "/many/%d-name", number);
		if (number % 2)
			CALL(mkdir, path, 0755);
		else
			CALL(close, CALL(open, path, F(O_CREAT) | F(O_WRONLY), 0644));
	}
	int dir = SHOW_FD(open, "/many", F(O_RDONLY) | F(O_DIRECTORY), 0);
	SHOW(getdents64, dir, buf.bytes, 8);
	/* Small, so that the directory takes several calls. */
	while ((len = CALL(getdents64, dir, buf.bytes, 200)) > 0) {
		for (long at = 0; at < len;) {
			DIRENT *entry = (DIRENT *)(buf.bytes + at);
			snprintf(found[count++], sizeof found[0], "%.20s %d", entry->d_name,
				 entry->d_type);
			at += entry->d_reclen;
		}
	}
	show("getdents64 at the end", len);
	qsort(found, (size_t)count, sizeof found[0], compare);
	for (int at = 0; at < count; at++)
		printf("entry %s\n", found[at]);
	SHOW(lseek, dir, 0, F(SEEK_SET));
	printf("again: %d\n", CALL(getdents64, dir, buf.bytes, sizeof buf) > 0);
	SHOW(rmdir, "/many");
	SHOW(close, dir);
	SHOW(getdents64, 99, buf.bytes, sizeof buf);
	int file = SHOW_FD(open, "/x", F(O_RDONLY), 0);
	SHOW(getdents64, file, buf.bytes, sizeof buf);
	SHOW(close, file);
}

/* As user 1000, in files of root. */
static void user(void)
{
	STRUCT(stat) found;
	char text[8];
	CALL(close, CALL(open, "/secret", F(O_CREAT) | F(O_WRONLY), 0600));
	CALL(mkdir, "/home", 0755);
	CALL(chown, "/home", 1000, 1000);
	CALL(mkdir, "/closed", 0700);
	CALL(mkdir, "/sticky", 0777);
	CALL(chmod, "/sticky", 01777);
	CALL(close, CALL(open, "/sticky/of-root", F(O_CREAT) | F(O_WRONLY), 0666));
	become(1000);
	SHOW_FD(open, "/secret", F(O_RDONLY), 0);
	SHOW_FD(open, "/new", F(O_CREAT) | F(O_RDWR), 0644);
	SHOW(stat, "/closed/x", &found);
	SHOW(mkdir, "/closed/x", 0755);
	SHOW(chmod, "/secret", 0666);
	SHOW(chown, "/secret", 1000, 1000);
	SHOW(unlink, "/secret");
	SHOW(unlink, "/sticky/of-root");
	SHOW(rename, "/sticky/of-root", "/sticky/mine");
	SHOW(truncate, "/secret", 0);
	SHOW(setxattr, "/secret", "user.a", "x", 1, 0);
	SHOW(getxattr, "/secret", "user.a", text, sizeof text);
	SHOW(setxattr, "/home", "trusted.a", "x", 1, 0);
	SHOW(utimensat, F(AT_FDCWD), "/secret", NULL, 0);
	int fd = SHOW_FD(open, "/home/mine", F(O_CREAT) | F(O_RDWR), 06777);
	SHOW(fchown, fd, 1000, 5);
	SHOW(fchmod, fd, 0640);
	SHOW(mknodat, F(AT_FDCWD), "/home/null", F(S_IFCHR) | 0666, makedev(1, 3));
	SHOW_FD(open, "/sticky/of-root", F(O_RDONLY) | F(O_NOATIME), 0);
	SHOW(close, fd);
	show_path("/home/mine");
	become(0);
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	begin(words[1]);
	CALL(umask, 022);
	names();
	at_calls();
	data();
	copies();
	attributes();
	xattrs();
	directories();
	user();
	end();
	return 0;
}
