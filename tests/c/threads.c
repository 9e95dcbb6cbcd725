/* Many threads on one kernel: files of their own, a shared file, names that come and go. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define THREADS 8

static struct folio_kernel *kernel;
static struct folio_process *process;
static int shared;
static int rounds;

static void *work(void *argument)
{
	long number = (long)argument;
	char path[64], other[64];
	char page[4096], found[4096];
	struct folio_stat stat;
	memset(page, 'a' + (int)number, sizeof page);
	snprintf(path, sizeof path, "/disk/file-%ld", number);
	snprintf(other, sizeof other, "/disk/moved-%ld", number);
	for (int round = 0; round < rounds; round++) {
		int fd = folio_open(process, path, FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
		CHECK(fd >= 0);
		CHECK(folio_write(process, fd, page, sizeof page) == sizeof page);
		CHECK(folio_pread(process, fd, found, sizeof found, 0) == sizeof found);
		CHECK(memcmp(page, found, sizeof page) == 0);
		CHECK(folio_close(process, fd) == 0);
		CHECK(folio_rename(process, path, other) == 0);
		CHECK(folio_stat(process, path, &stat) == -ENOENT);
		CHECK(strstr(folio_last_error(), path) != NULL);
		CHECK(folio_stat(process, other, &stat) == 0 && stat.st_size == sizeof page);
		CHECK(folio_pwrite(process, shared, page, sizeof page,
				   (round * THREADS + number) * (int64_t)sizeof page) ==
		      sizeof page);
		struct folio_borrowed borrowed;
		CHECK(folio_read_borrowed(process, shared, &borrowed, 100, 0) >= 0);
		CHECK(folio_release(&borrowed) == 0);
		if (round % 50 == 0)
			CHECK(folio_fsync(process, shared) == 0);
		CHECK(folio_unlink(process, other) == 0);
	}
	/* A thread may use a process of its own. */
	struct folio_process *own = folio_process_new(kernel, 1000, 1000);
	CHECK(own != NULL);
	CHECK(folio_open(own, "/disk/shared", FOLIO_O_WRONLY, 0) == -EACCES);
	CHECK(folio_process_free(own) == 0);
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[THREADS];
	char page[4096];
	CHECK(count == 3);
	rounds = atoi(words[2]);
	kernel = folio_kernel_new(NULL);
	CHECK(kernel != NULL);
	CHECK(folio_image_create(words[1], 64 << 20, NULL) == 0);
	CHECK(folio_mkfs_ext4(words[1], NULL) == 0);
	process = folio_process_new(kernel, 0, 0);
	CHECK(folio_mkdir(process, "/disk", 0755) == 0);
	CHECK(folio_mount(kernel, words[1], "/disk", "ext4", 0, NULL) == 0);
	shared = folio_open(process, "/disk/shared", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(shared >= 0);
	for (long number = 0; number < THREADS; number++)
		CHECK(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
	for (int number = 0; number < THREADS; number++)
		CHECK(pthread_join(threads[number], NULL) == 0);
	for (int at = 0; at < rounds * THREADS; at++) {
		CHECK(folio_pread(process, shared, page, sizeof page, at * 4096LL) == 4096);
		CHECK(page[0] == 'a' + at % THREADS && page[4095] == page[0]);
	}
	CHECK(folio_close(process, shared) == 0);
	CHECK(folio_process_free(process) == 0);
	CHECK(folio_umount(kernel, "/disk") == 0);
	CHECK(folio_kernel_free(kernel) == 0);
	puts("ok");
	return 0;
}
