/*
 * A device of one's own: memory that counts its calls, with an ext4 file system on it.
 *
 *     cc device.c $(pkg-config --cflags --libs folio) -o device && ./device
 */
#include <errno.h>
#include <folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (32 << 20)

struct disk {
	char *bytes;
	/* Any thread may call the device: the counters are atomic. */
	unsigned long reads, writes, flushes, discards;
};

static void add(unsigned long *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

static int disk_read(void *context, void *buf, size_t count, uint64_t offset)
{
	struct disk *disk = (struct disk *)context;
	add(&disk->reads);
	memcpy(buf, disk->bytes + offset, count);
	return 0;
}

static int disk_write(void *context, const void *buf, size_t count, uint64_t offset)
{
	struct disk *disk = (struct disk *)context;
	add(&disk->writes);
	memcpy(disk->bytes + offset, buf, count);
	return 0;
}

static int disk_flush(void *context)
{
	add(&((struct disk *)context)->flushes);
	return 0;
}

static int disk_discard(void *context, uint64_t offset, uint64_t count)
{
	struct disk *disk = (struct disk *)context;
	add(&disk->discards);
	memset(disk->bytes + offset, 0, count);
	return 0;
}

static uint64_t disk_size(void *context)
{
	(void)context;
	return SIZE;
}

static int fail(const char *what, long result)
{
	fprintf(stderr, "%s: %s (%s)\n", what, folio_last_error(), strerror((int)-result));
	return 1;
}

int main(void)
{
	struct disk disk;
	struct folio_device_ops ops;
	memset(&disk, 0, sizeof disk);
	memset(&ops, 0, sizeof ops);
	disk.bytes = (char *)calloc(1, SIZE);
	ops.size = sizeof ops;
	ops.read = disk_read;
	ops.write = disk_write;
	ops.flush = disk_flush;
	ops.discard = disk_discard;
	ops.device_size = disk_size;

	long result = folio_mkfs_ext4_device(&ops, &disk, NULL);
	if (result < 0)
		return fail("mkfs", result);
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	struct folio_process *process = folio_process_new(kernel, 0, 0);
	if ((result = folio_mount_device(kernel, &ops, &disk, "/", 0, NULL)) < 0)
		return fail("mount", result);
	/* The process was made before the mount: it still stands in the old root. */
	folio_process_free(process);
	process = folio_process_new(kernel, 0, 0);
	int fd = folio_open(process, "/greeting", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	if (fd < 0)
		return fail("open", fd);
	if ((result = folio_write(process, fd, "Hello, device!\n", 15)) != 15)
		return fail("write", result);
	if ((result = folio_fsync(process, fd)) < 0)
		return fail("fsync", result);
	folio_close(process, fd);
	folio_process_free(process);
	if ((result = folio_umount(kernel, "/")) < 0)
		return fail("umount", result);
	folio_kernel_free(kernel);
	printf("the device served %lu reads, %lu writes, %lu flushes, %lu discards\n", disk.reads,
	       disk.writes, disk.flushes, disk.discards);
	free(disk.bytes);
	return 0;
}
