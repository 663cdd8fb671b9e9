/* The parts of the local driver that need no namespaces. The whole is under tests/functional. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "local/cgroup.h"
#include "local/place.h"
#include "local/plan.h"
#include "local/process.h"
#include "local/record.h"
#include "local/root.h"
#include "local/uids.h"
#include "tests/unit/temp_dir.h"

static struct temp_dir dir;

static void make_dir(void)
{
    temp_dir_make(&dir);
}

static void remove_dir(void)
{
    temp_dir_remove(&dir);
}

static void make_directory(const char *name)
{
    cleanup_free char *path = temp_path(&dir, name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

static void make_file(const char *name, const char *text)
{
    cleanup_free char *path = temp_path(&dir, name);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void check_file(const char *name, const char *text)
{
    char found[256] = "";
    cleanup_free char *path = temp_path(&dir, name);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0 && read(fd, found, sizeof(found) - 1) >= 0, "%s", name);
    ck_assert_str_eq(found, text);
}

/* --- records ------------------------------------------------------------------------------------
 */

START_TEST(test_record_comes_back)
{
    struct box_record record = {
        .instance = "i-1",
        .id = "one",
        .uid = "u-1",
        .owner = "ann",
        .digest = "d",
        .image = "host",
        .workdir = "/workspace",
        .boot = "b",
        .created_ms = INT64_C(1796054400123),
        .storage = UINT64_C(1) << 40,
        .pids = 64,
        .host_uid = 200001,
        .bwrap = {.pid = 12, .started = UINT64_C(1) << 50},
        .agent = {.pid = 13, .started = 99},
    };
    struct box_record read = {.id = ""};
    struct err err = {0};
    cleanup_fd int fd = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(record.cgroup.paths[CGROUP_PIDS], CGROUP_PATH_LEN, "/g/one");
    ck_assert_int_eq(record_write(fd, &record, &err), 0);
    ck_assert_int_eq(record_read(fd, &read, &err), 0);
    ck_assert_mem_eq(&read, &record, sizeof(record));
}
END_TEST

