// A CUDA driver in the host's memory. Its text follows that of the device code.
//
// It is as unhelpful as the interface allows. What a stream has to do is done when the host waits
// for it, and no earlier. A synchronous copy of ordinary memory is done by the next such copy: the
// streams here do not wait for the default stream. Allocations adjoin, and no copy may cross them.
//
// Variables: STUB_FAIL names a function that fails with out of memory. STUB_VERSION is the version
// of CUDA. At the end of the process, whatever was not released fails it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600 };
typedef unsigned long long Address;

struct Stream {
    std::deque<std::function<void()>> calls;
    size_t done = 0;
};
struct Event {
    Stream *stream = nullptr;
    size_t after = 0;
};

static std::mutex lock;
static std::set<Stream *> streams;
static std::set<Event *> events;
static std::map<void *, size_t> pinned;
static std::map<Address, Address> allocations;
static std::function<void()> default_copy;
static Address next_address;
static int contexts;

#define CALL                                                                                       \
    std::lock_guard<std::mutex> guard(lock);                                                       \
    if (const char *name = getenv("STUB_FAIL"))                                                    \
        if (!strcmp(name, __func__))                                                               \
            return OUT_OF_MEMORY;

static void run(Stream *stream, size_t until) {
    for (; stream->done < until && !stream->calls.empty(); stream->done++) {
        stream->calls.front()();
        stream->calls.pop_front();
    }
}

static void run_all() {
    for (Stream *stream : streams)
        run(stream, ~size_t(0));
}

static bool is_inside(Address address, size_t len) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin())
        return false;
    auto found = --after;
    return address + len <= found->first + found->second;
}

static int add(Stream *stream, std::function<void()> call) {
    if (!streams.count(stream))
        return INVALID_VALUE;
    stream->calls.push_back(call);
    return OK;
}

__attribute__((destructor)) static void check() {
    size_t left = streams.size() + events.size() + pinned.size() + allocations.size() + contexts;
    if (!getenv("STUB_CHECK") || left == 0)
        return;
    fprintf(stderr, "not released: %zu streams, %zu events, %zu pinned, %zu frames, %d contexts\n",
            streams.size(), events.size(), pinned.size(), allocations.size(), contexts);
    _exit(70);
}

extern "C" {
int cuInit(unsigned) { CALL return OK; }
int cuDriverGetVersion(int *version) {
    CALL const char *text = getenv("STUB_VERSION");
    *version = text ? atoi(text) : 13000;
    return OK;
}
int cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "error of the stub";
    return OK;
}
int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
int cuDeviceGet(int *device, int) { CALL *device = 0; return OK; }
int cuDeviceGetName(char *name, int len, int) { CALL snprintf(name, len, "a stub"); return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    CALL *value = attribute == 75 ? 9 : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int) {
    CALL *context = &contexts;
    contexts++;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int) { CALL contexts--; return OK; }
int cuCtxSetCurrent(void *) { CALL return OK; }
int cuStreamCreate(Stream **stream, unsigned) {
    CALL *stream = new Stream;
    streams.insert(*stream);
    return OK;
}
int cuStreamSynchronize(Stream *stream) { CALL run(stream, ~size_t(0)); return OK; }
int cuStreamDestroy_v2(Stream *stream) {
    CALL run(stream, ~size_t(0));
    streams.erase(stream);
    return OK;
}
int cuEventCreate(Event **event, unsigned) {
    CALL *event = new Event;
    events.insert(*event);
    return OK;
}
int cuEventDestroy_v2(Event *event) { CALL events.erase(event); return OK; }
int cuEventRecord(Event *event, Stream *stream) {
    CALL event->stream = stream;
    event->after = stream->done + stream->calls.size();
    return OK;
}
int cuEventQuery(Event *event) {
    CALL return event->stream && event->stream->done < event->after ? NOT_READY : OK;
}
int cuEventSynchronize(Event *event) {
    CALL if (event->stream && streams.count(event->stream)) run(event->stream, event->after);
    return OK;
}
int cuEventElapsedTime_v2(float *time, Event *, Event *) { CALL *time = 1; return OK; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { CALL *free = *total = 4ull << 30; return OK; }
int cuMemAlloc_v2(Address *address, size_t len) {
    CALL const size_t room = 64ull << 30;
    if (!next_address)
        next_address = (Address)mmap(nullptr, room, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = next_address;
    next_address += (len + 255) / 256 * 256;
    allocations[*address] = len;
    memset((void *)*address, 0xa5, len);
    return OK;
}
int cuMemFree_v2(Address address) {
    CALL run_all();
    auto found = allocations.find(address);
    if (found == allocations.end())
        return INVALID_VALUE;
    const Address first = (address + 4095) / 4096 * 4096;
    const Address end = (address + found->second) / 4096 * 4096;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
    allocations.erase(found);
    return OK;
}
int cuMemHostAlloc(void **memory, size_t len, unsigned) {
    CALL *memory = malloc(len);
    pinned[*memory] = len;
    return OK;
}
int cuMemFreeHost(void *memory) { CALL run_all(); pinned.erase(memory); free(memory); return OK; }
int cuMemcpyHtoD_v2(Address to, const char *from, size_t len) {
    CALL if (!is_inside(to, len)) return INVALID_VALUE;
    if (default_copy)
        default_copy();
    std::vector<char> bytes(from, from + len);
    default_copy = [=] { memcpy((void *)to, bytes.data(), len); };
    return OK;
}
int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t len, Stream *stream) {
    CALL if (!is_inside(to, len)) return INVALID_VALUE;
    return add(stream, [=] { memcpy((void *)to, from, len); });
}
int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t len, Stream *stream) {
    CALL if (!is_inside(from, len)) return INVALID_VALUE;
    return add(stream, [=] { memcpy(to, (void *)from, len); });
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t len, Stream *stream) {
    CALL if (!is_inside(from, len) || !is_inside(to, len)) return INVALID_VALUE;
    return add(stream, [=] { memmove((void *)to, (void *)from, len); });
}
int cuMemsetD8Async(Address to, unsigned char byte, size_t len, Stream *stream) {
    CALL if (!is_inside(to, len)) return INVALID_VALUE;
    return add(stream, [=] { memset((void *)to, byte, len); });
}
int cuModuleLoadData(void **module, const void *) { CALL *module = &contexts; return OK; }
#ifndef STUB_OLD
int cuModuleGetFunctionCount(unsigned *count, void *) {
    CALL *count = sizeof folio_host_kernels / sizeof *folio_host_kernels;
    return OK;
}
int cuModuleEnumerateFunctions(const folio_host_kernel **functions, unsigned count, void *) {
    CALL for (unsigned at = 0; at < count; at++) functions[at] = &folio_host_kernels[at];
    return OK;
}
int cuFuncGetName(const char **name, const folio_host_kernel *function) {
    CALL *name = function->name;
    return OK;
}
int cuFuncGetParamInfo(const folio_host_kernel *function, size_t at, size_t *offset, size_t *size) {
    CALL if (at >= function->count) return INVALID_VALUE;
    *offset = at * 8;
    *size = 8;
    return OK;
}
#endif
int cuLaunchKernel(const folio_host_kernel *function, unsigned blocks, unsigned, unsigned,
                   unsigned lanes, unsigned, unsigned, unsigned, Stream *stream, void **words,
                   void **) {
    CALL std::vector<folio_u64> arguments;
    for (folio_u64 at = 0; at < function->count; at++)
        arguments.push_back(*(folio_u64 *)words[at]);
    return add(stream, [=] {
        folio_host_launch(function->name, blocks, lanes, arguments.data(), arguments.size());
    });
}
}
