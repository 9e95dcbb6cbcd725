// Files of a gpufs for code that runs on the device: CUDA C++, or plain C++ for tests.
//
//   folio_dev_pread(dev, file, offset, buf, len)        one thread
//   folio_dev_pread_warp(...)                           all lanes of a warp
//   folio_dev_pread_block(...)                          all threads of a block
//   folio_dev_pwrite, _warp, _block(...)                the same for writes
//   folio_dev_size(dev, file)
//
// `dev` is the address that the host passes to each launch; `file` is the place of a file in the
// host's list. Lanes of a warp or block call with equal arguments, and each copies its part: other
// lanes see the bytes after __syncwarp() or __syncthreads(). No function has a barrier of its own.
//
// A call returns the number of bytes, or a negative errno. -EBADF: the list has no such file, or
// the host has it not open for this. -EFBIG: the index of a page has more than 40 bits. -EAGAIN: a
// page is not in the table of this launch. The host then provides the page and launches the kernel
// again, until a launch has no misses; so a kernel must give the same result if it runs again. Only
// the lanes that miss a page see -EAGAIN.
//
// Consistency: a launch sees what the host wrote before it, and the host sees what the kernel
// wrote after the launch has ended. While a kernel runs, bytes that the host changes may be old or
// new.
#ifndef FOLIO_DEVICE_H
#define FOLIO_DEVICE_H

