/* What the system calls do not have: handles, options, mounts, borrowed pages, devices, errors. */
#include "check.h"
#include <errno.h>
#include <string.h>

static int says(const char *words)
{
	return strstr(folio_last_error(), words) != NULL;
}

static void handles(void)
{
	struct folio_stat stat;
	char byte;
	CHECK(strcmp(folio_last_error(), "") == 0);
	CHECK(folio_process_new(NULL, 0, 0) == NULL);
	CHECK(says("process_new: the handle is null"));
	CHECK(folio_stat(NULL, "/", &stat) == -EINVAL);
	CHECK(folio_read(NULL, 0, &byte, 1) == -EINVAL);
	CHECK(folio_umount(NULL, "/") == -EINVAL);
	CHECK(folio_release(NULL) == -EINVAL);
	/* As free(NULL). */
	CHECK(folio_process_free(NULL) == 0);
	CHECK(folio_kernel_free(NULL) == 0);
}

static void pointers(struct folio_process *process)
{
	char byte;
	int fd = folio_open(process, "/f", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0);
	CHECK(folio_open(process, NULL, FOLIO_O_RDONLY, 0) == -EFAULT);
	CHECK(says("open: a pointer is null"));
	CHECK(folio_stat(process, "/f", NULL) == -EFAULT);
	CHECK(folio_write(process, fd, NULL, 1) == -EFAULT);
	CHECK(folio_write(process, fd, NULL, 0) == 0);
	CHECK(folio_read(process, fd, NULL, 1) == -EFAULT);
	CHECK(folio_readv(process, fd, NULL, 1) == -EFAULT);
	CHECK(folio_readv(process, fd, NULL, 1025) == -EINVAL);
	CHECK(folio_setxattr(process, "/f", NULL, "x", 1, 0) == -EFAULT);
	CHECK(folio_read_borrowed(process, fd, NULL, 1, 0) == -EINVAL);
	CHECK(folio_pread(process, -100, &byte, 1, 0) == -EBADF);
	CHECK(folio_getcwd(process, &byte, 1) == -ERANGE);
	CHECK(folio_close(process, fd) == 0);
}

static void options(void)
{
	struct folio_kernel_options options[2];
	memset(options, 0, sizeof options);
	CHECK(folio_kernel_new(options) == NULL);
	CHECK(says("set it to sizeof the struct"));
	/* A later version of the struct, whose new field is 0, and then not. */
	options[0].size = 2 * sizeof options[0];
	struct folio_kernel *kernel = folio_kernel_new(options);
	CHECK(kernel != NULL && folio_kernel_free(kernel) == 0);
	options[1].cache_bytes = 1;
	CHECK(folio_kernel_new(options) == NULL);
	CHECK(says("does not know"));
	/* An earlier version, which had the first two fields alone. */
	options[0].size = 16;
	options[0].cache_bytes = 1 << 20;
	kernel = folio_kernel_new(options);
	CHECK(kernel != NULL && folio_kernel_free(kernel) == 0);
}

static void images(const char *image)
{
	struct folio_image_options create;
	struct folio_mkfs_options mkfs;
	char partition[256];
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.format = "qcow3";
	CHECK(folio_image_create(image, 1 << 20, &create) == -EINVAL);
	CHECK(says("qcow3") && says("expected raw or qcow2"));
	create.format = "qcow2";
	create.cluster_bytes = 1 << 16;
	CHECK(folio_image_create(image, 32 << 20, &create) == 0);
	CHECK(folio_image_create(image, 32 << 20, &create) == -EEXIST);
	memset(&mkfs, 0, sizeof mkfs);
	mkfs.size = sizeof mkfs;
	mkfs.label = "from C";
	mkfs.block_size = 4096;
	mkfs.root_uid = 7;
	CHECK(folio_mkfs_ext4(image, &mkfs) == 0);
	CHECK(folio_mkfs_ext4(image, &mkfs) == -EEXIST);
	CHECK(says("it holds ext4: set FOLIO_MKFS_FORCE"));
	mkfs.flags = FOLIO_MKFS_FORCE;
	CHECK(folio_mkfs_ext4(image, &mkfs) == 0);
	mkfs.block_size = 100;
	CHECK(folio_mkfs_ext4(image, &mkfs) == -EINVAL);
	snprintf(partition, sizeof partition, "%s@2", image);
	CHECK(folio_mkfs_ext4(partition, &mkfs) == -ENXIO);
	CHECK(says("no partition 2"));
}

