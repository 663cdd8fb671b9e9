#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "local/image_oci.h"
#include "tests/unit/suite.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define ENTRY(hex, more) "{\"digest\":\"sha256:" hex "\",\"size\":7" more "}"
#define NAMED(hex, name)                                                                           \
    ENTRY(hex, ",\"annotations\":{\"org.opencontainers.image.ref.name\":\"" name "\"}")
#define IMPORTED(hex, name)                                                                        \
    ENTRY(hex, ",\"annotations\":{\"io.containerd.image.name\":\"" name "\"}")
#define FOR(hex, machine)                                                                          \
    ENTRY(hex, ",\"platform\":{\"os\":\"linux\",\"architecture\":\"" machine "\"}")
#define INDEX(entries) "{\"manifests\":[" entries "]}"

static struct err err;

static void setup(void)
{
    err = (struct err){.code = ERR_NONE};
}

static const struct {
    const char *index, *tag, *hex;
    const char *want; /* NULL: refused */
} picks[] = {
    {INDEX(ENTRY(A, "")), NULL, NULL, A},
    {INDEX(NAMED(A, "1") "," NAMED(B, "2")), "2", NULL, B},
    {INDEX(NAMED(A, "1") "," NAMED(B, "2")), "3", NULL, NULL},
    {INDEX(NAMED(A, "1") "," NAMED(B, "2")), NULL, NULL, NULL}, /* which? */
    {INDEX(NAMED(A, "1") "," NAMED(A, "2")), NULL, NULL, A},    /* one with two names */
    {INDEX(NAMED(A, "1") "," NAMED(B, "2")), NULL, B, B},
    {INDEX(NAMED(A, "x/y:1") "," NAMED(B, "x/y:11")), "1", NULL, A},
    {INDEX(IMPORTED(A, "h:5000/y:1") "," NAMED(B, "11")), "1", NULL, A},
    {INDEX(ENTRY(A, "")), "1", NULL, NULL},
    {INDEX(FOR(A, "pdp11")), NULL, NULL, NULL},
    {INDEX(FOR(A, "unknown") "," ENTRY(B, "")), NULL, NULL, B},
    {INDEX(ENTRY(A, ",\"platform\":{\"os\":\"windows\"}")), NULL, NULL, NULL},
    {INDEX(""), NULL, NULL, NULL},
    {"{}", NULL, NULL, NULL},
    {"[]", NULL, NULL, NULL},
    {"{\"manifests\":{}}", NULL, NULL, NULL},
    {"{\"manifests\":[", NULL, NULL, NULL},
    {INDEX("null"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha512:" A B "\",\"size\":7}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha256:../../../etc/passwd\",\"size\":7}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"" A "\",\"size\":7}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha256:" A "\"}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha256:" A "\",\"size\":-1}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha256:" A "\",\"size\":1.5}"), NULL, NULL, NULL},
    {INDEX("{\"digest\":\"sha256:" A "0\",\"size\":1}"), NULL, NULL, NULL},
};

START_TEST(test_index)
{
    const struct oci_wanted wanted = {.tag = picks[_i].tag, .hex = picks[_i].hex};
    struct oci_blob blob = {.size = -1};
    int rc = oci_index_pick(picks[_i].index, strlen(picks[_i].index), &wanted, &blob, &err);
    if (picks[_i].want == NULL) {
        ck_assert_int_eq(rc, -1);
        ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
        return;
    }
    ck_assert_msg(rc == 0, "%s", err.msg);
    ck_assert_str_eq(blob.hex, picks[_i].want);
    ck_assert_int_eq(blob.size, 7);
}
END_TEST

/* Whoever reads the error knows what to ask for. */
START_TEST(test_error_lists_the_tags)
{
    const char *index = INDEX(NAMED(A, "jammy") "," NAMED(B, "noble"));
    const struct oci_wanted any = {.tag = NULL};
    struct oci_blob blob;
    ck_assert_int_eq(oci_index_pick(index, strlen(index), &any, &blob, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.msg, "jammy"));
    ck_assert_ptr_nonnull(strstr(err.msg, "noble"));
}
END_TEST

START_TEST(test_inner_index_takes_the_first)
{
    const char *index = INDEX(FOR(A, "pdp11") "," ENTRY(B, "") "," ENTRY(A, ""));
    struct oci_blob blob;
    ck_assert_int_eq(oci_index_pick(index, strlen(index), NULL, &blob, &err), 0);
    ck_assert_str_eq(blob.hex, B);
}
END_TEST

