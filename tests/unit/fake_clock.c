#include "tests/unit/fake_clock.h"

#include <stdatomic.h>

/* What is not doubled comes from the original, whose clocks get other names. */
#define clock_now_ms original_now_ms
#define clock_now_us original_now_us
#define clock_wall_ms original_wall_ms
int64_t original_now_ms(void);
int64_t original_now_us(void);
int64_t original_wall_ms(void);
#include "base/clock.c"
#undef clock_now_ms
#undef clock_now_us
#undef clock_wall_ms

static atomic_int_least64_t faked_now = 1000000;
static atomic_int_least64_t faked_wall = INT64_C(1790000000000);

int64_t clock_now_ms(void)
{
    return atomic_load(&faked_now);
}

int64_t clock_now_us(void)
{
    return atomic_load(&faked_now) * 1000;
}

int64_t clock_wall_ms(void)
{
    return atomic_load(&faked_wall);
}

void fake_clock_advance(int64_t ms)
{
    atomic_fetch_add(&faked_now, ms);
    atomic_fetch_add(&faked_wall, ms);
}

void fake_clock_shift_wall(int64_t ms)
{
    atomic_fetch_add(&faked_wall, ms);
}
