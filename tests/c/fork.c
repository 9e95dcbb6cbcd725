/* A child of fork(2), made while another thread is in the library: every call fails there. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct folio_kernel *kernel;
static struct folio_process *process;
static int ends;

static void *busy(void *argument)
{
	char page[4096];
	memset(page, 1, sizeof page);
	int fd = folio_open(process, "/busy", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0);
	for (int at = 0; !__atomic_load_n(&ends, __ATOMIC_RELAXED); at++) {
		CHECK(folio_pwrite(process, fd, page, sizeof page, at % 1000 * 4096) == 4096);
		CHECK(folio_mkdir(process, "/name", 0755) == 0);
		CHECK(folio_rmdir(process, "/name") == 0);
	}
	return argument;
}

#define FAILS(call)                                                                 \
	do {                                                                        \
		if ((call) != -EINVAL || !strstr(folio_last_error(), "was forked")) \
			_exit(2);                                                   \
	} while (0)

static void child(const char *image)
{
	struct folio_stat stat;
	struct folio_borrowed borrowed;
	struct folio_device_ops ops;
	char byte;
	/* A call that hangs ends the child by a signal. */
	alarm(60);
	memset(&ops, 0, sizeof ops);
	memset(&borrowed, 0, sizeof borrowed);
	FAILS(folio_stat(process, "/busy", &stat));
	FAILS(folio_open(process, "/new", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644));
	FAILS(folio_read(process, 0, &byte, 1));
	FAILS(folio_write(process, 0, "x", 1));
	FAILS(folio_fsync(process, 0));
	FAILS(folio_close(process, 0));
	FAILS(folio_sync(process));
	FAILS(folio_read_borrowed(process, 0, &borrowed, 1, 0));
	FAILS(folio_release(&borrowed));
	FAILS(folio_umount(kernel, "/"));
	FAILS(folio_mount(kernel, NULL, "/", "ramfs", 0, NULL));
	FAILS(folio_image_create(image, 1 << 20, NULL));
	FAILS(folio_mkfs_ext4(image, NULL));
	FAILS(folio_mkfs_ext4_device(&ops, NULL, NULL));
	if (folio_kernel_new(NULL) || folio_process_new(kernel, 0, 0))
		_exit(3);
	FAILS(folio_process_free(process));
	FAILS(folio_kernel_free(kernel));
	_exit(0);
}

int main(int count, char **words)
{
	pthread_t thread;
	int status;
	CHECK(count == 2);
	/* Before the first call, a child is like any other process. */
	pid_t pid = fork();
	if (pid == 0) {
		kernel = folio_kernel_new(NULL);
		_exit(kernel && folio_kernel_free(kernel) == 0 ? 0 : 4);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	kernel = folio_kernel_new(NULL);
	CHECK(folio_image_create(words[1], 32 << 20, NULL) == 0);
	CHECK(folio_mkfs_ext4(words[1], NULL) == 0);
	CHECK(folio_mount(kernel, words[1], "/", "ext4", 0, NULL) == 0);
	process = folio_process_new(kernel, 0, 0);
	CHECK(process != NULL);
	CHECK(pthread_create(&thread, NULL, busy, NULL) == 0);
	for (int round = 0; round < 20; round++) {
		pid = fork();
		if (pid == 0)
			child(words[1]);
		CHECK(waitpid(pid, &status, 0) == pid);
		if (status) {
			fprintf(stderr, "the child ended with %#x\n", status);
			return 1;
		}
	}
	__atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
	CHECK(pthread_join(thread, NULL) == 0);
	/* The parent is as it was. */
	CHECK(folio_process_free(process) == 0);
	CHECK(folio_umount(kernel, "/") == 0);
	CHECK(folio_kernel_free(kernel) == 0);
	puts("ok");
	return 0;
}