START_TEST(test_manifest)
{
    static const char *const bad[] = {
        "{}",
        "{\"config\":" ENTRY(A, "") "}",
        "{\"config\":{},\"layers\":[]}",
        "{\"config\":" ENTRY(A, "") ",\"layers\":[{}]}",
        "{\"config\":" ENTRY(A, "") ",\"layers\":[" ENTRY(B, "") ",null]}",
        "{\"config\":" ENTRY(A, "") ",\"layers\":{}}",
    };
    const char *good = "{\"config\":" ENTRY(A, "") ",\"layers\":[" ENTRY(B, "") "," ENTRY(
        A, ",\"urls\":[]") "],\"new\":{}}";
    struct oci_manifest manifest;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err.code = ERR_NONE;
        ck_assert_int_eq(oci_manifest_read(bad[i], strlen(bad[i]), &manifest, &err), -1);
        ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    }
    ck_assert_int_eq(oci_manifest_read(good, strlen(good), &manifest, &err), 0);
    ck_assert_uint_eq(manifest.count, 2);
    ck_assert_str_eq(manifest.layers[0].hex, B);
    ck_assert_str_eq(manifest.config.hex, A);
    oci_manifest_done(&manifest);
}
END_TEST

START_TEST(test_too_many_layers)
{
    cleanup_buf struct buf text = BUF_INIT(MIB);
    struct oci_manifest manifest;
    ck_assert(buf_append_str(&text, "{\"config\":" ENTRY(A, "") ",\"layers\":["));
    for (int i = 0; i < CAP_IMAGE_LAYERS; i++)
        ck_assert(buf_append_str(&text, ENTRY(B, "") ","));
    ck_assert(buf_append_str(&text, ENTRY(B, "") "]}"));
    ck_assert_int_eq(oci_manifest_read(text.ptr, text.len, &manifest, &err), -1);
    ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
}
END_TEST

#define ROOTFS "\"rootfs\":{\"diff_ids\":[\"sha256:" A "\"]}"

START_TEST(test_config)
{
    static const char *const bad[] = {
        "{}",
        "{\"rootfs\":{\"diff_ids\":[\"" A "\"]}}",
        "{\"rootfs\":{\"diff_ids\":[7]}}",
        "{\"os\":\"windows\"," ROOTFS "}",
        "{\"architecture\":\"pdp11\"," ROOTFS "}",
        "{\"config\":{\"Env\":[\"NOVALUE\"]}," ROOTFS "}",
        "{\"config\":{\"Env\":[\"=x\"]}," ROOTFS "}",
        "{\"config\":{\"Env\":[7]}," ROOTFS "}",
        "{\"config\":{\"WorkingDir\":\"relative\"}," ROOTFS "}",
    };
    const char *good = "{\"os\":\"linux\",\"config\":{\"Env\":[\"A=\",\"B=c=d\"],\"User\":\"\","
                       "\"WorkingDir\":\"/w\",\"Volumes\":null}," ROOTFS "}";
    struct oci_config config;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err.code = ERR_NONE;
        ck_assert_msg(oci_config_read(bad[i], strlen(bad[i]), &config, &err) == -1, "%s", bad[i]);
        ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    }
    ck_assert_int_eq(oci_config_read(good, strlen(good), &config, &err), 0);
    ck_assert_uint_eq(config.env.count, 2);
    ck_assert_str_eq(config.env.items[0], "A=");
    ck_assert_str_eq(config.diff_ids.items[0], A);
    ck_assert_str_eq(config.workdir, "/w");
    ck_assert_ptr_null(config.user);
    oci_config_done(&config);
}
END_TEST

START_TEST(test_docker)
{
    static const char *const bad[] = {
        "[]",
        "{}",
        "[{}]",
        "[{\"Config\":\"c\"}]",
        "[{\"Config\":\"c\",\"Layers\":[7]}]",
        "[{\"Config\":\"c\",\"Layers\":[]},{\"Config\":\"d\",\"Layers\":[]}]",
    };
    const char *two = "[{\"Config\":\"c\",\"RepoTags\":[\"a:1\",\"a:latest\"],\"Layers\":[\"l\"]},"
                      "{\"Config\":\"d\",\"RepoTags\":null,\"Layers\":[]}]";
    struct docker_image image;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err.code = ERR_NONE;
        ck_assert_msg(docker_manifest_read(bad[i], strlen(bad[i]), NULL, &image, &err) == -1, "%s",
                      bad[i]);
        ck_assert_int_eq(err.code, ERR_INVALID_IMAGE);
    }
    ck_assert_int_eq(docker_manifest_read(two, strlen(two), "latest", &image, &err), 0);
    ck_assert_str_eq(image.config, "c");
    ck_assert_str_eq(image.layers.items[0], "l");
    docker_image_done(&image);
    ck_assert_int_eq(docker_manifest_read(two, strlen(two), "2", &image, &err), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image_oci");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_loop_test(tcase, test_index, 0, (int)ARRAY_LEN(picks));
    tcase_add_test(tcase, test_error_lists_the_tags);
    tcase_add_test(tcase, test_inner_index_takes_the_first);
    tcase_add_test(tcase, test_manifest);
    tcase_add_test(tcase, test_too_many_layers);
    tcase_add_test(tcase, test_config);
    tcase_add_test(tcase, test_docker);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
