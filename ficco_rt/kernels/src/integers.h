// Integers by their size. C and C++ alike; the run-time compilers bring no <stdint.h>.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
