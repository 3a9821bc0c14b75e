// Control of the libcuda stand-in: plain C, found by dlsym or ctypes in the library that is under test.
#pragma once

extern "C" {

struct StandinState {
  long allocations;  // handles that still hold memory
  long mappings;
  long reservations;
  long contexts;  // retained and not released
  long held_bytes;
  long violations;  // calls that broke a documented rule
  long injected;    // calls that failed on purpose, so far
};

// The `nth` next call of `function` (1 = the very next) returns `code` and has no effect; "" means any
// function.
void standin_fail(const char* function, long nth, int code);
// The same for `count` calls of any function in a row; a dead context is a very large count.
void standin_break(long nth, long count, int code);
void standin_mend();
// Calls so far; "" counts all that can fail.
long standin_calls(const char* function);
void standin_state(StandinState* state);
// What the last broken rule was, for messages.
const char* standin_last_violation();
// Forgets the violations counted so far: for tests that break rules on purpose.
void standin_forgive();
// Takes everything back, as the end of a process does.
void standin_reset();
// Memory of each device; default 1 GiB.
void standin_set_total_bytes(long total_bytes);
// Unit of addresses and sizes on a device; default 2 MiB.
void standin_set_granularity(int device, long bytes);
// What a device says of itself; by default it maps memory and exports it.
void standin_set_attribute(int device, int attribute, int value);
long standin_held_bytes(int device);
}
