/*
 * The two backends of a test: libfolio, or with -DKERNEL the system calls themselves.
 *
 *     CALL(read, fd, buf, count)   the call; its value, or -errno
 *     STRUCT(stat)                 struct folio_stat, or struct stat
 *     F(O_RDWR)                    FOLIO_O_RDWR, or O_RDWR
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#ifdef KERNEL

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CALL(name, ...) result((long)name(__VA_ARGS__))
#define STRUCT(name) struct name
#define DIRENT struct dirent64
#define F(name) name
#define OFFSET(pointer) ((off_t *)(pointer))

/* The C library's have other arguments or results, or refuse null. */
#define fchmodat(...) syscall(SYS_fchmodat, __VA_ARGS__)
#define getcwd(...) syscall(SYS_getcwd, __VA_ARGS__)
#define utimensat(...) syscall(SYS_utimensat, __VA_ARGS__)

static long result(long value)
{
	return value < 0 ? -errno : value;
}

static void must(int value, const char *what)
{
	if (value) {
		perror(what);
		exit(1);
	}
}

static void begin(const char *mount)
{
	must(chroot(mount), "chroot");
	must(chdir("/"), "chdir");
}

/* The ids that count for files; the real ones stay root's. */
static void become(unsigned id)
{
	if (id)
		must(setresgid(id, id, 0), "setresgid");
	must(setresuid(id, id, 0), "setresuid");
	if (!id)
		must(setresgid(0, 0, 0), "setresgid");
}

static void end(void)
{
}

#else

#include "folio.h"
#include <string.h>

#define CALL(name, ...) folio_##name(process, __VA_ARGS__)
#define STRUCT(name) struct folio_##name
#define DIRENT struct folio_dirent
#define F(name) FOLIO_##name
#define OFFSET(pointer) (pointer)

static struct folio_kernel *kernel;
static struct folio_process *root;
static struct folio_process *process;

static void must(int value, const char *what)
{
	if (value) {
		fprintf(stderr, "%s: %s: %s\n", what, strerror(-value), folio_last_error());
		exit(1);
	}
}

static void begin(const char *image)
{
	kernel = folio_kernel_new(NULL);
	must(folio_mount(kernel, image, "/", "ext4", 0, NULL), image);
	process = root = folio_process_new(kernel, 0, 0);
}

static void become(unsigned id)
{
	if (process != root)
		must(folio_process_free(process), "process_free");
	process = id ? folio_process_new(kernel, id, id) : root;
	folio_umask(process, 022);
}

static void end(void)
{
	must(folio_process_free(root), "process_free");
	must(folio_umount(kernel, "/"), "umount");
	must(folio_kernel_free(kernel), "kernel_free");
}

#endif
