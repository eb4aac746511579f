/* Preloaded into a process: counts its calls that touch files below one directory, and lets one of them fail, or end the process. */

#define _GNU_SOURCE
#define FICLONE_REQUEST 0x40049409
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>


/* What happens at the chosen call; FULL: there and at all later ones that take space. */
enum { NOTHING, ERROR, FULL, SHORT, KILL, HALF_KILL, TERM };
enum { GO, FAIL, DIE };

enum { MAX_CALLS = 1000, NAME = 24 };
static struct { int count; char names[MAX_CALLS][NAME]; } *seen; /* shared with the process that forked this one */

static char directory[PATH_MAX];
static int chosen, action, error, poor, active, full;

void *faults_share(void) {
  return seen = mmap(0, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* From now on: `action` at call number `chosen`, from 1 on; `poor`: a file system without O_TMPFILE and copying. */
void faults_arm(const char *below, int number, int what, int with, int without) {
  seen->count = 0;
  snprintf(directory, sizeof directory, "%s", below);
  chosen = number, action = what, error = with, poor = without, full = 0, active = 1;
}

static int below(const char *path) { return active && strncmp(path, directory, strlen(directory)) == 0; }

static int fd_below(int fd) {
  char link[64], path[PATH_MAX];
  if (!active) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return below(path);
}

static int at_below(int fd, const char *path) { return *path == '/' ? below(path) : fd_below(fd); }

static int fail(int with) {
  errno = with;
  return FAIL;
}

/* `takes_space`: a full disk refuses it; `count`: bytes that it may do fewer of. */
static int fault(const char *name, int takes_space, size_t *count) {
  int number = seen->count++;
  if (number < MAX_CALLS) snprintf(seen->names[number], NAME, "%s", name);
  if (number + 1 == chosen) switch (action) {
    case ERROR: return fail(error);
    case FULL: full = 1; break;
    case SHORT: if (count && *count > 1) *count /= 2; break;
    case KILL: raise(SIGKILL); break;
    case HALF_KILL: if (count) *count /= 2; return DIE;
    case TERM: raise(SIGTERM); break;
  }
  return full && takes_space ? fail(ENOSPC) : GO;
}

#define REAL(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

#define WRAP(type, name, parameters, arguments, counted, takes_space, count)  \
  type name parameters {                                                      \
    if (!(counted)) return REAL(name) arguments;                              \
    int how = fault(#name, takes_space, count);                               \
    if (how == FAIL) return (type) -1;                                        \
    type result = REAL(name) arguments;                                       \
    if (how == DIE) raise(SIGKILL);                                           \
    return result;                                                            \
  }

static int nameless(int flags) { return (flags & O_TMPFILE) == O_TMPFILE; }

#define WRAP_OPEN(name, parameters, arguments, counted)                       \
  int name parameters {                                                       \
    va_list rest;                                                             \
    va_start(rest, flags);                                                    \
    mode_t mode = va_arg(rest, mode_t);                                       \
    va_end(rest);                                                             \
    if (!(counted)) return REAL(name) arguments;                              \
    int how = fault(#name, (flags & O_CREAT) || nameless(flags), 0);          \
    if (how == GO && poor && nameless(flags)) how = fail(EOPNOTSUPP);         \
    if (how == FAIL) return -1;                                               \
    int result = REAL(name) arguments;                                        \
    if (how == DIE) raise(SIGKILL);                                           \
    return result;                                                            \
  }

WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), below(path))
WRAP_OPEN(openat64, (int fd, const char *path, int flags, ...), (fd, path, flags, mode), at_below(fd, path))

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fd_below(fd), 1, &size)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), fd_below(fd), 1, 0)
WRAP(off64_t, lseek64, (int fd, off64_t at, int from), (fd, at, from), (from == SEEK_DATA || from == SEEK_HOLE) && fd_below(fd), 0, 0)
WRAP(void *, mmap64, (void *to, size_t size, int rights, int flags, int fd, off64_t at), (to, size, rights, flags, fd, at),
     fd >= 0 && fd_below(fd), 0, 0)
WRAP(int, fsync, (int fd), (fd), fd_below(fd), 1, 0)
WRAP(int, flock, (int fd, int operation), (fd, operation), fd_below(fd), 0, 0)
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), fd_below(fd), 0, 0)
WRAP(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), fd_below(fd), 0, 0)
WRAP(int, fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags), (fd, name, value, size, flags),
     fd_below(fd), 1, 0)
WRAP(int, fremovexattr, (int fd, const char *name), (fd, name), fd_below(fd), 0, 0)
WRAP(ssize_t, flistxattr, (int fd, char *names, size_t size), (fd, names, size), fd_below(fd), 0, 0)
WRAP(ssize_t, fgetxattr, (int fd, const char *name, void *value, size_t size), (fd, name, value, size), fd_below(fd), 0, 0)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), below(path), 1, 0)
WRAP(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new), at_below(to, new), 1, 0)
WRAP(int, linkat, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags),
     at_below(to, new), 1, 0)
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), at_below(fd, path), 0, 0)

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
  if (!fd_below(out)) return REAL(copy_file_range)(in, from, out, to, size, flags);
  int how = fault("copy_file_range", 1, &size);
  if (how == GO && poor) how = fail(EOPNOTSUPP);
  if (how == FAIL) return -1;
  ssize_t result = REAL(copy_file_range)(in, from, out, to, size, flags);
  if (how == DIE) raise(SIGKILL);
  return result;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  if (request != FICLONE_REQUEST || !fd_below(fd)) return REAL(ioctl)(fd, request, argument);
  int how = fault("ioctl", 1, 0);
  if (how == GO && poor) how = fail(EOPNOTSUPP);
  if (how == FAIL) return -1;
  int result = REAL(ioctl)(fd, request, argument);
  if (how == DIE) raise(SIGKILL);
  return result;
}

int close(int fd) { /* a descriptor is gone even if that fails */
  if (!fd_below(fd)) return REAL(close)(fd);
  int how = fault("close", 0, 0);
  int keep = errno;
  int result = REAL(close)(fd);
  if (how == DIE) raise(SIGKILL);
  if (how != FAIL) return result;
  errno = keep;
  return -1;
}
