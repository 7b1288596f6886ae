/* The sum of an array over all ranks, in C:
 *
 *     cc -o allreduce examples/c/allreduce.c $(python -m worker_lib.c --cflags --libs)
 *     switchagg run -n 4 -- ./allreduce
 */
#include <stdio.h>
#include <stdlib.h>

#include <switchagg.h>

enum { COUNT = 1000000 };

static void check(switchagg_status status) {
  if (status == SWITCHAGG_OK) return;
  fprintf(stderr, "error %d: %s\n", status, switchagg_message());
  exit(1); /* leaves the job */
}

int main(void) {
  switchagg_session *session;
  check(switchagg_connect(&session, NULL)); /* controller, job, rank and world size from the environment */
  const int rank = switchagg_rank(session);
  float *gradient = calloc(COUNT, sizeof *gradient);
  if (!gradient) return 1;
  for (int i = 0; i < 1000; i++) gradient[i] = (float)(rank + 1);
  check(switchagg_allreduce(session, gradient, COUNT, "float32", "avg", NULL)); /* in place */
  printf("rank %d of %d: %g\n", rank, switchagg_world_size(session), gradient[0]);
  free(gradient);
  check(switchagg_close(session));
  return 0;
}
