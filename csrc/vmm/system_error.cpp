#include "vmm/system_error.hpp"

#include <cerrno>
#include <cstring>
#include <sstream>

#include "vmm/error.hpp"

#ifndef EHWPOISON
#define EHWPOISON 133
#endif

namespace kvcached {
namespace {

// glibc's own table came with 2.32; these are the codes that memory calls give.
const char* name_of(int code) {
  switch (code) {
    case EPERM:
      return "EPERM";
    case EBADF:
      return "EBADF";
    case EAGAIN:
      return "EAGAIN";
    case ENOMEM:
      return "ENOMEM";
    case EACCES:
      return "EACCES";
    case EFAULT:
      return "EFAULT";
    case EINVAL:
      return "EINVAL";
    case ENFILE:
      return "ENFILE";
    case EMFILE:
      return "EMFILE";
    case EFBIG:
      return "EFBIG";
    case ENOSPC:
      return "ENOSPC";
    case ENOSYS:
      return "ENOSYS";
    case EHWPOISON:
      return "EHWPOISON";
    default:
      return "errno";
  }
}

// EFAULT is what the kernel answers to a populate that it could not charge or back, ENOSPC to one of a file.
bool is_shortage(int code) {
  return code == ENOMEM || code == EAGAIN || code == EFAULT || code == ENOSPC || code == EHWPOISON;
}

}  // namespace

std::string explain_errno(int code) {
  return std::string(name_of(code)) + " (" + std::to_string(code) + "): " + std::strerror(code);
}

std::string describe_call(const char* name, Address first, std::size_t bytes) {
  std::ostringstream out;
  out << name << "(0x" << std::hex << first << std::dec << ", " << bytes << ")";
  return out.str();
}

void raise_system_error(const std::string& call, int code, const std::string& remedy) {
  std::string message = call + " failed: " + explain_errno(code);
  if (!remedy.empty()) message += "; " + remedy;
  if (is_shortage(code)) throw OutOfMemory(message);
  throw DriverError(message);
}

}  // namespace kvcached
