// The kernels of folio-cuda: copies for the host's reads and writes, and measurements. The text of
// folio_device.h precedes this one.

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// With the largest blocks: without bounds the compiler takes so many registers for a thread that a
// block of 1024 threads does not start.
#define FOLIO_KERNEL extern "C" __global__ void __launch_bounds__(1024)
FOLIO_DEVICE folio_u64 folio_block() { return blockIdx.x; }
FOLIO_DEVICE folio_u64 folio_blocks() { return gridDim.x; }
#else
#define FOLIO_KERNEL static void
static thread_local folio_u64 folio_host_block, folio_host_blocks = 1;
FOLIO_DEVICE folio_u64 folio_block() { return folio_host_block; }
FOLIO_DEVICE folio_u64 folio_blocks() { return folio_host_blocks; }
#endif

struct folio_part {
    folio_u64 to, from, len;
};

// Copies each part by one warp; parts have at most FOLIO_SEGMENT bytes. Either side may be pinned
// memory of the host.
FOLIO_KERNEL folio_copy_parts(const folio_part *parts, folio_u64 count) {
    const folio_u32 lanes = folio_lanes() < 32 ? folio_lanes() : 32;
    const folio_u64 warps = folio_lanes() / lanes;
    const folio_u64 warp = folio_block() * warps + folio_lane() / lanes;
    for (folio_u64 at = warp; at < count; at += folio_blocks() * warps)
        folio_copy((char *)parts[at].to, (const char *)parts[at].from, (folio_u32)parts[at].len,
                   folio_lane() % lanes, lanes);
}

// One call of the API, by a thread (0), the last warp of a block (1) or a block (2).
struct folio_operation {
    folio_u64 is_write, scope, file, offset, buf, len;
    long long result;
};

// Makes calls of the API, one block for each. The lanes' results are combined: the least one.
FOLIO_KERNEL folio_operations(folio_dev *dev, folio_operation *operations, folio_u64 count) {
    for (folio_u64 at = folio_block(); at < count; at += folio_blocks()) {
        folio_operation *op = &operations[at];
        if (op->scope == 0 && folio_lane() > 0)
            continue;
        if (op->scope == 1 && folio_lane() / 32 != (folio_lanes() - 1) / 32)
            continue;
        const folio_u32 file = (folio_u32)op->file;
        void *buf = (void *)op->buf;
        long long result;
        if (op->is_write)
            result = op->scope == 0   ? folio_dev_pwrite(dev, file, op->offset, buf, op->len)
                     : op->scope == 1 ? folio_dev_pwrite_warp(dev, file, op->offset, buf, op->len)
                                      : folio_dev_pwrite_block(dev, file, op->offset, buf, op->len);
        else
            result = op->scope == 0   ? folio_dev_pread(dev, file, op->offset, buf, op->len)
                     : op->scope == 1 ? folio_dev_pread_warp(dev, file, op->offset, buf, op->len)
                                      : folio_dev_pread_block(dev, file, op->offset, buf, op->len);
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
        atomicMin(&op->result, result);
#else
        op->result = result < op->result ? result : op->result;
#endif
    }
}

// Reads `len` bytes by one block.
FOLIO_KERNEL folio_read_block(folio_dev *dev, folio_u64 offset, void *buf, folio_u64 len) {
    folio_dev_pread_block(dev, 0, offset, buf, len);
}

// Reads `count` pieces of 4 KiB at random places of file 0, one warp for each, into `buf`.
FOLIO_KERNEL folio_gather(folio_dev *dev, char *buf, folio_u64 count, folio_u64 seed) {
    const folio_u64 pieces = dev->files[0].size / FOLIO_SEGMENT;
    const folio_u64 warps = folio_lanes() / 32;
    const folio_u64 warp = folio_block() * warps + folio_lane() / 32;
    for (folio_u64 at = warp; at < count; at += folio_blocks() * warps) {
        folio_u64 place = (at + seed) * 0x9e3779b97f4a7c15ull;
        place = ((place >> 32) * 0xd6e8feb86659fd93ull >> 16) % pieces;
        folio_dev_pread_warp(dev, 0, place * FOLIO_SEGMENT, buf + at * FOLIO_SEGMENT,
                             FOLIO_SEGMENT);
    }
}

// Copies `count` pieces of 4 KiB in order: the bandwidth beside which a gather is measured.
FOLIO_KERNEL folio_copy_in_order(char *to, const char *from, folio_u64 count) {
    const folio_u64 warps = folio_lanes() / 32;
    const folio_u64 warp = folio_block() * warps + folio_lane() / 32;
    for (folio_u64 at = warp; at < count; at += folio_blocks() * warps)
        folio_copy(to + at * FOLIO_SEGMENT, from + at * FOLIO_SEGMENT, FOLIO_SEGMENT,
                   folio_lane() % 32, 32);
}

#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
static bool folio_host_equal(const char *left, const char *right) {
    while (*left && *left == *right)
        left++, right++;
    return *left == *right;
}

// A kernel with the number of its parameters, one word each.
struct folio_host_kernel {
    const char *name;
    folio_u64 count;
    void (*run)(const folio_u64 *a);
};

static const folio_host_kernel folio_host_kernels[] = {
    {"folio_copy_parts", 2,
     [](const folio_u64 *a) { folio_copy_parts((const folio_part *)a[0], a[1]); }},
    {"folio_operations", 3,
     [](const folio_u64 *a) {
         folio_operations((folio_dev *)a[0], (folio_operation *)a[1], a[2]);
     }},
    {"folio_read_block", 4,
     [](const folio_u64 *a) { folio_read_block((folio_dev *)a[0], a[1], (void *)a[2], a[3]); }},
    {"folio_gather", 4,
     [](const folio_u64 *a) { folio_gather((folio_dev *)a[0], (char *)a[1], a[2], a[3]); }},
    {"folio_copy_in_order", 3,
     [](const folio_u64 *a) { folio_copy_in_order((char *)a[0], (const char *)a[1], a[2]); }},
};

// Runs a kernel on the host: blocks and lanes one after the other. Returns 0, or the errno ENOENT
// for an unknown kernel, or EINVAL for another number of arguments than it has parameters.
extern "C" int folio_host_launch(const char *name, folio_u32 blocks, folio_u32 lanes,
                                 const folio_u64 *arguments, folio_u64 count) {
    for (const folio_host_kernel &kernel : folio_host_kernels) {
        if (!folio_host_equal(name, kernel.name))
            continue;
        if (count != kernel.count)
            return 22;
        folio_host_blocks = blocks;
        folio_host_lanes = lanes;
        for (folio_host_block = 0; folio_host_block < blocks; folio_host_block++)
            for (folio_host_lane = 0; folio_host_lane < lanes; folio_host_lane++)
                kernel.run(arguments);
        return 0;
    }
    return 2;
}
#endif
