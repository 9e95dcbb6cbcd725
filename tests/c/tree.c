/* Copies a tree of the host into a new image, and out again. */
#include "check.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_tree(const char *tree)
{
	char path[512];
	CHECK(mkdir(tree, 0755) == 0);
	snprintf(path, sizeof path, "%s/deep", tree);
	CHECK(mkdir(path, 0750) == 0);
	snprintf(path, sizeof path, "%s/deep/file", tree);
	FILE *file = fopen(path, "w");
	CHECK(file != NULL && fputs("text", file) >= 0 && fclose(file) == 0);
	snprintf(path, sizeof path, "%s/link", tree);
	CHECK(symlink("deep/file", path) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	const char *image = arguments[1], *tree = arguments[2];
	make_tree(tree);
	CHECK(folio_image_create(image, 64 << 20, NULL) == 0);
	CHECK(folio_mkfs_ext4(image, NULL) == 0);
	struct folio_kernel *kernel = folio_kernel_new(NULL);
	CHECK(folio_mount(kernel, image, "/", "ext4", 0, NULL) == 0);
	struct folio_process *process = folio_process_new(kernel, 0, 0);

	CHECK(folio_copy_tree(process, tree, "/srv", FOLIO_COPY_IN) == 0);
	struct folio_stat found;
	CHECK(folio_stat(process, "/srv/deep", &found) == 0);
	CHECK((found.st_mode & 07777) == 0750);
	/* Relative to the working directory; the umask of the process stays. */
	CHECK(folio_chdir(process, "/srv") == 0);
	CHECK(folio_copy_tree(process, tree, "more", FOLIO_COPY_IN | FOLIO_COPY_CONTENT) == 0);
	CHECK(folio_stat(process, "/srv/more/link", &found) == 0);
	CHECK(folio_umask(process, 0) == 022);
	CHECK(folio_copy_tree(process, "/srv", "back", FOLIO_COPY_OUT) == 0);

	CHECK(folio_copy_tree(process, "/none", "x", FOLIO_COPY_OUT) == -ENOENT);
	CHECK(strstr(folio_last_error(), "/none") != NULL);
	CHECK(folio_copy_tree(process, tree, "/x", 0) == -EINVAL);
	CHECK(folio_copy_tree(process, tree, "/x", FOLIO_COPY_IN | FOLIO_COPY_OUT) == -EINVAL);
	CHECK(folio_copy_tree(process, NULL, "/x", FOLIO_COPY_IN) == -EFAULT);
	CHECK(folio_copy_tree(NULL, tree, "/x", FOLIO_COPY_IN) == -EINVAL);

	folio_process_free(process);
	CHECK(folio_umount(kernel, "/") == 0);
	folio_kernel_free(kernel);
	puts("ok");
	return 0;
}
