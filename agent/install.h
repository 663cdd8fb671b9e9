#pragma once

/* Copies this program to DIRECTORY/podsandbox-agent, 0755, so that it is there either whole or not
 * at all. Returns the exit status. */
int install(const char *directory);
