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

extern "C" __global__ void copy_blocks(const u64 *src, const u64 *dst, u32 blocks, u32 nbytes) {
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
