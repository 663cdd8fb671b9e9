#pragma once

/* The number of "TERM", as records name it, or "SIGTERM". 0: no such signal. */
int signal_of_name(const char *name);
