"""The kernels, as text that the driver compiles for its GPU. Pure.

The first two do a fixed amount of work. A kernel that watched a clock would end in time although others had
the GPU meanwhile, and would show no difference.

The text asks for as little as it can: the first header is for all GPUs from Maxwell on, the second for
drivers that no longer take the first (CUDA 13 knows nothing before Turing).
"""

from __future__ import annotations

HEADERS = (".version 6.0\n.target sm_50", ".version 6.3\n.target sm_75")

COMPUTE = "spin_compute"  # (iterations, out): so many rounds of 16 dependent multiply-adds in each thread
MEMORY = "spin_memory"  # (iterations, from, to, words): so many times to[i] = from[i] + 1, for all words

# (ns, meeting, parties, address): counts up the word of the meeting, and ends once all parties have done so.
# The first is for the tests' driver, which has no memory that kernels write to.
MEET = "meet_flags"
_SPINS = 1 << 28  # before a kernel that waits for another gives up: some seconds

_ROUND = "    fma.rn.f32 %f1, %f1, %f2, %f3;\n" * 16

# The store never happens: what starts at 0 or more, and is only multiplied by and added to positive
# numbers, does not get below 0. The compiler cannot know that, so it keeps the work.
_COPY = "(.param .u64 arg_iterations, .param .u64 arg_from, .param .u64 arg_to, .param .u64 arg_words)"
_BODY = f"""\
.address_size 64

.visible .entry {COMPUTE}(.param .u64 arg_iterations, .param .u64 arg_out)
{{
    .reg .pred %p<3>;
    .reg .f32 %f<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [arg_iterations];
    ld.param.u64 %rd2, [arg_out];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f1, %r1;
    mov.f32 %f2, 0f3F7FFF00;
    mov.f32 %f3, 0f3A800000;
    mov.u64 %rd3, 0;
$compute_next:
    setp.ge.u64 %p1, %rd3, %rd1;
    @%p1 bra $compute_done;
{_ROUND}\
    add.u64 %rd3, %rd3, 1;
    bra.uni $compute_next;
$compute_done:
    setp.ge.f32 %p2, %f1, 0f00000000;
    @%p2 bra $compute_end;
    cvta.to.global.u64 %rd4, %rd2;
    st.global.f32 [%rd4], %f1;
$compute_end:
    ret;
}}

.visible .entry {MEMORY}{_COPY}
{{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [arg_iterations];
    ld.param.u64 %rd2, [arg_from];
    ld.param.u64 %rd3, [arg_to];
    ld.param.u64 %rd4, [arg_words];
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd7, %r1, %r2;
    cvt.u64.u32 %rd8, %r3;
    add.u64 %rd7, %rd7, %rd8;
    mul.wide.u32 %rd9, %r4, %r2;
    mov.u64 %rd10, 0;
$memory_round:
    setp.ge.u64 %p1, %rd10, %rd1;
    @%p1 bra $memory_end;
    mov.u64 %rd11, %rd7;
$memory_word:
    setp.ge.u64 %p2, %rd11, %rd4;
    @%p2 bra $memory_next;
    shl.b64 %rd12, %rd11, 2;
    add.u64 %rd13, %rd5, %rd12;
    add.u64 %rd14, %rd6, %rd12;
    ld.global.u32 %r5, [%rd13];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd14], %r5;
    add.u64 %rd11, %rd11, %rd9;
    bra $memory_word;
$memory_next:
    add.u64 %rd10, %rd10, 1;
    bra $memory_round;
$memory_end:
    ret;
}}

.visible .entry {MEET}(
    .param .u64 arg_ns, .param .u64 arg_meeting, .param .u64 arg_parties, .param .u64 arg_address
)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [arg_meeting];
    ld.param.u64 %rd2, [arg_parties];
    ld.param.u64 %rd3, [arg_address];
    cvta.to.global.u64 %rd4, %rd3;
    shl.b64 %rd5, %rd1, 2;
    add.u64 %rd4, %rd4, %rd5;
    cvt.u32.u64 %r1, %rd2;
    atom.global.add.u32 %r2, [%rd4], 1;
    mov.u32 %r3, 0;
$meet_next:
    ld.volatile.global.u32 %r2, [%rd4];
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $meet_end;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, {_SPINS};
    @%p2 bra $meet_next;
$meet_end:
    ret;
}}
"""


def modules() -> tuple[bytes, ...]:
    """The module for each header, as cuModuleLoadData takes it: text with a zero at its end."""
    return tuple(f"{header}\n{_BODY}".encode() + b"\0" for header in HEADERS)
