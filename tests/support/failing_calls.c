/*
 * A library for LD_PRELOAD that lets one system call on a file below a folder fail, by its number, or kills the process
 * before that call. It can also record what would survive a power failure at that moment: see `record_flushes`.
 *
 * `failing_commands.py` selects the kinds of calls that are counted, and the one that fails. Calls outside the directory, and
 * of other kinds, are forwarded. Calls of Python, Arrow and deltalake all go through these functions.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static char kinds[PATH_MAX]; /* names of calls between blanks */
static atomic_long seen;
static long failing; /* number of the failing call; 0: no call fails */
static int failure;  /* its errno */
static char kept[PATH_MAX]; /* folder for what is flushed and deleted; empty: nothing is recorded */
static int noted = -1; /* descriptor to which all calls, or the failing one, are written */
static void (*describe_site)(char *, int); /* writes where a call comes from into a buffer; NULL: it is not recorded */

void fail_call(const char *below, const char *names, long number, int error, int descriptor) {
    snprintf(folder, sizeof folder, "%s/", below);
    snprintf(kinds, sizeof kinds, " %s ", names);
    failing = number;
    failure = error;
    noted = descriptor;
    atomic_store(&seen, 0);
}

/* Add to each call that is written where it comes from, after a tab. */
void record_sites(void (*describe)(char *, int)) { describe_site = describe; }

/*
 * Keep the content of each file that is flushed (`flushed-INODE`), the entries of each directory that is flushed
 * (`listed-INODE`), and each file that is deleted or replaced (`deleted-INODE`), in a folder of the same file system.
 */
void record_flushes(const char *into) { snprintf(kept, sizeof kept, "%s", into); }

static int place(int descriptor, const char *path, char *whole) {
    if (path != NULL && path[0] == '/') {
        snprintf(whole, PATH_MAX, "%s", path);
        return 1;
    }
    char link[64], start[PATH_MAX];
    if (descriptor == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlink, link, start, sizeof start - 1);
    if (length < 0) return 0;
    start[length] = 0;
    snprintf(whole, PATH_MAX, path == NULL || path[0] == 0 ? "%s" : "%s/%s", start, path);
    return 1;
}

/* Whether this call fails; sets errno. */
static int fails(const char *call, int descriptor, const char *path) {
    if (folder[0] == 0) return 0;
    int before = errno;
    char name[32], whole[PATH_MAX], line[2 * PATH_MAX + 64], site[PATH_MAX] = "";
    snprintf(name, sizeof name, " %s ", call);
    if (strstr(kinds, name) == NULL || !place(descriptor, path, whole)
        || strncmp(whole, folder, strlen(folder)) != 0) {
        errno = before;
        return 0;
    }
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (noted >= 0 && (failing == 0 || number == failing)) {
        if (describe_site != NULL) describe_site(site, sizeof site);
        const char *tab = describe_site == NULL ? "" : "\t";
        int length = snprintf(line, sizeof line, "%s %s%s%s\n", call, whole + strlen(folder), tab, site);
        syscall(SYS_write, noted, line, length);
    }
    if (number == failing && failure < 0) kill(getpid(), SIGKILL);
    errno = number == failing ? failure : before;
    return number == failing;
}

/* Whether calls on this path are recorded: also those on the folder itself. */
static int is_recorded(int descriptor, const char *path) {
    char whole[PATH_MAX];
    if (kept[0] == 0 || !place(descriptor, path, whole)) return 0;
    size_t length = strlen(folder) - 1;
    return strncmp(whole, folder, length) == 0 && (whole[length] == 0 || whole[length] == '/');
}

