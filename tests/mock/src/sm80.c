#include "standin.h"

const KernelCode sm80_kernels[] = {{0}};
