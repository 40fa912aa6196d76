// Bulk copies between device memory and registered host memory, for devices of compute capability 9.0 and newer.
//
// Block i has `nbytes` bytes (a multiple of 16) at src[i] and goes to dst[i]; both are 16-byte aligned. Every warp moves
// pieces of at most CHUNK bytes through a ring of STAGES buffers in shared memory. The copy hardware of the
// multiprocessor does the moving, so that one warp keeps tens of kilobytes in flight. With BOUND, at most BEHIND writes of
// a warp are under way: more stores would queue up for the link in front of what compute writes to memory. Without, a
// buffer is free as soon as it was read.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Fill a buffer; `filled` changes its phase when all of it has arrived.
__device__ __forceinline__ void fetch(u32 buffer, u64 from, u32 nbytes, u32 filled) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(filled), "r"(nbytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(buffer),
                 "l"(from), "r"(nbytes), "r"(filled)
                 : "memory");
}

__device__ __forceinline__ void await(u32 filled, u32 phase) {
    u32 done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(filled), "r"(phase)
                     : "memory");
    } while (!done);
}

// Write a buffer out, as a group of its own.
__device__ __forceinline__ void put(u64 to, u32 buffer, u32 nbytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(buffer), "r"(nbytes)
                 : "memory");
}

// The pieces of one warp, in order. Lane l holds address and length of each 32nd, so that one access reads 32; the
// next 32 travel meanwhile.
struct Pieces {
    const u64 *table;
    u32 nbytes, per_block, first, apart, count, lane;
    u64 address, address_ahead;
    u32 length, length_ahead;

    __device__ void look_up(u32 i, u64 &at, u32 &size) const {
        if (i >= count) return;
        const u32 piece = first + i * apart, block = piece / per_block, offset = (piece - block * per_block) * CHUNK;
        at = table[block] + offset;
        size = min(nbytes - offset, (u32)CHUNK);
    }

    __device__ void open() {
        look_up(lane, address, length);
        look_up(lane + 32, address_ahead, length_ahead);
    }

    __device__ u64 address_of(u32 i) const { return __shfl_sync(~0u, address, i & 31); }
    __device__ u32 length_of(u32 i) const { return __shfl_sync(~0u, length, i & 31); }

    __device__ void done_with(u32 i) {
        if ((i & 31) != 31) return;
        address = address_ahead;
        length = length_ahead;
        look_up(i + 33 + lane, address_ahead, length_ahead);
    }
};

extern "C" __global__ void copy_bulk(const u64 *src, const u64 *dst, u32 blocks, u32 nbytes) {
    extern __shared__ __align__(128) unsigned char buffers[];
    __shared__ u64 barriers[WARPS * STAGES];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 per_block = (nbytes + CHUNK - 1) / CHUNK, pieces = blocks * per_block;
    const u32 first = warp * gridDim.x + blockIdx.x, apart = gridDim.x * WARPS;
    if (first >= pieces) return;
    const u32 count = (pieces - first + apart - 1) / apart;
    const u32 ring = shared_address(buffers) + warp * (CHUNK * STAGES);
    const u32 filled = shared_address(barriers + warp * STAGES);
    if (lane == 0) {
        for (u32 s = 0; s < STAGES; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(filled + 8 * s));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();

    Pieces sources{src, nbytes, per_block, first, apart, count, lane}, targets = sources;
    targets.table = dst;
    sources.open();
    targets.open();
    u32 fetched = 0, fetch_stage = 0;
    auto fetch_next = [&] {
        if (fetched == count) return;
        const u64 from = sources.address_of(fetched);
        const u32 size = sources.length_of(fetched);
        if (lane == 0) fetch(ring + fetch_stage * CHUNK, from, size, filled + 8 * fetch_stage);
        sources.done_with(fetched++);
        if (++fetch_stage == STAGES) fetch_stage = 0;
    };
    for (u32 s = 0; s < STAGES; ++s) fetch_next();

    u32 stage = 0, phase = 0;
    for (u32 i = 0; i < count; ++i) {
        const u64 to = targets.address_of(i);
        const u32 size = targets.length_of(i);
        if (lane == 0) {
            await(filled + 8 * stage, phase);
            put(to, ring + stage * CHUNK, size);
            // All but the last BEHIND writes are over, so the buffer of the one before them is free.
#if BOUND
            asm volatile("cp.async.bulk.wait_group %0;" ::"n"(BEHIND) : "memory");
#else
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BEHIND) : "memory");
#endif
        }
        __syncwarp();
        if (i >= BEHIND) fetch_next();
        targets.done_with(i);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
