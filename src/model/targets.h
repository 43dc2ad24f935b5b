// Include before Highway in every source that is compiled for many targets.
//
// Only targets with a fused multiply-add are compiled: the others would give other bits. On x86 the
// least of them is AVX2; CpuIsSupported (layers.h) says whether this machine has one.
#ifndef QUIRE_MODEL_TARGETS_H_
#define QUIRE_MODEL_TARGETS_H_

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#endif

#endif  // QUIRE_MODEL_TARGETS_H_