static void list_into(int directory, int target) {
    char block[1 << 16], line[PATH_MAX + 64];
    int list = (int)syscall(SYS_openat, directory, ".", O_RDONLY | O_DIRECTORY, 0);
    ssize_t length;
    while ((length = syscall(SYS_getdents64, list, block, sizeof block)) > 0)
        for (ssize_t at = 0; at < length;) {
            struct dirent64 *entry = (struct dirent64 *)(block + at);
            int size = snprintf(line, sizeof line, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
            syscall(SYS_write, target, line, size);
            at += entry->d_reclen;
        }
    syscall(SYS_close, list);
}

static void record_flush(int file) {
    static atomic_long attempts;
    int before = errno;
    struct statx status;
    char attempt[PATH_MAX + 64], name[PATH_MAX + 64], block[1 << 16];
    if (!is_recorded(file, NULL) || syscall(SYS_statx, file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &status)) {
        errno = before;
        return;
    }
    int is_directory = (status.stx_mode & S_IFMT) == S_IFDIR;
    snprintf(attempt, sizeof attempt, "%s/attempt-%ld", kept, atomic_fetch_add(&attempts, 1));
    snprintf(name, sizeof name, "%s/%s-%lu", kept, is_directory ? "listed" : "flushed", (unsigned long)status.stx_ino);
    int target = (int)syscall(SYS_openat, AT_FDCWD, attempt, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (is_directory) list_into(file, target);
    else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        int source = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY, 0);
        for (ssize_t length; (length = syscall(SYS_read, source, block, sizeof block)) > 0;)
            syscall(SYS_write, target, block, length);
        syscall(SYS_close, source);
    }
    syscall(SYS_close, target);
    syscall(SYS_renameat2, AT_FDCWD, attempt, AT_FDCWD, name, 0);
    errno = before;
}

/* Keep a file that is about to lose this name. */
static void record_deletion(int at, const char *path) {
    int before = errno;
    struct statx status;
    char name[PATH_MAX + 64];
    if (is_recorded(at, path) && !syscall(SYS_statx, at, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status)) {
        snprintf(name, sizeof name, "%s/deleted-%lu", kept, (unsigned long)status.stx_ino);
        if ((status.stx_mode & S_IFMT) == S_IFREG) syscall(SYS_linkat, at, path, AT_FDCWD, name, 0);
    }
    errno = before;
}

static int opened(int descriptor, const char *path, int flags, mode_t mode) {
    const char *call = flags & O_CREAT ? "create" : flags & O_DIRECTORY ? "list" : "open";
    return fails(call, descriptor, path) ? -1 : (int)syscall(SYS_openat, descriptor, path, flags, mode);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list all; va_start(all, flags); mode = va_arg(all, mode_t); va_end(all); }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }

