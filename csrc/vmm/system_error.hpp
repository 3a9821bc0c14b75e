// System calls that failed, as errors of ours.
#pragma once

#include <cstddef>
#include <string>

#include "vmm/vmm.hpp"

namespace kvcached {

// "ENOMEM (12): Cannot allocate memory"
std::string explain_errno(int code);

// "call(0x7f0000000000, 4096)", for messages.
std::string describe_call(const char* name, Address first, std::size_t bytes);

// Throws OutOfMemory for codes that mean so, else DriverError: "`call` failed: ENOMEM (12): ...; `remedy`".
[[noreturn]] void raise_system_error(const std::string& call, int code, const std::string& remedy = "");

}  // namespace kvcached
