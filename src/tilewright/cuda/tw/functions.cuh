// Functions that an epilogue may name.
#pragma once
#include <tw/math.cuh>
