// Intercepts the file operations of a process, for tests: LD_PRELOAD puts these functions before those of libc.
//
// The program under test is the released one, unchanged. Its operations below one folder are counted and recorded; one
// operation, or every one from then on, can be made to fail, to be cut short, to pause or to kill the process.
//
//   LONGSIFT_FAULT_ROOT    the folder, absolute; other operations are not affected. Required.
//   LONGSIFT_FAULT_TRACE   file that gets a line per counted operation: kind, a space, the path below the folder
//   LONGSIFT_FAULT_RECORD  file that gets every change of the folder with its bytes, for power cuts; see record()
//   LONGSIFT_FAULT_MATCH   only operations whose line contains this text are counted
//   LONGSIFT_FAULT_AT      number of the counted operation that gets the fault, from 1
//   LONGSIFT_FAULT_ACTION  kill, torn (half of a write, then kill), short, pause, or an errno by name: EIO, ENOSPC, …
//   LONGSIFT_FAULT_STAYS   if set, every later counted operation fails as well
//   LONGSIFT_FAULT_PAUSED  file that `pause` creates; removing it resumes the process
//   LONGSIFT_CLOCK_OFFSET  seconds added to the time of day
//   LONGSIFT_CLOCK_STEP    seconds added at each reading of the clock; negative: time runs backwards
//   LONGSIFT_CLOCK_FILE    file of one 64-bit number, nanoseconds added to the monotonic clock; the test writes it
//   LONGSIFT_CLOCK_SLEEPS  if set, sleeping takes no time: the monotonic clock advances instead
//
// Other operations that change files (writev, sendfile, shared writable maps, …) end the process with a message, so that
// no change is missed.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PASS = 0, KILL = -1, TORN = -2, SHORT = -3, PAUSE = -4 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *root, *match, *paused;
static size_t root_length;
static int trace = -1, record_file = -1, action = PASS, stays;
static long at, counted;
static long long clock_offset, clock_step;
// Offset of the monotonic clock: skipped sleeps, and the offset set by the test.
static int sleeps_pass;
static long long slept;
static const volatile long long *moved;

static int action_named(const char *name) {
    static const struct { const char *name; int action; } actions[] = {
        {"kill", KILL}, {"torn", TORN}, {"short", SHORT}, {"pause", PAUSE}, {"EIO", EIO},
        {"ENOSPC", ENOSPC}, {"EACCES", EACCES}, {"EMFILE", EMFILE}, {"EINTR", EINTR},
        {"ENOMEM", ENOMEM}, {"EROFS", EROFS}, {"ENOLCK", ENOLCK},
    };
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0) return actions[i].action;
    fprintf(stderr, "LONGSIFT_FAULT_ACTION: unknown action %s\n", name);
    _exit(99);
}

static int open_log(const char *variable) {
    const char *path = getenv(variable);
    if (!path) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("LONGSIFT_CLOCK_OFFSET");
    clock_offset = text ? atoll(text) : 0;
    text = getenv("LONGSIFT_CLOCK_STEP");
    clock_step = text ? atoll(text) : 0;
    sleeps_pass = getenv("LONGSIFT_CLOCK_SLEEPS") != NULL;
    text = getenv("LONGSIFT_CLOCK_FILE");
    if (text) {
        int file = (int)syscall(SYS_openat, AT_FDCWD, text, O_RDONLY | O_CLOEXEC);
        void *map = (void *)syscall(SYS_mmap, NULL, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
        if (map == MAP_FAILED) {
            fprintf(stderr, "LONGSIFT_CLOCK_FILE: %s cannot be mapped\n", text);
            _exit(99);
        }
        moved = map;
    }
    match = getenv("LONGSIFT_FAULT_MATCH");
    paused = getenv("LONGSIFT_FAULT_PAUSED");
    stays = getenv("LONGSIFT_FAULT_STAYS") != NULL;
    text = getenv("LONGSIFT_FAULT_AT");
    at = text ? atol(text) : 0;
    text = getenv("LONGSIFT_FAULT_ACTION");
    action = text ? action_named(text) : PASS;
    trace = open_log("LONGSIFT_FAULT_TRACE");
    record_file = open_log("LONGSIFT_FAULT_RECORD");
    root = getenv("LONGSIFT_FAULT_ROOT");
    root_length = root ? strlen(root) : 0;
}

// ---- paths ----

// The part of an absolute path below the root, `.` for the root itself; NULL for any other.
static const char *below_root(const char *path) {
    if (strncmp(path, root, root_length) != 0) return NULL;
    const char *rest = path + root_length;
    if (rest[0] == 0 || strcmp(rest, "/.") == 0) return ".";
    return rest[0] == '/' ? rest + 1 : NULL;
}

// The path of an open file or folder below the root; NULL for any other.
static const char *of_file(int file, char *into) {
    if (!root) return NULL;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, into, PATH_MAX - 1);
    if (length < 0) return NULL;
    into[length] = 0;
    return below_root(into);
}

