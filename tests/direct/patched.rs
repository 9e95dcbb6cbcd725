//! System calls of patched sites: registers, signals, children and threads.

use super::support::tools::text;
use super::support::{report_skip, requires, rounds};
use super::{Fixture, finish};
use std::process::Command;

/// Makes calls from a site of its own, and from those of the C library. Prints the first byte of
/// its site after many calls, and how much was wrong.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

/* lseek(fd, 5, SEEK_SET) with a known value in each register and in the red zone. */
struct state { uint64_t general[12], zone[2], vectors[16][4]; int64_t result; };
extern unsigned char site[];
void call(struct state *, long fd);
#define SAVE "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
#define BACK "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
#define SET "mov %rdi, %r15\n mov %rsi, %rdi\n mov $5, %esi\n xor %edx, %edx\n" \
  "mov $11, %ebx\n mov $12, %ebp\n mov $13, %r12d\n mov $14, %r13d\n mov $15, %r14d\n" \
  "mov $16, %r8d\n mov $17, %r9d\n mov $18, %r10d\n movq $19, -8(%rsp)\n movq $20, -128(%rsp)\n" \
  "vmovups 112(%r15), %ymm0\n vmovups 368(%r15), %ymm8\n vmovups 592(%r15), %ymm15\n"
#define GET "mov %rax, 624(%r15)\n mov %rdi, (%r15)\n mov %rsi, 8(%r15)\n mov %rdx, 16(%r15)\n" \
  "mov %rbx, 24(%r15)\n mov %rbp, 32(%r15)\n mov %r12, 40(%r15)\n mov %r13, 48(%r15)\n" \
  "mov %r14, 56(%r15)\n mov %r8, 64(%r15)\n mov %r9, 72(%r15)\n mov %r10, 80(%r15)\n" \
  "mov -8(%rsp), %rax\n mov %rax, 96(%r15)\n mov -128(%rsp), %rax\n mov %rax, 104(%r15)\n" \
  "vmovups %ymm0, 112(%r15)\n vmovups %ymm8, 368(%r15)\n vmovups %ymm15, 592(%r15)\n vzeroupper\n"
asm(".text\n.globl call, site\n.p2align 4\ncall:\n" SAVE SET
    "xchg %ax, %ax\n site: mov $8, %eax\n syscall\n" GET BACK);

static int fd, faults, alarms;

static void check(int of, int64_t expected)
{
    struct state state;
    memset(&state, 0, sizeof state);
    for (int i = 0; i < 64; i++) state.vectors[i / 4][i % 4] = 1000 + i;
    call(&state, of);
    uint64_t general[] = { of, 5, 0, 11, 12, 13, 14, 15, 16, 17, 18 };
    faults += state.result != expected || memcmp(general, state.general, sizeof general) != 0
        || state.zone[0] != 19 || state.zone[1] != 20;
    for (int i = 0; i < 64; i++) faults += state.vectors[i / 4][i % 4] != 1000 + i;
}

static void library(int of)
{
    struct stat found;
    char byte;
    int other = open("f", O_RDONLY);
    faults += fstat(of, &found) != 0 || found.st_size != 10 || other < 0;
    faults += pread(other, &byte, 1, 3) != 1 || byte != '3' || close(other) != 0;
    faults += stat("none", &found) != -1 || errno != ENOENT;
}

static void on_alarm(int signal)
{
    int before = errno;
    alarms++;
    check(fd, 5);
    library(fd);
    errno = before;
}

/* stat(2) while string instructions go backward, as no compiler leaves them. */
static void backward(void)
{
    struct stat found;
    long result;
    asm volatile("std; .skip 3, 0x90; mov $4, %%eax; syscall; cld"
                 : "=a"(result) : "D"("f"), "S"(&found) : "rcx", "r11", "memory");
    faults += result != 0 || found.st_size != 10;
}

static int step, last_step, leaves, forks;
static pid_t forked;
static sigjmp_buf before;

