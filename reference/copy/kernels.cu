// Kernels that copy blocks between device memory and registered host memory.
//
// Block i has `nbytes` bytes (a multiple of 16) at src[i] and goes to dst[i]; both are 16-byte aligned. Few thread
// blocks suffice: what counts is the number of bytes in flight over the link, and compute keeps its multiprocessors.

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Quad {
    u32 x, y, z, w;
};

__device__ __forceinline__ Quad load_once(u64 at) {
    Quad v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_once(u64 at, Quad v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Each warp moves pieces of 32 lanes x 16 bytes x UNROLL, with all loads of a piece in flight at once.
#ifndef UNROLL
#define UNROLL 8
#endif

extern "C" __global__ void copy_by_threads(const u64 *src, const u64 *dst, u32 blocks, u32 nbytes) {
    const u32 piece = 32 * 16 * UNROLL;
    const u32 lane = threadIdx.x & 31;
    const u32 per_block = (nbytes + piece - 1) / piece;
    const u64 pieces = (u64)blocks * per_block;
    const u64 warps = (u64)gridDim.x * (blockDim.x >> 5);
    u64 p = (u64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (p >= pieces) return;
    u32 block = p / per_block;
    u64 from = src[block], to = dst[block];
    while (true) {
        const u32 offset = (u32)(p % per_block) * piece + lane * 16;
        const u64 next = p + warps;
        u64 next_from = 0, next_to = 0;
        if (next < pieces) {
            // The next addresses travel while this piece does.
            block = next / per_block;
            next_from = src[block];
            next_to = dst[block];
        }
        Quad v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i)
            if (offset + i * 512 < nbytes) v[i] = load_once(from + offset + i * 512);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i)
            if (offset + i * 512 < nbytes) store_once(to + offset + i * 512, v[i]);
        if (next >= pieces) break;
        p = next;
        from = next_from;
        to = next_to;
    }
}

#if __CUDA_ARCH__ >= 900
// One thread per thread block drives the bulk copy engine of its multiprocessor through a ring of `stages` pieces
// in shared memory. WRITES pieces may be on their way out; the others are on their way in.
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void bulk_in(u32 ring, u64 from, u32 size, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(size) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(ring),
                 "l"(from), "r"(size), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

#define MOST_STAGES 32

template <int WRITES>
__device__ __forceinline__ void copy_bulk(const u64 *src, const u64 *dst, u32 blocks, u32 nbytes, u32 piece, u32 stages) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) u64 full[MOST_STAGES];
    __shared__ u64 target[MOST_STAGES];
    if (threadIdx.x) return;
    const u32 base = shared_address(ring), barriers = shared_address(full);
    for (u32 s = 0; s < stages; ++s)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * s) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

    const u32 per_block = (nbytes + piece - 1) / piece;
    const u64 pieces = (u64)blocks * per_block;
    const u64 mine = pieces > blockIdx.x ? (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    auto begin = [&](u64 i) {
        const u64 p = blockIdx.x + i * gridDim.x;
        const u32 block = p / per_block, offset = (u32)(p % per_block) * piece, stage = i % stages;
        target[stage] = dst[block] + offset;
        bulk_in(base + stage * piece, src[block] + offset, min(piece, nbytes - offset), barriers + 8 * stage);
    };
    for (u64 i = 0; i < mine && i < stages; ++i) begin(i);
    for (u64 i = 0; i < mine; ++i) {
        const u32 stage = i % stages;
        const u32 offset = (u32)((blockIdx.x + i * gridDim.x) % per_block) * piece;
        wait_for(barriers + 8 * stage, (u32)(i / stages) & 1);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target[stage]),
                     "r"(base + stage * piece), "r"(min(piece, nbytes - offset))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(WRITES) : "memory");
        // The write WRITES pieces ago has left its stage.
        if (i >= WRITES && i - WRITES + stages < mine) begin(i - WRITES + stages);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#define BULK(WRITES)                                                                                          \
    extern "C" __global__ void copy_bulk_##WRITES(const u64 *src, const u64 *dst, u32 blocks, u32 nbytes, u32 piece, \
                                                  u32 stages) {                                               \
        copy_bulk<WRITES>(src, dst, blocks, nbytes, piece, stages);                                           \
    }

BULK(1)
BULK(4)
BULK(8)
#endif
