/* Collectives through a switch, for C and for whatever calls C. docs/c.md describes them.
 *
 *     switchagg_session *session;
 *     if (switchagg_connect(&session, NULL) != SWITCHAGG_OK ||
 *         switchagg_allreduce(session, x, count, "float32", "sum", NULL) != SWITCHAGG_OK)
 *       fprintf(stderr, "%s\n", switchagg_message());
 *
 *     cc program.c $(python -m worker_lib.c --cflags --libs)
 *
 * The library embeds Python and calls worker_lib there: results have the bits of `Session.allreduce`. Functions return a
 * switchagg_status, unless they say otherwise. Any thread may call; calls of one session are put in the order in which they
 * arrive, which must be the same at all ranks. `settings` are strings "name=value", ended by NULL; or NULL for none.
 */
#ifndef SWITCHAGG_H
#define SWITCHAGG_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SWITCHAGG_API __attribute__((visibility("default")))
#else
#define SWITCHAGG_API
#endif

/* The exceptions of worker_lib. After USAGE and MISMATCH a session goes on, and after WORKER_LOST where the job shrinks. After any
 * other it can only be closed. */
typedef enum switchagg_status {
  SWITCHAGG_OK = 0,
  SWITCHAGG_USAGE = 1,       /* an argument or variable cannot work; nothing was sent */
  SWITCHAGG_MISMATCH = 2,    /* ranks called different things; nothing was changed, and the session goes on */
  SWITCHAGG_ADMISSION = 3,   /* the controller did not admit the job or this rank */
  SWITCHAGG_WORKER_LOST = 4, /* a rank ended or went silent */
  SWITCHAGG_TIMEOUT = 5,     /* not done in time */
  SWITCHAGG_SWITCH = 6,      /* the switch or its controller is gone, or refuses */
  SWITCHAGG_INTEGRITY = 7,   /* a checked or sealed sum is wrong */
  SWITCHAGG_BROKEN = 8,      /* an earlier error left the session unusable */
  SWITCHAGG_OTHER = 9        /* anything else, such as a Python that cannot import worker_lib */
} switchagg_status;

typedef struct switchagg_session switchagg_session;

/* Joins a job; blocks until all its ranks have joined. Settings are the arguments of worker_lib.connect(): "job=train",
 * "rank=0", "world_size=4", "timeout=10", ... What is not given comes from the environment, as launchers set it. */
SWITCHAGG_API switchagg_status switchagg_connect(switchagg_session **session, const char *const *settings);

/* This worker's rank and the number of ranks, now; -1 on an error. */
SWITCHAGG_API int switchagg_rank(const switchagg_session *session);
SWITCHAGG_API int switchagg_world_size(const switchagg_session *session);

/* Reduces `count` elements over all ranks, in place. `type` is NumPy's name: "float32", "float64", "float16", "int32", "int64",
 * "uint32", "uint64" ("bfloat16" where ml_dtypes is installed); `op` "sum", "avg", "max", "min", or "or". Settings are further
 * arguments of Session.allreduce: "bits=16", "accuracy=exact", "blocks=sparse", "block_size=64", "min_bits=8", "timeout=5". */
SWITCHAGG_API switchagg_status switchagg_allreduce(switchagg_session *session, void *data, size_t count, const char *type,
                                                   const char *op, const char *const *settings);

/* Copies rank `root`'s bytes to all ranks. */
SWITCHAGG_API switchagg_status switchagg_broadcast(switchagg_session *session, void *data, size_t bytes, int root);

/* Collects every rank's bytes in `all`, which has room for world_size times `bytes`, by rank. */
SWITCHAGG_API switchagg_status switchagg_allgather(switchagg_session *session, const void *data, size_t bytes, void *all);

/* Returns when every rank has called it. */
SWITCHAGG_API switchagg_status switchagg_barrier(switchagg_session *session);

/* Leaves the job and frees the session, whatever it returns. A program that ends by exit() leaves all its jobs. NULL is no session
 * and no error. */
SWITCHAGG_API switchagg_status switchagg_close(switchagg_session *session);

/* The message of this thread's last call that was not OK; valid until the next such call. */
SWITCHAGG_API const char *switchagg_message(void);

#ifdef __cplusplus
}
#endif
#endif