/* After some instructions of the runtime, forks or never returns. */
static void on_trap(int signal, siginfo_t *info, void *context)
{
    const uint64_t runtime = 0x5f0000000000, trap_flag = 0x100;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (((uint64_t)registers[REG_RIP] ^ runtime) >> 32 || ++step != last_step) return;
    registers[REG_EFL] &= ~trap_flag;
    if (leaves) siglongjmp(before, 1);
    forks++;
    forked = fork();
}

/* A signal at each of the first instructions of the runtime, which then blocks all signals. */
static void at_each_step(void)
{
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER };
    int status;
    sigaction(SIGTRAP, &action, NULL);
    for (leaves = 0; leaves < 2; leaves++) {
        for (last_step = 1; last_step <= 18; last_step++) {
            long result = 5;
            step = 0;
            forked = -1;
            if (sigsetjmp(before, 1) == 0)
                asm volatile("pushf; orl $0x100, (%%rsp); popf; mov $8, %%eax; syscall\n"
                             "pushf; andl $~0x100, (%%rsp); popf"
                             : "=a"(result) : "D"(fd), "S"(5), "d"(0) : "rcx", "r11", "memory");
            faults += result != 5;
            if (forked == 0) {
                faults = result != 5;
                library(fd);
                _exit(faults);
            }
            if (forked > 0) faults += waitpid(forked, &status, 0) != forked || status != 0;
            library(fd);
        }
    }
}

static void *thread(void *unused)
{
    for (int i = 0; i < 1000; i++) { check(fd, 5); library(fd); }
    return NULL;
}

int main(void)
{
    int pipes[2], status;
    pthread_t threads[3];
    fd = open("f", O_RDWR | O_CREAT, 0644);
    faults += write(fd, "0123456789", 10) != 10 || pipe(pipes) != 0;
    for (int i = 0; i < 30; i++) {
        check(fd, 5);
        check(-1, -EBADF);
        check(pipes[0], -ESPIPE);
        library(fd);
        backward();
    }
    for (int i = 0; i < 10; i++) at_each_step();
    printf("%x, forks %d\n", site[0], forks > 99);
    fflush(stdout);
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { 0 };
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 500 || alarms < 100; i++) { check(fd, 5); library(fd); }
    /* A read that waits, until a child writes. */
    for (int i = 0; i < 20; i++) {
        char byte;
        pid_t child = fork();
        if (child == 0) {
            faults = 0;
            check(fd, 5);
            library(fd);
            faults += write(pipes[1], "x", 1) != 1;
            _exit(faults);
        }
        faults += read(pipes[0], &byte, 1) != 1;
        faults += waitpid(child, &status, 0) != child || status != 0;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, thread, NULL);
    thread(NULL);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("faults %d, alarms %d\n", faults, alarms > 99);
    return faults != 0;
}
"#;

#[test]
fn calls_of_patched_sites_change_the_result_alone() {
    requires!(tool("gcc"));
    if !std::arch::is_x86_feature_detected!("avx") {
        return report_skip("the processor has no AVX");
    }
    let fixture = Fixture::new("16M");
    let (source, program) = (
        fixture.folder.path().join("patched.c"),
        fixture.folder.path().join("patched"),
    );
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-mavx", "-pthread", "-o"]);
    let compiled = finish(compile.arg(&program).arg(&source));
    assert_eq!(compiled.status.code(), Some(0), "{}", text(&compiled));
    let mut native = Command::new(&program);
    native.current_dir(fixture.folder.path());
    let native = finish(&mut native);
    assert_eq!(text(&native), "b8, forks 0\nfaults 0, alarms 1\n");
    let rounds = if rounds::is_long() { 60 } else { 1 };
    let script = "run() { mkdir $1 && cd $1 && \"$0\" && rm f; }; \
        for round in $(seq ROUNDS); do \
            for i in 1 2 3; do (run $round-$i) & done; wait; \
        done";
    let script = script.replace("\"$0\"", &program.display().to_string());
    let output = fixture.bash(&script.replace("ROUNDS", &rounds.to_string()));
    let found = text(&output);
    let mut lines: Vec<_> = found.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, ["e9, forks 1", "faults 0, alarms 1"]);
    assert_eq!(found.lines().count(), 2 * 3 * rounds);
    assert_eq!(output.status.code(), Some(0));
    fixture.check();
}