// The path below the root of a path relative to an open folder; NULL for any other.
static const char *of_path(int folder, const char *path, char *into) {
    if (!root) return NULL;
    if (path[0] == '/') {
        snprintf(into, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX];
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0) return NULL;
        } else {
            char buffer[PATH_MAX];
            const char *below = of_file(folder, buffer);
            if (!below) return NULL;
            memcpy(base, buffer, sizeof base);
        }
        if (snprintf(into, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return NULL;
    }
    return below_root(into);
}

// ---- counting and failing ----

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

static void wait_for_removal(void) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, paused, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    syscall(SYS_close, file);
    struct timespec moment = {0, 1000000};
    while (syscall(SYS_faccessat, AT_FDCWD, paused, F_OK) == 0)
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, NULL);
}

// Counts an operation. Returns PASS, TORN, SHORT, or the errno to fail with. The lock is held on return.
static int count(const char *kind, const char *path) {
    pthread_mutex_lock(&mutex);
    char line[PATH_MAX + 32];
    int length = snprintf(line, sizeof line, "%s %s\n", kind, path);
    line[length - 1] = 0;
    if (match && !strstr(line, match)) return PASS;
    line[length - 1] = '\n';
    if (trace >= 0) syscall(SYS_write, trace, line, length);
    counted++;
    if (action == PASS || at == 0 || counted < at || (counted > at && !stays)) return PASS;
    if (action == KILL) die();
    if (action == PAUSE) {
        pthread_mutex_unlock(&mutex);
        wait_for_removal();
        pthread_mutex_lock(&mutex);
        return PASS;
    }
    return action;
}

// Ends an operation that count() began.
static long done(long result) {
    int error = errno;
    pthread_mutex_unlock(&mutex);
    errno = error;
    return result;
}

static long fail(int fault) {
    errno = fault > 0 ? fault : EIO;
    return done(-1);
}

// Records a change: a line `kind path`, and for writes `write path offset length`, followed by the bytes.
static void record(const char *kind, const char *path, long offset, const void *bytes, long length) {
    // An anonymous file disappears with its process.
    if (record_file < 0 || strstr(path, " (deleted)")) return;
    char line[PATH_MAX + 96];
    int size = bytes ? snprintf(line, sizeof line, "%s %s %ld %ld\n", kind, path, offset, length)
             : offset >= 0 ? snprintf(line, sizeof line, "%s %s %ld\n", kind, path, offset)
                           : snprintf(line, sizeof line, "%s %s\n", kind, path);
    syscall(SYS_write, record_file, line, size);
    if (bytes) syscall(SYS_write, record_file, bytes, length);
}

// ---- operations ----

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *below = of_path(folder, path, buffer);
    if (!below) return (int)syscall(SYS_openat, folder, path, flags, mode);
    int creates = (flags & O_CREAT) != 0;
    int fault = count(creates ? "create" : "open", below);
    if (fault > 0) return (int)fail(fault);
    int existed = syscall(SYS_faccessat, folder, path, F_OK) == 0;
    int file = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (file >= 0 && creates && !existed) record("create", below, -1, NULL, 0);
    if (file >= 0 && (flags & O_TRUNC) && existed) record("truncate", below, 0, NULL, 0);
    return (int)done(file);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(folder, path, flags, mode); }

