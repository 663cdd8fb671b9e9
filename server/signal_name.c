#include "server/signal_name.h"

#include <signal.h>
#include <string.h>

#include "base/str.h"

int signal_of_name(const char *name)
{
    if (str_starts(name, "SIG"))
        name += 3;
    for (int number = 1; number < SIGRTMIN; number++) {
        const char *known = sigabbrev_np(number);

        if (known && strcmp(known, name) == 0)
            return number;
    }
    return 0;
}
