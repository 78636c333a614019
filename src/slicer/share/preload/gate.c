/* The gate: where work waits for the job's turn. */
#include "share.h"

#define CALL_THROUGH(name) \
    long name(void *real, long *a) { return call(real, a); }
CALL_THROUGH(on_work) CALL_THROUGH(on_work_1) CALL_THROUGH(on_work_3) CALL_THROUGH(on_work_4) CALL_THROUGH(on_work_5)
CALL_THROUGH(on_work_8) CALL_THROUGH(on_work_config) CALL_THROUGH(on_sync) CALL_THROUGH(on_capture_begin)
CALL_THROUGH(on_capture_end) CALL_THROUGH(on_stream_gone) CALL_THROUGH(on_context_gone)
CALL_THROUGH(on_green_context_gone) CALL_THROUGH(on_primary_context_gone)

void gate_after_fork(void) {}
