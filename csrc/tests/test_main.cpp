#include "testing.hpp"

int main(int argc, char** argv) { return testing::run(argc, argv); }