/* A limit on file sizes stands for a disk without room. */
START_TEST(test_no_room_for_a_record)
{
    const struct box_record record = {.id = "one", .uid = "u-1"};
    struct box_record read = {.id = ""};
    struct err err = {0};
    struct rlimit before, none = {.rlim_cur = 10};
    cleanup_fd int fd = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    none.rlim_max = before.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
    int rc = record_write(fd, &record, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    ck_assert_int_lt(rc, 0);
    ck_assert_str_eq(err_code_name(err.code), "store_full");
    ck_assert_int_lt(record_read(fd, &read, &err), 0); /* no half of one */
    ck_assert_int_eq(record_write(fd, &record, &err), 0);
}
END_TEST

START_TEST(test_record_that_cannot_be_used)
{
    static const char *const texts[] = {
        "", "{", "[]", "{\"id\":\"a\"}", "{\"uid\":\"u\"}", "{\"id\":1,\"uid\":2}"};
    struct box_record record;
    struct err err;
    cleanup_fd int fd = open(dir.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_lt(record_read(fd, &record, &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        make_file("record", texts[i]);
        ck_assert_int_lt(record_read(fd, &record, &err), 0);
        ck_assert_int_eq(err.code, ERR_BACKEND_NOT_FOUND);
    }
}
END_TEST

/* --- the state directory ------------------------------------------------------------------------
 */

START_TEST(test_boxes_come_and_go)
{
    struct place place;
    struct text_list ids = {0};
    struct err err = {0};
    int box = -1, listener = -1, fd = -1;
    char text[8];
    cleanup_free char *path =
        temp_path(&dir, "a-name-that-is-so-long-that-no-address-of-a-socket-could-hold-"
                        "it-together-with-what-comes-behind-it-in-the-directory");
    ck_assert_int_eq(place_open(path, &place, &err), 0);
    ck_assert_int_lt(place_open(path, &place, &err), 0); /* the first one has it */
    ck_assert_int_eq(place_make_box(&place, "one", &box, &err), 0);
    ck_assert_int_eq(place_listen(&place, "one", &listener, &err), 0);
    ck_assert_int_eq(place_connect(&place, "one", &fd, &err), 0);
    close(fd);
    close(listener);
    ck_assert_int_lt(place_connect(&place, "one", &fd, &err), 0);
    ck_assert_int_eq(err.code, ERR_NOT_READY);
    place_list(&place, &ids);
    ck_assert_uint_eq(ids.count, 1);
    ck_assert_str_eq(ids.items[0], "one");
    text_list_done(&ids);
    place_read(&place, "one", PLACE_LOG, text, sizeof(text));
    ck_assert_str_eq(text, "");
    place_remove_box(&place, "one");
    ck_assert_int_lt(place_connect(&place, "one", &fd, &err), 0);
    ck_assert_int_eq(err.code, ERR_SANDBOX_GONE);
    close(box);
    place_close(&place);
    ck_assert_int_eq(place_open(path, &place, &err), 0);
    place_close(&place);
}
END_TEST

/* --- processes ----------------------------------------------------------------------------------
 */

START_TEST(test_a_process_and_its_end)
{
    struct process_id id, child;
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    ck_assert(process_identify(pid, &id));
    ck_assert(process_child(getpid(), &child));
    ck_assert_int_eq(child.pid, pid);
    struct process_id another = {.pid = pid, .started = id.started + 1};
    ck_assert_int_eq(process_open(&another), -1);
    int fd = process_open(&id);
    ck_assert_int_ge(fd, 0);
    ck_assert(!process_has_ended(fd));
    process_stop(&id, fd);
    process_signal(fd, SIGKILL);
    ck_assert(process_wait(fd, 10000));
    ck_assert(!process_identify(pid, &another)); /* a zombie has ended */
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(process_open(&id), -1);
    ck_assert(process_has_ended(-1));
    close(fd);
}
END_TEST

/* --- uids ---------------------------------------------------------------------------------------
 */

START_TEST(test_uids_are_given_once)
{
    struct uids uids;
    struct err err = {0};
    uid_t first = 0, second = 0, third = 0;
    ck_assert_int_lt(uids_init(&uids, "nonsense", &err), 0);
    ck_assert_int_eq(uids_init(&uids, "300000-300001", &err), 0);
    if (uids.count == 0) { /* not root: everything runs as ourselves */
        ck_assert_int_eq(uids_take(&uids, &first, &err), 0);
        ck_assert_uint_eq(first, geteuid());
        uids_done(&uids);
        return;
    }
    uids_mark(&uids, 300000);
    ck_assert_int_eq(uids_take(&uids, &first, &err), 0);
    ck_assert_uint_eq(first, 300001);
    ck_assert_int_lt(uids_take(&uids, &second, &err), 0);
    ck_assert_int_eq(err.code, ERR_BUSY);
    uids_give(&uids, 300000);
    uids_give(&uids, 5); /* none of ours */
    ck_assert_int_eq(uids_take(&uids, &third, &err), 0);
    ck_assert_uint_eq(third, 300000);
    uids_done(&uids);
}
END_TEST

/* --- the root -----------------------------------------------------------------------------------
 */

static char *joined(const struct text_list *list)
{
    char *all = xstrdup("");
    for (size_t i = 0; i < list->count; i++) {
        char *more = xasprintf("%s%s ", all, list->items[i]);
        free(all);
        all = more;
    }
    return all;
}

static char *root_of(const char *const *places)
{
    struct text_list arguments = {0}, list = {0};
    struct err err = {0};
    for (; *places; places++)
        text_list_add(&list, *places);
    ck_assert_int_eq(root_add(&arguments, dir.path, NULL, &list, &err), 0);
    char *all = joined(&arguments);
    text_list_done(&arguments);
    text_list_done(&list);
    return all;
}

static bool binds(const char *arguments, const char *path)
{
    cleanup_free char *want = xasprintf("--ro-bind %s%s %s ", dir.path, path, path);
    return strstr(arguments, want) != NULL;
}

START_TEST(test_a_root_is_taken_apart_where_it_must)
{
    make_directory("bin");
    make_directory("usr");
    make_directory("usr/lib");
    make_directory("usr/lib/there");
    make_file("usr/file", "");
    make_file("file", "");
    cleanup_free char *link = temp_path(&dir, "lib");
    ck_assert_int_eq(symlink("usr/lib", link), 0);
    cleanup_free char *pipe = temp_path(&dir, "pipe");
    ck_assert_int_eq(mkfifo(pipe, 0644), 0);

    cleanup_free char *whole = root_of((const char *const[]){"/usr/lib/there", "/new", NULL});
    ck_assert(binds(whole, "/bin") && binds(whole, "/usr") && binds(whole, "/file"));
    ck_assert_ptr_nonnull(strstr(whole, "--symlink usr/lib /lib "));
    ck_assert_ptr_null(strstr(whole, "pipe"));
    ck_assert_ptr_null(strstr(whole, "--dir"));

    cleanup_free char *apart = root_of((const char *const[]){"/usr/lib/new/deep", NULL});
    ck_assert_ptr_nonnull(strstr(apart, "--perms 0755 --dir /usr --"));
    ck_assert(binds(apart, "/bin") && !binds(apart, "/usr") && !binds(apart, "/usr/lib"));
    ck_assert(binds(apart, "/usr/lib/there") && binds(apart, "/usr/file"));

    cleanup_free char *covered = root_of((const char *const[]){"/bin", "/lib/x", NULL});
    ck_assert(!binds(covered, "/bin") && binds(covered, "/usr"));
    ck_assert_ptr_null(strstr(covered, "--symlink")); /* it gives way */
}
END_TEST

START_TEST(test_a_box_is_planned)
{
    struct text_list mounts = {0}, arguments = {0}, environment = {0}, image = {0};
    struct cgroup_paths cgroup = {.paths = {[CGROUP_MEMORY] = "/g/m"}};
    struct err err = {0};
    text_list_add(&mounts, "/workspace/deep");
    text_list_add(&mounts, "/data");
    text_list_add(&image, "PATH=/own");
    const struct box_spec spec = {.id = "one",
                                  .uid = "u-1",
                                  .workdir = "/workspace",
                                  .writable_mounts = &mounts,
                                  .run_as_user = 1000,
                                  .run_as_group = 1001,
                                  .network = "none"};
    const struct plan plan = {.spec = &spec,
                              .bwrap = "/bwrap",
                              .agent = "/agent",
                              .root = dir.path,
                              .storage = 1 << 20,
                              .cgroup = &cgroup,
                              .without_server_ms = 1500};
    ck_assert_int_eq(plan_command(&plan, &arguments, &err), 0);
    cleanup_free char *all = joined(&arguments);
    ck_assert_str_eq(arguments.items[0], "/bwrap");
    static const char *const wanted[] = {
        "--unshare-all --unshare-user --disable-userns --as-pid-1 --cap-drop ALL --hostname one ",
        "--uid 1000 --gid 1001 ",
        "--perms 0755 --size 1048576 --tmpfs /data ",
        "--tmpfs /workspace --perms 0755 --size 1048576 --tmpfs /workspace/deep ",
        "--remount-ro /dev ",
        "--ro-bind /g/m /sys/fs/cgroup/memory ",
        "--ro-bind /agent /opt/podsandbox/podsandbox-agent --remount-ro / ",
        "serve --listen-fd 3 --uid u-1 --end-without-server 2 ",
    };
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        ck_assert_msg(strstr(all, wanted[i]) != NULL, "%s is not in %s", wanted[i], all);
    ck_assert_ptr_null(strstr(all, "--share-net"));
    ck_assert_ptr_null(plan_file(&plan, BOX_FD_PASSWD));
    plan_environment(&image, &environment);
    ck_assert_str_eq(environment.items[0], "PATH=/own");
    ck_assert_uint_eq(environment.count, 3);
    text_list_done(&mounts);
    text_list_done(&image);
    text_list_done(&arguments);
    text_list_done(&environment);
}
END_TEST

/* --- control groups -----------------------------------------------------------------------------
 */

/* Of version 2, in ordinary files: those that the kernel would make are made before. */
START_TEST(test_groups_of_version_2)
{
    static const char *const values[][2] = {{"memory.max", "67108864"},
                                            {"memory.swap.max", "0"},
                                            {"cpu.max", "50000 100000"},
                                            {"cpu.weight", "26"},
                                            {"pids.max", "64"}};
    struct cgroups cgroups;
    struct cgroup_paths paths;
    struct err err = {0};
    make_file("cgroup.controllers", "cpu memory pids\n");
    make_directory("user");
    make_file("user/cgroup.subtree_control", "memory pids cpu\n");
    make_directory("user/podsandbox-i-1");
    make_file("user/podsandbox-i-1/cgroup.subtree_control", "cpu memory pids\n");
    make_directory("user/podsandbox-i-1/one");
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        cleanup_free char *name = xasprintf("user/podsandbox-i-1/one/%s", values[i][0]);
        make_file(name, "");
    }
    cgroups_open(&cgroups, dir.path, "3:cpu:/x\n0::/user/server\n", "i-1");
    ck_assert(cgroups.version_2);
    ck_assert_str_eq(cgroups.why, "");
    cgroup_name(&cgroups, "one", &paths);
    ck_assert_str_eq(paths.paths[CGROUP_CPUACCT], "");
    const struct cgroup_limits limits = {
        .memory = 64 << 20, .cpu_milli = 500, .cpu_share_milli = 250, .pids = 64};
    ck_assert_int_eq(cgroup_make(&cgroups, &paths, &limits, &err), 0);
    struct text_list doors = {0};
    cgroup_doors(&cgroups, &paths, &doors);
    ck_assert_uint_eq(doors.count, 1); /* one tree has all controllers */
    ck_assert(str_ends(doors.items[0], "/user/podsandbox-i-1/one/cgroup.procs"));
    text_list_done(&doors);
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        cleanup_free char *name = xasprintf("user/podsandbox-i-1/one/%s", values[i][0]);
        check_file(name, values[i][1]);
    }
    const struct cgroup_limits tiny = {.memory = 64 << 20, .cpu_milli = 1, .pids = 64};
    make_file("user/podsandbox-i-1/one/cpu.max", "");
    ck_assert_int_eq(cgroup_make(&cgroups, &paths, &tiny, &err), 0);
    check_file("user/podsandbox-i-1/one/cpu.max", "1000 100000");
    ck_assert(!cgroup_had_oom(&paths));
    make_file("user/podsandbox-i-1/one/memory.events", "low 0\noom 3\noom_kill 2\n");
    ck_assert(cgroup_had_oom(&paths));
    make_file("user/podsandbox-i-1/one/memory.events", "low 0\noom 3\noom_kill 0\n");
    ck_assert(!cgroup_had_oom(&paths));
}
END_TEST

START_TEST(test_groups_that_are_not_ours)
{
    struct cgroups cgroups;
    struct cgroup_paths paths;
    struct cgroup_limits limits = {.pids = 1};
    struct err err = {0};
    make_file("cgroup.controllers", "cpu\n");
    make_file("cgroup.subtree_control", "cpu\n");
    cgroups_open(&cgroups, dir.path, "0::/server\n", "i-1");
    ck_assert_str_ne(cgroups.why, "");
    cgroup_name(&cgroups, "one", &paths);
    for (int i = 0; i < CGROUP_COUNT; i++)
        ck_assert_str_eq(paths.paths[i], "");
    ck_assert_int_eq(cgroup_make(&cgroups, &paths, &limits, &err), 0);
    ck_assert(cgroup_remove(&paths));
    cgroups_open(&cgroups, dir.path, "nonsense", "i-1");
    ck_assert_str_ne(cgroups.why, "");
    cgroups_open(&cgroups, "/nowhere", "0::/server\n", "i-1");
    ck_assert(!cgroups.version_2);
    ck_assert_str_ne(cgroups.why, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("local");
    TCase *tcase = tcase_create("local");
    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_record_comes_back);
    tcase_add_test(tcase, test_no_room_for_a_record);
    tcase_add_test(tcase, test_record_that_cannot_be_used);
    tcase_add_test(tcase, test_boxes_come_and_go);
    tcase_add_test(tcase, test_a_process_and_its_end);
    tcase_add_test(tcase, test_uids_are_given_once);
    tcase_add_test(tcase, test_a_root_is_taken_apart_where_it_must);
    tcase_add_test(tcase, test_a_box_is_planned);
    tcase_add_test(tcase, test_groups_of_version_2);
    tcase_add_test(tcase, test_groups_that_are_not_ours);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