ssize_t read(int file, void *bytes, size_t length) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return syscall(SYS_read, file, bytes, length);
    int fault = count("read", below);
    if (fault > 0) return fail(fault);
    // Reads may run concurrently: they change nothing.
    done(0);
    return syscall(SYS_read, file, bytes, fault == SHORT && length > 1 ? length / 2 : length);
}

ssize_t pread64(int file, void *bytes, size_t length, off64_t offset) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return syscall(SYS_pread64, file, bytes, length, offset);
    int fault = count("read", below);
    if (fault > 0) return fail(fault);
    done(0);
    return syscall(SYS_pread64, file, bytes, fault == SHORT && length > 1 ? length / 2 : length, offset);
}

static ssize_t write_file(int file, const void *bytes, size_t length, off64_t offset) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below && offset < 0) return syscall(SYS_write, file, bytes, length);
    if (!below) return syscall(SYS_pwrite64, file, bytes, length, offset);
    int fault = count("write", below);
    if (fault > 0) return fail(fault);
    size_t part = fault == PASS || length < 2 ? length : length / 2;
    int appends = (syscall(SYS_fcntl, file, F_GETFL) & O_APPEND) != 0;
    long where = offset >= 0 ? offset : syscall(SYS_lseek, file, 0, appends ? SEEK_END : SEEK_CUR);
    ssize_t written = offset >= 0 ? syscall(SYS_pwrite64, file, bytes, part, offset)
                                  : syscall(SYS_write, file, bytes, part);
    if (fault == TORN) die();
    if (written > 0) record("write", below, where, bytes, written);
    return done(written);
}

ssize_t write(int file, const void *bytes, size_t length) { return write_file(file, bytes, length, -1); }
ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    return write_file(file, bytes, length, offset);
}

int ftruncate64(int file, off64_t length) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return (int)syscall(SYS_ftruncate, file, length);
    int fault = count("truncate", below);
    if (fault > 0) return (int)fail(fault);
    int result = (int)syscall(SYS_ftruncate, file, length);
    if (result == 0) record("truncate", below, length, NULL, 0);
    return (int)done(result);
}

static int sync_file(int file, long call) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return (int)syscall(call, file);
    int fault = count("fsync", below);
    if (fault > 0) return (int)fail(fault);
    // The record simulates durability, so a real fsync is not needed.
    record("fsync", below, -1, NULL, 0);
    return (int)done(0);
}

int fsync(int file) { return sync_file(file, SYS_fsync); }
int fdatasync(int file) { return sync_file(file, SYS_fdatasync); }