static void mounts(const char *image, const char *folder)
{
	struct folio_stat stat;
	struct folio_statfs sizes;
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	struct folio_process *process = folio_process_new(kernel, 0, 0);
	CHECK(folio_mkdir(process, "/ext4", 0755) == 0);
	CHECK(folio_mkdir(process, "/host", 0755) == 0);
	CHECK(folio_mkdir(process, "/tmp", 0755) == 0);
	CHECK(folio_mount(kernel, image, "/ext4", "ext4", FOLIO_MS_RDONLY, NULL) == 0);
	CHECK(folio_stat(process, "/ext4", &stat) == 0 && stat.st_uid == 7);
	CHECK(folio_statfs(process, "/ext4", &sizes) == 0 && sizes.f_type == 0xef53);
	CHECK(folio_mkdir(process, "/ext4/d", 0755) == -EROFS);
	CHECK(folio_mount(kernel, folder, "/host", "hostfs", 0, "ttl=1s") == 0);
	CHECK(folio_mount(kernel, NULL, "/tmp", "tmpfs", FOLIO_MS_NOATIME, "mode=700") == 0);
	CHECK(folio_stat(process, "/tmp", &stat) == 0 && (stat.st_mode & 07777) == 0700);
	uint64_t device = stat.st_dev;
	CHECK(folio_stat(process, "/host", &stat) == 0 && stat.st_dev != device);
	int fd = folio_open(process, "/host/from-c", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0 && folio_write(process, fd, "text", 4) == 4);
	CHECK(folio_umount(kernel, "/host") == -EBUSY);
	CHECK(folio_close(process, fd) == 0);
	CHECK(folio_umount(kernel, "/host") == 0);
	CHECK(folio_umount(kernel, "/host") == -EINVAL);
	CHECK(folio_umount(kernel, "/ext4") == 0);
	CHECK(folio_mount(kernel, image, "/host", "xfs", 0, NULL) == -ENODEV);
	CHECK(says("unknown file system type \"xfs\""));
	CHECK(folio_mount(kernel, image, "/host", "ext4", 1 << 5, NULL) == -EINVAL);
	CHECK(folio_mount(kernel, image, "/host", "ext4", 0, "nonsense") == -EINVAL);
	CHECK(says("nonsense"));
	CHECK(folio_mount(kernel, "/none", "/host", "ext4", 0, NULL) == -ENOENT);
	CHECK(says("/none"));
	CHECK(folio_mount(kernel, image, "/nowhere", "ramfs", 0, NULL) == -ENOENT);
	CHECK(folio_process_free(process) == 0);
	CHECK(folio_kernel_free(kernel) == 0);
}

static void borrowed(struct folio_process *process)
{
	struct folio_borrowed pages;
	static char text[10000];
	size_t len = 0;
	memset(text, 'b', sizeof text);
	int fd = folio_open(process, "/borrowed", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0 && folio_write(process, fd, text, sizeof text) == sizeof text);
	CHECK(folio_read_borrowed(process, fd, &pages, 1 << 20, 100) == sizeof text - 100);
	/* The bytes outlive truncation. */
	CHECK(folio_ftruncate(process, fd, 0) == 0);
	for (size_t at = 0; at < pages.count; at++) {
		const char *slice = (const char *)pages.slices[at].iov_base;
		CHECK(slice[0] == 'b' && slice[pages.slices[at].iov_len - 1] == 'b');
		len += pages.slices[at].iov_len;
	}
	CHECK(len == sizeof text - 100);
	CHECK(folio_release(&pages) == 0);
	CHECK(pages.count == 0 && folio_release(&pages) == 0);
	CHECK(folio_read_borrowed(process, fd, &pages, 100, 0) == 0 && pages.count == 0);
	CHECK(folio_release(&pages) == 0);
	CHECK(folio_close(process, fd) == 0);
}

/* Borrowed bytes outlive their file, their process and their kernel. */
static void outliving(void)
{
	struct folio_borrowed pages;
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	struct folio_process *process = folio_process_new(kernel, 0, 0);
	CHECK(folio_mkdir(process, "/t", 0755) == 0);
	CHECK(folio_mount(kernel, NULL, "/t", "tmpfs", 0, NULL) == 0);
	int fd = folio_open(process, "/t/f", FOLIO_O_CREAT | FOLIO_O_RDWR, 0644);
	CHECK(fd >= 0 && folio_write(process, fd, "lent", 4) == 4);
	CHECK(folio_read_borrowed(process, fd, &pages, 100, 0) == 4);
	CHECK(folio_unlink(process, "/t/f") == 0);
	CHECK(folio_close(process, fd) == 0);
	CHECK(folio_process_free(process) == 0);
	CHECK(folio_umount(kernel, "/t") == 0);
	CHECK(folio_kernel_free(kernel) == 0);
	CHECK(pages.count == 1 && memcmp(pages.slices[0].iov_base, "lent", 4) == 0);
	CHECK(folio_release(&pages) == 0);
}

static int released;
static int fails;

static int read_zeros(void *context, void *buf, size_t count, uint64_t offset)
{
	(void)offset;
	memset(buf, 0, count);
	return *(int *)context;
}

static uint64_t size(void *context)
{
	(void)context;
	return 16 << 20;
}

static void release(void *context)
{
	released += context == &fails;
}

static void devices(struct folio_kernel *kernel)
{
	struct folio_device_ops ops;
	memset(&ops, 0, sizeof ops);
	CHECK(folio_mount_device(kernel, NULL, NULL, "/", 0, NULL) == -EFAULT);
	ops.size = sizeof ops;
	CHECK(folio_mount_device(kernel, &ops, NULL, "/", 0, NULL) == -EINVAL);
	CHECK(says("read and device_size"));
	ops.read = read_zeros;
	ops.device_size = size;
	ops.release = release;
	CHECK(folio_mount_device(kernel, &ops, &fails, "/", 0, NULL) == -ENXIO);
	CHECK(says("no ext4 file system") && released == 1);
	CHECK(folio_mkfs_ext4_device(&ops, &fails, NULL) == -EROFS && released == 2);
	fails = -ENOMEDIUM;
	CHECK(folio_mount_device(kernel, &ops, &fails, "/", 0, NULL) == -ENOMEDIUM);
	CHECK(says("device of the program: read: No medium found") && released == 3);
	/* No errno. */
	fails = 17;
	CHECK(folio_mount_device(kernel, &ops, &fails, "/", 0, NULL) == -EIO && released == 4);
}

int main(int count, char **words)
{
	CHECK(count == 3);
	handles();
	options();
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	struct folio_process *process = folio_process_new(kernel, 0, 0);
	pointers(process);
	borrowed(process);
	outliving();
	devices(kernel);
	/* In either order: the processes keep the kernel. */
	CHECK(folio_kernel_free(kernel) == 0);
	CHECK(folio_process_free(process) == 0);
	images(words[1]);
	mounts(words[1], words[2]);
	puts("ok");
	return 0;
}
