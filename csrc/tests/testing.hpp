// A small test runner: named tests, checks that report and go on, requirements that end their test. One typed
// suite runs over every backend. Why not a framework: docs/adr/0004-cpp-tests.md.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace testing {

struct Test {
  std::string name;
  std::function<void()> body;
};

inline std::vector<Test>& registry() {
  static std::vector<Test> tests;
  return tests;
}

inline int& failures_in_test() {
  static int count = 0;
  return count;
}

struct Registrar {
  Registrar(std::string name, std::function<void()> body) {
    registry().push_back({std::move(name), std::move(body)});
  }
};

// A test that cannot run here says why; it counts as skipped.
class Skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class RequirementFailed : public std::exception {};

inline void report(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "  %s:%d: %s\n", file, line, what.c_str());
  ++failures_in_test();
}

template <typename Left, typename Right>
bool check_equal(const char* file, int line, const char* text, const Left& left, const Right& right) {
  if (left == right) return true;
  std::ostringstream out;
  out << text << ": " << left << " != " << right;
  report(file, line, out.str());
  return false;
}

template <typename Error, typename Action>
void check_throws(const char* file, int line, const char* text, Action action, const std::string& part) {
  try {
    action();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    report(file, line, std::string(text) + ": message '" + error.what() + "' lacks '" + part + "'");
    return;
  } catch (const std::exception& error) {
    report(file, line, std::string(text) + ": threw another type: " + error.what());
    return;
  }
  report(file, line, std::string(text) + ": threw nothing");
}

// Runs all tests whose name starts with argv[1], if given; returns the exit status.
int run(int argc, char** argv);

}  // namespace testing

#define TEST(name)                                                        \
  static void test_##name();                                              \
  static const ::testing::Registrar registrar_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition) \
  ((condition) ? (void)0 : ::testing::report(__FILE__, __LINE__, "not true: " #condition))
#define CHECK_EQ(left, right) \
  (void)::testing::check_equal(__FILE__, __LINE__, #left " == " #right, (left), (right))
#define REQUIRE(condition)                                          \
  do {                                                              \
    if (condition) break;                                           \
    ::testing::report(__FILE__, __LINE__, "required: " #condition); \
    throw ::testing::RequirementFailed();                           \
  } while (false)
// The statement throws Error, and the message holds `part`.
#define CHECK_THROWS(Error, part, ...) \
  ::testing::check_throws<Error>(__FILE__, __LINE__, #__VA_ARGS__, [&] { __VA_ARGS__; }, part)
