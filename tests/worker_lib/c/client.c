/* A rank in C, for the tests. Each argument is a step; a step that fails says its status and message, and the rank goes on.
 *
 *     connect:SETTING,SETTING...            reduce:TYPE:BYTES:OP:IN:OUT:SETTING,SETTING...
 *     gather:IN:OUT  broadcast:ROOT:IN:OUT  barrier  null  wait (for a line)  close  fork
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <switchagg.h>

static switchagg_session *session;

static char *field(char **rest) {
  char *const found = strsep(rest, ":");
  return found ? found : "";
}

/* The words of a list with commas, ended by NULL. */
static const char *const *list(char *text) {
  static const char *words[32];
  int count = 0;
  for (char *word; (word = strsep(&text, ","));)
    if (*word && count < 31) words[count++] = word;
  words[count] = NULL;
  return words;
}

static void *read_file(const char *path, size_t *bytes, size_t room) {
  FILE *const file = fopen(path, "rb");
  if (!file) exit(9);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void *const data = malloc(room * *bytes + 1);
  if (!data || fread(data, 1, *bytes, file) != *bytes) exit(9);
  fclose(file);
  return data;
}

static void write_file(const char *path, void *data, size_t bytes) {
  FILE *const file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) exit(9);
  free(data);
}

static switchagg_status step(char *rest) {
  const char *const name = field(&rest);
  switchagg_status status = SWITCHAGG_OK;
  size_t bytes;
  if (!strcmp(name, "connect")) return switchagg_connect(&session, rest ? list(rest) : NULL);
  if (!strcmp(name, "barrier")) return switchagg_barrier(session);
  if (!strcmp(name, "null")) return switchagg_allreduce(session, NULL, 3, "float32", "sum", NULL);
  if (!strcmp(name, "wait")) return getchar() == '\n' ? SWITCHAGG_OK : SWITCHAGG_OTHER;
  if (!strcmp(name, "fork")) {
    if (fork() == 0) {
      printf("%d in a child\n", switchagg_barrier(session));
      exit(0);
    }
    wait(NULL);
  } else if (!strcmp(name, "close")) {
    status = switchagg_close(session);
    session = NULL;
  } else if (!strcmp(name, "reduce")) {
    const char *const type = field(&rest);
    const size_t each = strtoul(field(&rest), NULL, 10);
    const char *const op = field(&rest);
    void *const data = read_file(field(&rest), &bytes, 1);
    const char *const out = field(&rest);
    status = switchagg_allreduce(session, data, bytes / each, type, op, rest ? list(rest) : NULL);
    write_file(out, data, bytes);
  } else if (!strcmp(name, "gather")) {
    void *const data = read_file(field(&rest), &bytes, 1);
    const size_t all = bytes * (size_t)switchagg_world_size(session);
    void *const rows = malloc(all + 1);
    status = switchagg_allgather(session, data, bytes, rows);
    free(data);
    write_file(field(&rest), rows, all);
  } else if (!strcmp(name, "broadcast")) {
    const int root = atoi(field(&rest));
    void *const data = read_file(field(&rest), &bytes, 1);
    status = switchagg_broadcast(session, data, bytes, root);
    write_file(field(&rest), data, bytes);
  } else {
    exit(9);
  }
  return status;
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IONBF, 0);
  for (int i = 1; i < count; i++) {
    char *const copy = strdup(words[i]);
    const switchagg_status status = step(copy);
    printf("%d%s%s\n", status, status ? " " : "", status ? switchagg_message() : "");
    free(copy);
  }
  printf("rank %d of %d\n", switchagg_rank(session), switchagg_world_size(session));
  return 0;
}
