/* 1,000 kernels made, used and freed; four of them at a time. */
#include "check.h"
#include <string.h>

struct one {
	struct folio_kernel *kernel;
	struct folio_process *process;
};

static struct one make(int number)
{
	struct one one;
	struct folio_kernel_options options;
	char text[32];
	memset(&options, 0, sizeof options);
	options.size = sizeof options;
	options.cache_bytes = 1 << 20;
	one.kernel = folio_kernel_new(&options);
	CHECK(one.kernel != NULL);
	one.process = folio_process_new(one.kernel, 0, 0);
	CHECK(one.process != NULL);
	CHECK(folio_mkdir(one.process, "/t", 0755) == 0);
	CHECK(folio_mount(one.kernel, NULL, "/t", "tmpfs", 0, "size=1m") == 0);
	int fd = folio_open(one.process, "/t/f", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0);
	int len = snprintf(text, sizeof text, "kernel %d", number);
	CHECK(folio_write(one.process, fd, text, (size_t)len) == len);
	/* Some errors, whose texts are freed too. */
	CHECK(folio_open(one.process, "/none", FOLIO_O_RDONLY, 0) < 0);
	if (number % 3)
		CHECK(folio_close(one.process, fd) == 0);
	return one;
}

static void release(struct one one, int number)
{
	char text[32], found[32];
	memset(found, 0, sizeof found);
	snprintf(text, sizeof text, "kernel %d", number);
	int fd = folio_open(one.process, "/t/f", FOLIO_O_RDONLY, 0);
	CHECK(fd >= 0);
	CHECK(folio_read(one.process, fd, found, sizeof found) == (ssize_t)strlen(text));
	CHECK(strcmp(text, found) == 0);
	/* In either order. */
	if (number % 2) {
		CHECK(folio_process_free(one.process) == 0);
		CHECK(folio_kernel_free(one.kernel) == 0);
	} else {
		CHECK(folio_kernel_free(one.kernel) == 0);
		CHECK(folio_process_free(one.process) == 0);
	}
}

int main(int count, char **words)
{
	int number, kernels = count > 1 ? atoi(words[1]) : 1000;
	struct one all[4];
	for (number = 0; number < 4; number++)
		all[number] = make(number);
	for (; number < kernels; number++) {
		release(all[number % 4], number - 4);
		all[number % 4] = make(number);
	}
	for (number = kernels - 4; number < kernels; number++)
		release(all[number % 4], number);
	puts("ok");
	return 0;
}
