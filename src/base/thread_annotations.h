// Clang's thread-safety attributes (checked by the clang presets, nothing under g++): name the lock
// in the type of what it guards.
#ifndef QUIRE_BASE_THREAD_ANNOTATIONS_H_
#define QUIRE_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define QUIRE_THREAD_ATTRIBUTE_(attribute) __attribute__((attribute))
#else
#define QUIRE_THREAD_ATTRIBUTE_(attribute)
#endif

// A member that may only be touched while the mutex is held; PT: what the pointer points at.
#define QUIRE_GUARDED_BY(mutex) QUIRE_THREAD_ATTRIBUTE_(guarded_by(mutex))
#define QUIRE_PT_GUARDED_BY(mutex) QUIRE_THREAD_ATTRIBUTE_(pt_guarded_by(mutex))
// A function that its caller must call with, or without, the mutexes held.
#define QUIRE_REQUIRES(...) QUIRE_THREAD_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define QUIRE_REQUIRES_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(requires_shared_capability(__VA_ARGS__))
#define QUIRE_EXCLUDES(...) QUIRE_THREAD_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
// A function that takes or gives back the mutexes.
#define QUIRE_ACQUIRE(...) QUIRE_THREAD_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define QUIRE_RELEASE(...) QUIRE_THREAD_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define QUIRE_ACQUIRE_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(acquire_shared_capability(__VA_ARGS__))
#define QUIRE_RELEASE_SHARED(...) QUIRE_THREAD_ATTRIBUTE_(release_shared_capability(__VA_ARGS__))
// Types that are locks, and scopes that hold one.
#define QUIRE_CAPABILITY(name) QUIRE_THREAD_ATTRIBUTE_(capability(name))
#define QUIRE_SCOPED_CAPABILITY QUIRE_THREAD_ATTRIBUTE_(scoped_lockable)
// For the few bodies the analysis cannot follow; say why beside it.
#define QUIRE_NO_THREAD_SAFETY_ANALYSIS QUIRE_THREAD_ATTRIBUTE_(no_thread_safety_analysis)

#endif  // QUIRE_BASE_THREAD_ANNOTATIONS_H_
