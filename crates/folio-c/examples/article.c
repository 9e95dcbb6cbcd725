/*
 * The experiment of the library-OS article: 200 KiB are read from a ramfs in the process, with the
 * library's call, with a loop that copies byte by byte, and with memcpy.
 *
 *     cc -O2 article.c $(pkg-config --cflags --libs folio) -o article && ./article
 */
#include <folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE (200 * 1024)

static struct folio_process *process;
static int fd;
static char buffer[SIZE];
static char source[SIZE];

/* The library's call: system call, path through the page cache, one copy. */
static ssize_t by_folio_read(void)
{
	return folio_pread(process, fd, buffer, SIZE, 0);
}

/* The article's loop, on the pages of the same file. */
static ssize_t by_bytes(void)
{
	struct folio_borrowed pages;
	ssize_t len = folio_read_borrowed(process, fd, &pages, SIZE, 0);
	char *to = buffer;
	if (len < 0)
		return len;
	for (size_t at = 0; at < pages.count; at++) {
		const volatile char *from = (const char *)pages.slices[at].iov_base;
		for (size_t byte = 0; byte < pages.slices[at].iov_len; byte++)
			*to++ = from[byte];
	}
	folio_release(&pages);
	return len;
}

/* The copy alone, without a file. */
static ssize_t by_memcpy(void)
{
	memcpy(buffer, source, SIZE);
	/* Keeps the copy: to the compiler, the buffer is used. */
	__asm__ volatile("" : : "r"(buffer) : "memory");
	return SIZE;
}

static double now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int measure(const char *name, ssize_t (*read)(void), int rounds)
{
	double best = 1e12;
	for (int round = 0; round < rounds; round++) {
		double start = now_us();
		if (read() != SIZE) {
			fprintf(stderr, "%s: %s\n", name, folio_last_error());
			return 1;
		}
		double took = now_us() - start;
		if (took < best)
			best = took;
	}
	printf("%-28s %10.1f us %10.1f GiB/s\n", name, best, SIZE / best * 1e6 / (1 << 30));
	return 0;
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 2000;
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	process = folio_process_new(kernel, 0, 0);
	memset(source, 'x', SIZE);
	fd = folio_open(process, "/file", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	if (fd < 0 || folio_write(process, fd, source, SIZE) != SIZE) {
		fprintf(stderr, "%s\n", folio_last_error());
		return 1;
	}
	printf("%-28s %13s %16s\n", "200 KiB from a ramfs", "time", "rate");
	int failed = measure("folio_pread", by_folio_read, rounds) ||
		     measure("a loop of single bytes", by_bytes, rounds) ||
		     measure("memcpy, no file", by_memcpy, rounds);
	folio_process_free(process);
	folio_kernel_free(kernel);
	return failed;
}
