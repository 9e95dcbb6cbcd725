/* Prints the file "hello" of each image, whatever file system it has. */
#include "check.h"

int main(int count, char **images)
{
	for (int at = 1; at < count; at++) {
		struct folio_kernel *kernel = folio_kernel_new(NULL);
		CHECK(kernel != NULL);
		CHECK(folio_mount(kernel, images[at], "/", "auto", FOLIO_MS_RDONLY, NULL) == 0);
		struct folio_process *process = folio_process_new(kernel, 0, 0);
		CHECK(process != NULL);
		char text[64];
		int fd = folio_open(process, "/hello", FOLIO_O_RDONLY, 0);
		CHECK(fd >= 0);
		int64_t len = folio_read(process, fd, text, sizeof text);
		CHECK(len > 0);
		fwrite(text, 1, (size_t)len, stdout);
		CHECK(folio_close(process, fd) == 0);
		folio_process_free(process);
		CHECK(folio_umount(kernel, "/") == 0);
		folio_kernel_free(kernel);
	}
	return 0;
}