int rename(const char *from, const char *to) {
    char buffers[2][PATH_MAX], both[2 * PATH_MAX + 8];
    const char *before = of_path(AT_FDCWD, from, buffers[0]);
    const char *after = of_path(AT_FDCWD, to, buffers[1]);
    if (!before || !after) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    int fault = count("rename", after);
    if (fault > 0) return (int)fail(fault);
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    snprintf(both, sizeof both, "%s %s", before, after);
    if (result == 0) record("rename", both, -1, NULL, 0);
    return (int)done(result);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char buffers[2][PATH_MAX], both[2 * PATH_MAX + 8];
    const char *before = of_path(from_folder, from, buffers[0]);
    const char *after = of_path(to_folder, to, buffers[1]);
    if (!before || !after) return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    int fault = count("link", after);
    if (fault > 0) return (int)fail(fault);
    int result = (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    snprintf(both, sizeof both, "%s %s", before, after);
    if (result == 0) record("link", both, -1, NULL, 0);
    return (int)done(result);
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int remove_name(int folder, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *below = of_path(folder, path, buffer);
    if (!below) return (int)syscall(SYS_unlinkat, folder, path, flags);
    const char *kind = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
    int fault = count(kind, below);
    if (fault > 0) return (int)fail(fault);
    int result = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (result == 0) record(kind, below, -1, NULL, 0);
    return (int)done(result);
}

int unlink(const char *path) { return remove_name(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return remove_name(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char *path, int flags) { return remove_name(folder, path, flags); }

int mkdir(const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *below = of_path(AT_FDCWD, path, buffer);
    if (!below) return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    int fault = count("mkdir", below);
    if (fault > 0) return (int)fail(fault);
    int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (result == 0) record("mkdir", below, -1, NULL, 0);
    return (int)done(result);
}

int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *status) {
    char buffer[PATH_MAX];
    // Without a path, the standard library checks whether the system supports this call. The header declares the path
    // non-null: `volatile` keeps the compiler from relying on it.
    const char *volatile given = path;
    path = given;
    const char *below = !path ? NULL : path[0] ? of_path(folder, path, buffer) : of_file(folder, buffer);
    if (!below) return (int)syscall(SYS_statx, folder, path, flags, mask, status);
    int fault = count("stat", below);
    if (fault > 0) return (int)fail(fault);
    return (int)done(syscall(SYS_statx, folder, path, flags, mask, status));
}

DIR *opendir(const char *path) {
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    char buffer[PATH_MAX];
    const char *below = of_path(AT_FDCWD, path, buffer);
    if (!below) return real(path);
    int fault = count("list", below);
    if (fault > 0) return (void)fail(fault), NULL;
    DIR *folder = real(path);
    done(0);
    return folder;
}

int flock(int file, int operation) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return (int)syscall(SYS_flock, file, operation);
    int fault = count("lock", below);
    if (fault > 0) return (int)fail(fault);
    done(0);
    return (int)syscall(SYS_flock, file, operation);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off64_t offset) {
    char buffer[PATH_MAX];
    const char *below = file >= 0 ? of_file(file, buffer) : NULL;
    if (below) {
        if ((flags & MAP_SHARED) && (protection & PROT_WRITE)) {
            fprintf(stderr, "a change of files that is not counted: mmap of %s\n", below);
            _exit(99);
        }
        int fault = count("map", below);
        if (fault > 0) return (void)fail(fault), MAP_FAILED;
        done(0);
    }
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

enum { SECOND = 1000000000 };

int clock_gettime(clockid_t which, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, which, time);
    if (which == CLOCK_REALTIME && result == 0)
        time->tv_sec += __atomic_fetch_add(&clock_offset, clock_step, __ATOMIC_RELAXED);
    if (which == CLOCK_MONOTONIC && result == 0) {
        long long added = __atomic_load_n(&slept, __ATOMIC_RELAXED) + (moved ? *moved : 0);
        added += time->tv_nsec;
        time->tv_sec += added / SECOND;
        time->tv_nsec = added % SECOND;
    }
    return result;
}

int nanosleep(const struct timespec *time, struct timespec *left) {
    if (!sleeps_pass) return (int)syscall(SYS_nanosleep, time, left);
    __atomic_fetch_add(&slept, time->tv_sec * (long long)SECOND + time->tv_nsec, __ATOMIC_RELAXED);
    return 0;
}

// As in the C library, the error is returned.
int clock_nanosleep(clockid_t which, int flags, const struct timespec *time, struct timespec *left) {
    if (sleeps_pass && which == CLOCK_MONOTONIC && flags == 0) return nanosleep(time, left);
    return syscall(SYS_clock_nanosleep, which, flags, time, left) == 0 ? 0 : errno;
}

// ---- unsupported operations ----

static void uncounted(const char *call, int file) {
    char buffer[PATH_MAX];
    const char *below = of_file(file, buffer);
    if (!below) return;
    fprintf(stderr, "a change of files that is not counted: %s of %s\n", call, below);
    _exit(99);
}

ssize_t writev(int file, const struct iovec *parts, int length) {
    uncounted("writev", file);
    return syscall(SYS_writev, file, parts, length);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t length) {
    uncounted("sendfile", to);
    return syscall(SYS_sendfile, to, from, offset, length);
}
ssize_t copy_file_range(int from, off64_t *start, int to, off64_t *offset, size_t length, unsigned flags) {
    uncounted("copy_file_range", to);
    return syscall(SYS_copy_file_range, from, start, to, offset, length, flags);
}
int fallocate64(int file, int mode, off64_t offset, off64_t length) {
    uncounted("fallocate", file);
    return (int)syscall(SYS_fallocate, file, mode, offset, length);
}
