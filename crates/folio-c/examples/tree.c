/*
 * A tree of files copied into an ext4 image and out of it, without root or a mount: like cptofs and
 * cpfromfs.
 *
 *     cc tree.c $(pkg-config --cflags --libs folio) -o tree
 *     ./tree in disk.img@1 ./dir /srv      IMAGE[@PARTITION], from the host, into the image
 *     ./tree out disk.img@1 /srv ./copy
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static struct folio_process *process;
static char buffer[1 << 20];

/* Ends the program unless a call of libfolio succeeded; returns its value. */
static long folio(long result)
{
	if (result < 0) {
		fprintf(stderr, "tree: %s\n", folio_last_error());
		exit(1);
	}
	return result;
}

/* Ends the program unless a call of the host succeeded; returns its value. */
static long host(long result, const char *path)
{
	if (result < 0) {
		fprintf(stderr, "tree: %s: %s\n", path, strerror(errno));
		exit(1);
	}
	return result;
}

static char *join(const char *folder, const char *name)
{
	char *path = (char *)malloc(strlen(folder) + strlen(name) + 2);
	sprintf(path, "%s/%s", folder, name);
	return path;
}

static int is_dot(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static void copy_file_in(const char *from, const char *to, mode_t mode)
{
	ssize_t len;
	int in = (int)host(open(from, O_RDONLY | O_CLOEXEC), from);
	int flags = FOLIO_O_CREAT | FOLIO_O_TRUNC | FOLIO_O_WRONLY;
	int out = (int)folio(folio_open(process, to, flags, mode & 07777));
	while ((len = host(read(in, buffer, sizeof buffer), from)) > 0)
		for (ssize_t done = 0; done < len;)
			done += folio(folio_write(process, out, buffer + done, (size_t)(len - done)));
	folio(folio_close(process, out));
	close(in);
}

static void copy_in(const char *from, const char *to)
{
	struct stat found;
	char target[4096];
	host(lstat(from, &found), from);
	if (S_ISDIR(found.st_mode)) {
		int made = folio_mkdir(process, to, found.st_mode & 07777);
		if (made != -EEXIST)
			folio(made);
		DIR *dir = opendir(from);
		host(dir ? 0 : -1, from);
		for (struct dirent *entry; (entry = readdir(dir));) {
			if (is_dot(entry->d_name))
				continue;
			char *inner_from = join(from, entry->d_name);
			char *inner_to = join(to, entry->d_name);
			copy_in(inner_from, inner_to);
			free(inner_from);
			free(inner_to);
		}
		closedir(dir);
	} else if (S_ISREG(found.st_mode)) {
		copy_file_in(from, to, found.st_mode);
	} else if (S_ISLNK(found.st_mode)) {
		ssize_t len = host(readlink(from, target, sizeof target - 1), from);
		target[len] = 0;
		folio(folio_symlink(process, target, to));
	} else {
		folio(folio_mknodat(process, FOLIO_AT_FDCWD, to, found.st_mode, found.st_rdev));
	}
	folio(folio_lchown(process, to, found.st_uid, found.st_gid));
	if (!S_ISLNK(found.st_mode))
		folio(folio_chmod(process, to, found.st_mode & 07777));
	struct folio_timespec times[2] = {
		{ found.st_atim.tv_sec, found.st_atim.tv_nsec },
		{ found.st_mtim.tv_sec, found.st_mtim.tv_nsec },
	};
	folio(folio_utimensat(process, FOLIO_AT_FDCWD, to, times, FOLIO_AT_SYMLINK_NOFOLLOW));
}

static void copy_file_out(const char *from, const char *to)
{
	ssize_t len;
	int in = (int)folio(folio_open(process, from, FOLIO_O_RDONLY, 0));
	int out = (int)host(open(to, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), to);
	while ((len = folio(folio_read(process, in, buffer, sizeof buffer))) > 0)
		for (ssize_t done = 0; done < len;)
			done += host(write(out, buffer + done, (size_t)(len - done)), to);
	host(close(out), to);
	folio(folio_close(process, in));
}

static void copy_out(const char *from, const char *to);

static void copy_entries_out(const char *from, const char *to)
{
	union {
		char bytes[4096];
		uint64_t alignment;
	} entries;
	ssize_t len;
	int dir = (int)folio(folio_open(process, from, FOLIO_O_RDONLY | FOLIO_O_DIRECTORY, 0));
	while ((len = folio(folio_getdents64(process, dir, entries.bytes, sizeof entries))) > 0) {
		for (ssize_t at = 0; at < len;) {
			struct folio_dirent *entry = (struct folio_dirent *)(entries.bytes + at);
			at += entry->d_reclen;
			if (is_dot(entry->d_name))
				continue;
			char *inner_from = join(from, entry->d_name);
			char *inner_to = join(to, entry->d_name);
			copy_out(inner_from, inner_to);
			free(inner_from);
			free(inner_to);
		}
	}
	folio(folio_close(process, dir));
}

static void copy_out(const char *from, const char *to)
{
	struct folio_stat found;
	char target[4096];
	folio(folio_lstat(process, from, &found));
	switch (found.st_mode & FOLIO_S_IFMT) {
	case FOLIO_S_IFDIR:
		host(mkdir(to, 0700), to);
		copy_entries_out(from, to);
		break;
	case FOLIO_S_IFREG:
		copy_file_out(from, to);
		break;
	case FOLIO_S_IFLNK:
		target[folio(folio_readlink(process, from, target, sizeof target - 1))] = 0;
		host(symlink(target, to), to);
		break;
	default:
		host(mknod(to, found.st_mode, found.st_rdev), to);
	}
	/* Only root may give files away. */
	if (geteuid() == 0)
		host(lchown(to, found.st_uid, found.st_gid), to);
	if ((found.st_mode & FOLIO_S_IFMT) != FOLIO_S_IFLNK)
		host(chmod(to, found.st_mode & 07777), to);
	struct timespec times[2] = {
		{ found.st_atim.tv_sec, (long)found.st_atim.tv_nsec },
		{ found.st_mtim.tv_sec, (long)found.st_mtim.tv_nsec },
	};
	host(utimensat(AT_FDCWD, to, times, AT_SYMLINK_NOFOLLOW), to);
}

int main(int count, char **words)
{
	int is_in = count == 5 && strcmp(words[1], "in") == 0;
	if (count != 5 || (!is_in && strcmp(words[1], "out") != 0)) {
		fprintf(stderr, "usage: tree in IMAGE[@PARTITION] HOST-PATH PATH\n"
				"       tree out IMAGE[@PARTITION] PATH HOST-PATH\n");
		return 2;
	}
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	folio(folio_mount(kernel, words[2], "/", "ext4", is_in ? 0 : FOLIO_MS_RDONLY, NULL));
	process = folio_process_new(kernel, 0, 0);
	if (is_in)
		copy_in(words[3], words[4]);
	else
		copy_out(words[3], words[4]);
	folio(folio_process_free(process));
	folio(folio_umount(kernel, "/"));
	folio(folio_kernel_free(kernel));
	return 0;
}
