// The error tree. bindings/ turns each type into the Python exception of the same name.
#pragma once

#include <stdexcept>
#include <string>

namespace kvcached {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Recoverable: the operation had no effect and may be retried once memory is free.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// What was asked for does not exist on this machine (no driver, no device, no capability).
class Unavailable : public Error {
 public:
  using Error::Error;
};

// A driver or system call failed for a reason the caller cannot mend by freeing memory.
// The message holds the call with its arguments, the code and its name.
class DriverError : public Error {
 public:
  using Error::Error;
};

// An operation failed half-way and so did its undoing: what it was about is neither as before nor as wanted.
class UndoFailed : public DriverError {
 public:
  using DriverError::DriverError;
};

// The caller broke a precondition; the operation had no effect.
class Misuse : public Error {
 public:
  using Error::Error;
};

// A client asked for a floor that does not fit into the device's budget.
class LedgerRefused : public Error {
 public:
  using Error::Error;
};

}  // namespace kvcached
