// In the compiler's stead, whose header takes a second or two to parse in each file that includes torch's headers: all that these take from it is the counter
// of the processor's cycles.
#pragma once
#define __rdtsc() __builtin_ia32_rdtsc()
