/* The peak of fused multiply-adds on one core: independent chains in registers, nothing from memory.
 *
 * Compiled where it runs, with -march=native and -DVECTOR_BYTES=<the target's register width>.
 * Chains are named variables: gcc keeps an array of vectors in memory, which would measure loads and stores.
 */
#if defined(__x86_64__)
#define REGISTER "v" /* any xmm, ymm or zmm */
#else
#define REGISTER "w" /* any NEON register */
#endif

/* x86 hides 4 cycles x 2 units with 8 chains; the widest Arm cores have 4 cycles x 4 units: 16.
 * Two more registers hold the factors. */
#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define CHAINS 20
#define EACH_CHAIN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) \
    F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19)
#else
#define CHAINS 12
#define EACH_CHAIN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#endif

#define START(i) vector chain##i = shift * (float)i;
/* The empty asm keeps the chain in its register and stops the compiler from merging steps. */
#define ADVANCE(i) chain##i = chain##i * scale + shift; __asm__ volatile("" : "+" REGISTER(chain##i));
#define COLLECT(i) total += chain##i[0];

typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

const long convopt_flop_per_step = 2L * CHAINS * (VECTOR_BYTES / 4);

float convopt_fma_chains(long steps)
{
    vector scale, shift;
    for (int lane = 0; lane < VECTOR_BYTES / 4; lane++) {
        scale[lane] = 0.999f;
        shift[lane] = 0.001f;
    }
    EACH_CHAIN(START)
    for (long step = 0; step < steps; step++) {
        EACH_CHAIN(ADVANCE)
    }
    float total = 0;
    EACH_CHAIN(COLLECT)
    return total;
}
