/* Prints each call that the filter lets through, of those that it must refuse, as this machine's
 * program and as one for i386. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The call of a program for i386, which x86_64 has in programs of 64 bits too. */
static long i386(long number, long argument)
{
	long result = -EPERM;
#ifdef __x86_64__
	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(argument), "c"(0), "d"(0), "S"(0), "D"(0)
			 : "memory", "r8", "r9", "r10", "r11");
#endif
	return result;
}

static void expect(const char *name, long number, long argument, int error)
{
	if (syscall(number, argument, 0, 0, 0, 0) != -1 || errno != error)
		printf("%s\n", name);
}

int main(void)
{
	expect("keyctl", SYS_keyctl, 0, EPERM);
	expect("bpf", SYS_bpf, 0, EPERM);
	expect("io_uring_setup", SYS_io_uring_setup, 1, EPERM);
	expect("unshare", SYS_unshare, CLONE_NEWUSER, EPERM);
	expect("clone", SYS_clone, CLONE_NEWUSER | 17, EPERM);
	expect("clone3", SYS_clone3, 0, ENOSYS);
	expect("vsock", SYS_socket, AF_VSOCK, EPERM);
	expect("unknown", 0x3fff, 0, ENOSYS);
	if (i386(288, 0) != -EPERM || i386(310, CLONE_NEWUSER) != -EPERM)
		printf("i386\n");
	/* What programs need. */
	if (syscall(SYS_unshare, CLONE_FILES) != 0)
		printf("unshare of files is refused\n");
	return 0;
}
