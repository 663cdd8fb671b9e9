#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "agent/agent.h"
#include "agent/attach.h"
#include "agent/install.h"
#include "agent/number.h"

#ifndef PODSANDBOX_VERSION
#define PODSANDBOX_VERSION "0"
#endif

static const char help[] =
    "Usage: podsandbox-agent COMMAND\n"
    "The process inside every sandbox of podsandboxd.\n"
    "\n"
    "  serve              be PID 1 of the sandbox and listen for the server\n"
    "    --uid UID            refuse a server that means another sandbox\n"
    "    --listen-fd N        on this listening socket, not on the abstract one\n"
    "    --first-hello S      exit when no server has come after S seconds (300)\n"
    "    --without-server S   end executions after S seconds without a server (600)\n"
    "    --end-without-server S   exit after S seconds without a server (0: never)\n"
    "  attach             join standard input and output with the agent of this sandbox\n"
    "  install DIRECTORY  copy this program there\n"
    "  --version, --help\n"
    "\n"
    "Exit status of serve: 1 failed, 3 deadline passed, 4 no server came, 143 terminated.\n";

extern char **environ;

static int usage(const char *problem, const char *what)
{
    (void)fprintf(stderr, "podsandbox-agent: %s%s (see --help)\n", problem, what);
    return 2;
}

static int serve_command(char **args)
{
    struct options options = {
        .listen_fd = -1,
        .first_hello_ms = 300000,
        .without_server_ms = 600000,
    };
    for (; args[0] != NULL; args += 2) {
        uint64_t value;
        const char *end = NULL;
        if (args[1] == NULL)
            return usage("a value is missing for ", args[0]);
        if (strcmp(args[0], "--uid") == 0) {
            options.uid = args[1];
            continue;
        }
        if (!number_read(args[1], 1000000000, &value, &end) || *end != '\0')
            return usage("not a number: ", args[1]);
        if (strcmp(args[0], "--listen-fd") == 0)
            options.listen_fd = (int)value;
        else if (strcmp(args[0], "--first-hello") == 0)
            options.first_hello_ms = (int64_t)value * 1000;
        else if (strcmp(args[0], "--without-server") == 0)
            options.without_server_ms = (int64_t)value * 1000;
        else if (strcmp(args[0], "--end-without-server") == 0)
            options.end_without_server_ms = (int64_t)value * 1000;
        else
            return usage("unknown option: ", args[0]);
    }
    return serve(&options, environ);
}

int main(int argc, char **argv)
{
    /* First of all: from here on no other process of this user reads our memory or descriptors. */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "serve") == 0)
        return serve_command(argv + 2);
    if (strcmp(command, "attach") == 0 && argc == 2)
        return attach();
    if (strcmp(command, "install") == 0 && argc == 3)
        return install(argv[2]);
    if (strcmp(command, "--version") == 0 && argc == 2)
        return printf("podsandbox-agent %s\n", PODSANDBOX_VERSION) < 0;
    if (strcmp(command, "--help") == 0 && argc == 2)
        return fputs(help, stdout) < 0;
    return usage("unknown command: ", command);
}
