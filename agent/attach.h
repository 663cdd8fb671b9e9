#pragma once

/* Joins standard input and output with the agent's socket until either ends. Returns the exit
 * status. */
int attach(void);
