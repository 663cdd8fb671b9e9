/* Where the engine is, and what is asked of a registry. */
#include <stdlib.h>
#include <string.h>

#include "docker/place.h"
#include "docker/pull.h"
#include "tests/unit/suite.h"

static void no_environment(void)
{
    unsetenv("DOCKER_HOST");
    unsetenv("DOCKER_TLS_VERIFY");
    unsetenv("DOCKER_CERT_PATH");
}

START_TEST(test_unix)
{
    struct place place;
    struct err err;

    ck_assert_int_eq(place_find("unix:///run/x.sock", &place, &err), 0);
    ck_assert_str_eq(place.unix_socket, "/run/x.sock");
    ck_assert_ptr_null(place.ca);
    place_done(&place);
}
END_TEST

START_TEST(test_environment)
{
    struct place place;
    struct err err;

    setenv("DOCKER_HOST", "tcp://engine.example:2375", 1);
    ck_assert_int_eq(place_find(NULL, &place, &err), 0);
    ck_assert_str_eq(place.url, "http://engine.example:2375");
    ck_assert_ptr_null(place.unix_socket);
    place_done(&place);

    setenv("DOCKER_TLS_VERIFY", "1", 1);
    setenv("DOCKER_CERT_PATH", "/certs", 1);
    ck_assert_int_eq(place_find("", &place, &err), 0);
    ck_assert_str_eq(place.url, "https://engine.example:2375");
    ck_assert_str_eq(place.ca, "/certs/ca.pem");
    ck_assert_str_eq(place.cert, "/certs/cert.pem");
    ck_assert_str_eq(place.key, "/certs/key.pem");
    ck_assert(!place.insecure);
    place_done(&place);

    setenv("DOCKER_TLS_VERIFY", "", 1); /* as docker-py has it: TLS, unverified */
    ck_assert_int_eq(place_find(NULL, &place, &err), 0);
    ck_assert(str_starts(place.url, "https:"));
    ck_assert(place.insecure);
    place_done(&place);
}
END_TEST

START_TEST(test_refused)
{
    static const char *const hosts[] = {
        "ssh://host", "npipe:////./pipe/x", "unix://relative", "host:2375",
        "tcp://",     "tcp://a/b",          "tcp://a@b",       "fd://3"};

    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        struct place place;
        struct err err = {.code = ERR_NONE};

        ck_assert_msg(place_find(hosts[i], &place, &err) < 0, "%s", hosts[i]);
        ck_assert_int_eq(err.code, ERR_CONFIG);
        place_done(&place);
    }
}
END_TEST

/* Without a tag the engine would fetch all there are. */
START_TEST(test_pull_path)
{
    static const struct {
        const char *image, *path;
    } cases[] = {
        {"python", "/images/create?fromImage=python&tag=latest"},
        {"python:3.12", "/images/create?fromImage=python&tag=3.12"},
        {"host:5000/team/x", "/images/create?fromImage=host%3A5000%2Fteam%2Fx&tag=latest"},
        {"host:5000/x:1", "/images/create?fromImage=host%3A5000%2Fx&tag=1"},
        {"x@sha256:ab", "/images/create?fromImage=x&tag=sha256%3Aab"},
        {"x:1@sha256:ab", "/images/create?fromImage=x%3A1&tag=sha256%3Aab"},
        {"x&tag=evil", "/images/create?fromImage=x%26tag%3Devil&tag=latest"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *path = pull_path(cases[i].image);

        ck_assert_str_eq(path, cases[i].path);
        free(path);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {test_unix, test_environment, test_refused, test_pull_path, NULL};

    return run_suite("docker_place", tests, no_environment, no_environment);
}