ssize_t read(int file, void *to, size_t size) {
    return fails("read", file, NULL) ? -1 : syscall(SYS_read, file, to, size);
}
ssize_t pread(int file, void *to, size_t size, off_t at) {
    return fails("read", file, NULL) ? -1 : syscall(SYS_pread64, file, to, size, at);
}
ssize_t pread64(int file, void *to, size_t size, off_t at) { return pread(file, to, size, at); }
ssize_t readv(int file, const struct iovec *to, int count) {
    return fails("read", file, NULL) ? -1 : syscall(SYS_readv, file, to, count);
}
ssize_t preadv64v2(int file, const struct iovec *to, int count, off_t at, int flags) {
    if (fails("read", file, NULL)) return -1;
    return flags ? syscall(SYS_preadv2, file, to, count, at, 0, flags) : syscall(SYS_preadv, file, to, count, at, 0);
}
ssize_t preadv64(int file, const struct iovec *to, int count, off_t at) { return preadv64v2(file, to, count, at, 0); }
ssize_t write(int file, const void *from, size_t size) {
    return fails("write", file, NULL) ? -1 : syscall(SYS_write, file, from, size);
}
ssize_t pwrite(int file, const void *from, size_t size, off_t at) {
    return fails("write", file, NULL) ? -1 : syscall(SYS_pwrite64, file, from, size, at);
}
ssize_t pwrite64(int file, const void *from, size_t size, off_t at) { return pwrite(file, from, size, at); }
ssize_t writev(int file, const struct iovec *from, int count) {
    return fails("write", file, NULL) ? -1 : syscall(SYS_writev, file, from, count);
}
static int flush(int file, long call) {
    if (fails("fsync", file, NULL)) return -1;
    int result = (int)syscall(call, file);
    if (result == 0) record_flush(file);
    return result;
}
int fsync(int file) { return flush(file, SYS_fsync); }
int fdatasync(int file) { return flush(file, SYS_fdatasync); }
int ftruncate(int file, off_t size) { return fails("truncate", file, NULL) ? -1 : (int)syscall(SYS_ftruncate, file, size); }
int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    if (fails("rename", to_at, to)) return -1;
    record_deletion(to_at, to);
    return (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return fails("link", to_at, to) ? -1 : (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
/* Forget the entries of a deleted directory, whose inode another file may get; this is recorded as `gone-INODE`. */
static int remove_directory(int at, const char *path) {
    struct statx status;
    char name[PATH_MAX + 64];
    int is_kept = is_recorded(at, path) && !syscall(SYS_statx, at, path, 0, STATX_BASIC_STATS, &status);
    int result = (int)syscall(SYS_unlinkat, at, path, AT_REMOVEDIR), before = errno;
    if (is_kept && result == 0) {
        snprintf(name, sizeof name, "%s/listed-%lu", kept, (unsigned long)status.stx_ino);
        syscall(SYS_unlinkat, AT_FDCWD, name, 0);
        snprintf(name, sizeof name, "%s/gone-%lu", kept, (unsigned long)status.stx_ino);
        syscall(SYS_close, (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT, 0600));
    }
    errno = before;
    return result;
}
int rmdir(const char *path) { return remove_directory(AT_FDCWD, path); }
int unlinkat(int at, const char *path, int flags) {
    if (flags & AT_REMOVEDIR) return remove_directory(at, path);
    if (fails("unlink", at, path)) return -1;
    record_deletion(at, path);
    return (int)syscall(SYS_unlinkat, at, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int mkdir(const char *path, mode_t mode) {
    return fails("mkdir", AT_FDCWD, path) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int mkdirat(int at, const char *path, mode_t mode) {
    return fails("mkdir", at, path) ? -1 : (int)syscall(SYS_mkdirat, at, path, mode);
}

#define NEXT(type, name, arguments) static type (*next) arguments; if (!next) next = dlsym(RTLD_NEXT, name);

DIR *opendir(const char *path) {
    NEXT(DIR *, "opendir", (const char *))
    return fails("list", AT_FDCWD, path) ? NULL : next(path);
}
struct dirent *readdir(DIR *listing) {
    NEXT(struct dirent *, "readdir", (DIR *))
    return fails("list", dirfd(listing), NULL) ? NULL : next(listing);
}
struct dirent64 *readdir64(DIR *listing) {
    NEXT(struct dirent64 *, "readdir64", (DIR *))
    return fails("list", dirfd(listing), NULL) ? NULL : next(listing);
}

/* Python uses the names of new versions of glibc, `deltalake` and Arrow those of old ones. */
#define STATUS(type, name, parameters, values, at, path) \
    type name parameters { \
        NEXT(type, #name, parameters) \
        return fails("stat", at, path) ? -1 : next values; \
    }
STATUS(int, stat, (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
STATUS(int, stat64, (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
STATUS(int, lstat, (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
STATUS(int, lstat64, (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
STATUS(int, fstat, (int file, struct stat *to), (file, to), file, NULL)
STATUS(int, fstat64, (int file, struct stat64 *to), (file, to), file, NULL)
STATUS(int, fstatat, (int at, const char *path, struct stat *to, int flags), (at, path, to, flags), at, path)
STATUS(int, fstatat64, (int at, const char *path, struct stat64 *to, int flags), (at, path, to, flags), at, path)
STATUS(int, __xstat, (int version, const char *path, struct stat *to), (version, path, to), AT_FDCWD, path)
STATUS(int, __xstat64, (int version, const char *path, struct stat64 *to), (version, path, to), AT_FDCWD, path)
STATUS(int, __lxstat, (int version, const char *path, struct stat *to), (version, path, to), AT_FDCWD, path)
STATUS(int, __lxstat64, (int version, const char *path, struct stat64 *to), (version, path, to), AT_FDCWD, path)
STATUS(int, __fxstat, (int version, int file, struct stat *to), (version, file, to), file, NULL)
STATUS(int, __fxstat64, (int version, int file, struct stat64 *to), (version, file, to), file, NULL)
STATUS(int, __fxstatat64, (int version, int at, const char *path, struct stat64 *to, int flags),
       (version, at, path, to, flags), at, path)
STATUS(int, statx, (int at, const char *path, int flags, unsigned mask, struct statx *to), (at, path, flags, mask, to),
       at, path)

/* A descriptor whose `close` fails is closed nevertheless. */
int close(int file) {
    int is_failing = fails("close", file, NULL), error = errno;
    int result = (int)syscall(SYS_close, file);
    errno = is_failing ? error : errno;
    return is_failing ? -1 : result;
}