typedef unsigned int folio_u32;
typedef unsigned long long folio_u64;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FOLIO_DEVICE [[maybe_unused]] static __device__ __forceinline__
#define FOLIO_UNROLL _Pragma("unroll")
typedef uint4 folio_word16;
typedef folio_u64 folio_word8;
typedef folio_u32 folio_word4;
FOLIO_DEVICE folio_u32 folio_lanes() { return blockDim.x * blockDim.y * blockDim.z; }
FOLIO_DEVICE folio_u32 folio_lane() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
FOLIO_DEVICE folio_u64 folio_add(folio_u64 *word, folio_u64 value) {
    return atomicAdd(word, value);
}
FOLIO_DEVICE void folio_max(folio_u64 *word, folio_u64 value) { atomicMax(word, value); }
#else
// The shim for plain C++: a launch is a loop over blocks and lanes, which sets these variables.
#define FOLIO_DEVICE [[maybe_unused]] static inline
#define FOLIO_UNROLL
struct __attribute__((may_alias)) folio_word16 { folio_u64 bits[2]; };
struct __attribute__((may_alias)) folio_word8 { folio_u64 bits; };
struct __attribute__((may_alias)) folio_word4 { folio_u32 bits; };
static thread_local folio_u32 folio_host_lane, folio_host_lanes = 1;
FOLIO_DEVICE folio_u32 folio_lanes() { return folio_host_lanes; }
FOLIO_DEVICE folio_u32 folio_lane() { return folio_host_lane; }
FOLIO_DEVICE folio_u64 folio_add(folio_u64 *word, folio_u64 value) {
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
FOLIO_DEVICE void folio_max(folio_u64 *word, folio_u64 value) {
    folio_u64 old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(word, &old, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}
#endif

// The layout of these structures is that of src/table.rs.

// One file of the launch.
struct folio_dev_file {
    folio_u64 size;      // in bytes; pwrite extends it
    folio_u64 written;   // not 0 once a kernel wrote
    folio_u64 absent;    // 0: a page that is not in the table is a hole; 1: it is a miss
    folio_u64 access;    // FOLIO_READ, FOLIO_WRITE, both or none
};

// One page of the table; a key of 0 is a free place.
struct folio_dev_entry {
    folio_u64 key;       // (file + 1) << 40 | index
    folio_u64 address;   // FOLIO_HOLE: the file has no such page
};

// A page that a kernel missed.
struct folio_dev_miss {
    folio_u64 key;
    folio_u64 is_write;
};

// The epoch of one launch.
struct folio_dev {
    folio_u64 epoch;
    folio_u64 page_shift;
    folio_u64 file_count;
    folio_u64 table_shift;    // 64 less the binary logarithm of the number of places
    folio_u64 ring_capacity;
    folio_u64 missed;         // may exceed the capacity: then the last ones are lost
    folio_dev_file *files;
    folio_dev_entry *table;
    folio_dev_miss *ring;
};

enum : long long { FOLIO_EBADF = -9, FOLIO_EAGAIN = -11, FOLIO_EFBIG = -27 };
enum : folio_u64 { FOLIO_READ = 1, FOLIO_WRITE = 2 };
// The address of a page that is a hole.
enum : folio_u64 { FOLIO_HOLE = 1 };
// Bits of the index of a page.
enum : folio_u32 { FOLIO_INDEX_BITS = 40 };
// Lanes that copy one segment together, and its size in bytes.
enum : folio_u32 { FOLIO_TEAM = 32, FOLIO_SEGMENT = 4096 };

// Returns the address of a page, FOLIO_HOLE, or 0 for a page that is not in the table.
FOLIO_DEVICE folio_u64 folio_dev_page(const folio_dev *dev, folio_u64 key) {
    const folio_u64 last = (~0ull) >> dev->table_shift;
    folio_u64 place = (key * 0x9e3779b97f4a7c15ull) >> dev->table_shift;
    for (folio_u64 probe = 0; probe <= last; probe++) {
        const folio_dev_entry entry = dev->table[(place + probe) & last];
        if (entry.key == key)
            return entry.address;
        if (entry.key == 0)
            return 0;
    }
    return 0;
}

FOLIO_DEVICE void folio_dev_miss_page(folio_dev *dev, folio_u64 key, bool is_write) {
    const folio_u64 place = folio_add(&dev->missed, 1);
    if (place < dev->ring_capacity) {
        dev->ring[place].key = key;
        dev->ring[place].is_write = is_write;
    }
}

// Copies the whole words of `len` bytes with `lanes` lanes, or zeros if `from` is null; returns how
// many bytes these are. Both sides are aligned to a word.
template <typename Word>
FOLIO_DEVICE folio_u32 folio_copy_words(char *to, const char *from, folio_u32 len, folio_u32 lane,
                                        folio_u32 lanes) {
    const folio_u32 count = len / sizeof(Word);
    Word *out = (Word *)to;
    const Word *in = (const Word *)from;
    folio_u32 at = lane;
    if (!in) {
        for (; at < count; at += lanes)
            out[at] = Word{};
        return count * sizeof(Word);
    }
    // Loads before stores, so that they are in flight together.
    for (; at + 7 * lanes < count; at += 8 * lanes) {
        Word words[8];
FOLIO_UNROLL
        for (int i = 0; i < 8; i++)
            words[i] = in[at + i * lanes];
FOLIO_UNROLL
        for (int i = 0; i < 8; i++)
            out[at + i * lanes] = words[i];
    }
    for (; at < count; at += lanes)
        out[at] = in[at];
    return count * sizeof(Word);
}

// Copies at most FOLIO_SEGMENT bytes with `lanes` lanes; zeros if `from` is null. The words are the
// longest that fit the distance of the two sides; bytes before and after them are copied singly.
FOLIO_DEVICE void folio_copy(char *to, const char *from, folio_u32 len, folio_u32 lane,
                             folio_u32 lanes) {
    const folio_u32 distance = from ? (folio_u32)((folio_u64)to - (folio_u64)from) & 15 : 0;
    const folio_u32 word = distance == 0 ? 16 : distance & 3 ? 1 : distance & 7 ? 4 : 8;
    folio_u32 head = (folio_u32)(0 - (folio_u64)to) & (word - 1);
    head = head < len ? head : len;
    folio_u32 done = head;
    char *out = to + head;
    const char *in = from ? from + head : nullptr;
    if (word == 16)
        done += folio_copy_words<folio_word16>(out, in, len - head, lane, lanes);
    else if (word == 8)
        done += folio_copy_words<folio_word8>(out, in, len - head, lane, lanes);
    else if (word == 4)
        done += folio_copy_words<folio_word4>(out, in, len - head, lane, lanes);
    for (folio_u32 at = lane; at < head; at += lanes)
        to[at] = from ? from[at] : 0;
    for (folio_u32 at = done + lane; at < len; at += lanes)
        to[at] = from ? from[at] : 0;
}

// Reads or writes with `lanes` lanes, of which this is number `lane`.
FOLIO_DEVICE long long folio_dev_transfer(folio_dev *dev, folio_u32 file, folio_u64 offset,
                                          char *buf, folio_u64 len, bool is_write, folio_u32 lane,
                                          folio_u32 lanes) {
    if (file >= dev->file_count)
        return FOLIO_EBADF;
    if (offset >> 62 || len >> 62)
        return FOLIO_EFBIG;
    folio_dev_file *of = &dev->files[file];
    if (!(of->access & (is_write ? FOLIO_WRITE : FOLIO_READ)))
        return FOLIO_EBADF;
    if (!is_write) {
        const folio_u64 size = *(volatile folio_u64 *)&of->size;
        if (offset >= size)
            return 0;
        len = len < size - offset ? len : size - offset;
    }
    if (len == 0)
        return 0;
    // The next bits of a key are the file.
    if ((offset + len - 1) >> dev->page_shift >> FOLIO_INDEX_BITS)
        return FOLIO_EFBIG;
    // Each team of lanes takes one segment after the other.
    const folio_u32 team_lanes = lanes < FOLIO_TEAM ? lanes : FOLIO_TEAM;
    const folio_u64 teams = lanes / team_lanes;
    const folio_u32 rank = lane % team_lanes;
    const folio_u64 first = offset / FOLIO_SEGMENT, last = (offset + len - 1) / FOLIO_SEGMENT;
    bool is_missed = false;
    for (folio_u64 segment = first + lane / team_lanes; segment <= last; segment += teams) {
        if (lane / team_lanes >= teams)
            break;
        const folio_u64 start = segment == first ? offset : segment * FOLIO_SEGMENT;
        const folio_u64 end = segment == last ? offset + len : (segment + 1) * FOLIO_SEGMENT;
        const folio_u64 index = start >> dev->page_shift;
        const folio_u64 key = (folio_u64)(file + 1) << FOLIO_INDEX_BITS | index;
        folio_u64 page = folio_dev_page(dev, key);
        char *part = buf + (start - offset);
        if (page == 0 ? is_write || of->absent : page == FOLIO_HOLE && is_write) {
            is_missed = true;
            if (rank == 0)
                folio_dev_miss_page(dev, key, is_write);
            continue;
        }
        if (page == FOLIO_HOLE)
            page = 0;
        char *in_page = page ? (char *)(page + (start - (index << dev->page_shift))) : nullptr;
        if (!is_write) {
            folio_copy(part, in_page, (folio_u32)(end - start), rank, team_lanes);
            continue;
        }
        folio_copy(in_page, part, (folio_u32)(end - start), rank, team_lanes);
        if (rank == 0) {
            folio_max(&of->size, end);
            folio_max(&of->written, 1);
        }
    }
    return is_missed ? (long long)FOLIO_EAGAIN : (long long)len;
}

// Returns the number of lanes of this warp: the last one of a block may have fewer than 32.
FOLIO_DEVICE folio_u32 folio_warp_lanes() {
    const folio_u32 rest = folio_lanes() - folio_lane() / 32 * 32;
    return rest < 32 ? rest : 32;
}

#define FOLIO_DEV_CALLS(suffix, lane, lanes)                                                       \
    FOLIO_DEVICE long long folio_dev_pread##suffix(folio_dev *dev, folio_u32 file,                 \
                                                   folio_u64 offset, void *buf, folio_u64 len) {   \
        return folio_dev_transfer(dev, file, offset, (char *)buf, len, false, lane, lanes);        \
    }                                                                                              \
    FOLIO_DEVICE long long folio_dev_pwrite##suffix(folio_dev *dev, folio_u32 file,                \
                                                    folio_u64 offset, const void *buf,             \
                                                    folio_u64 len) {                               \
        return folio_dev_transfer(dev, file, offset, (char *)buf, len, true, lane, lanes);         \
    }

FOLIO_DEV_CALLS(, 0, 1)
FOLIO_DEV_CALLS(_warp, folio_lane() % 32, folio_warp_lanes())
FOLIO_DEV_CALLS(_block, folio_lane(), folio_lanes())

// Returns the size of a file in bytes, or a negative errno.
FOLIO_DEVICE long long folio_dev_size(folio_dev *dev, folio_u32 file) {
    if (file >= dev->file_count)
        return FOLIO_EBADF;
    return (long long)*(volatile folio_u64 *)&dev->files[file].size;
}

#endif
