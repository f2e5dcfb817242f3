/* Loads an AOTInductor CUDA library over the recorder, gives it constants, runs it once:
 *   loader MODEL WEIGHTS INPUT...     (each input by its dtype's number and its sizes: 6,8,64)
 * What it finds goes to RECORDER_LOG, between the lines of the recorder. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
static void *open_library(const char *path) {
  HMODULE module = LoadLibraryA(path);
  if (!module) fprintf(stderr, "LoadLibrary(%s): error %lu\n", path, GetLastError());
  return (void *)module;
}
#define symbol(library, name) ((void *)GetProcAddress((HMODULE)(library), name))
static const char *CUDART = "cudart64_13.dll", *SHIMS = "aoti_cuda_shims.dll";
#else
#include <dlfcn.h>
static void *open_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* the model's undefined names are found here */
  if (!library) fprintf(stderr, "dlopen: %s\n", dlerror());
  return library;
}
#define symbol(library, name) dlsym(library, name)
static const char *CUDART = "libcudart.so.13", *SHIMS = "libaoti_cuda_shims.so";
#endif

static void record(const char *format, ...) {
  FILE *file = fopen(getenv("RECORDER_LOG"), "ab");
  va_list args;
  va_start(args, format);
  fputs("loader: ", file);
  vfprintf(file, format, args);
  va_end(args);
  fputc('\n', file);
  fclose(file);
}

enum { MOST = 64 }; /* inputs, and outputs */
static void *model;
#define CALL(name, types, ...)                                                     \
  do {                                                                             \
    int32_t(*function) types = (int32_t(*) types)symbol(model, #name);             \
    if (!function) { record(#name " isn't exported"); exit(3); }                   \
    int32_t code = function(__VA_ARGS__);                                          \
    record(#name " returned %d", code);                                            \
    if (code) { fail(); exit(4); }                                                 \
  } while (0)

static void fail(void) {
  int32_t (*last)(const char **) = (int32_t(*)(const char **))symbol(model, "AOTInductorGetLastError");
  const char *text = NULL;
  if (last && !last(&text) && text) record("error: %.*s", (int)strcspn(text, "\n"), text);
}

int main(int argc, char **argv) {
  if (argc < 4 || !getenv("RECORDER_LOG")) return 2;
  void *cudart = open_library(CUDART), *shims = open_library(SHIMS);
  model = cudart && shims ? open_library(argv[1]) : NULL;
  if (!model) return 1;

  void *container;
  record("loaded");
  CALL(AOTInductorModelContainerCreateWithDevice, (void **, size_t, const char *, const char *),
       &container, 1, "cuda", NULL);
  size_t inputs, outputs, constants;
  CALL(AOTInductorModelContainerGetNumInputs, (void *, size_t *), container, &inputs);
  CALL(AOTInductorModelContainerGetNumOutputs, (void *, size_t *), container, &outputs);
  CALL(AOTInductorModelContainerGetNumConstants, (void *, size_t *), container, &constants);
  record("inputs %d outputs %d constants %d", (int)inputs, (int)outputs, (int)constants);
  for (size_t i = 0; i < constants; i++) {
    const char *name, *original;
    size_t bytes;
    CALL(AOTInductorModelContainerGetConstantName, (void *, size_t, const char **), container, i, &name);
    CALL(AOTInductorModelContainerGetConstantOriginalFQN, (void *, size_t, const char **), container, i,
         &original);
    CALL(AOTInductorModelContainerGetConstantDataSize, (void *, size_t, size_t *), container, i, &bytes);
    record("constant %s is %s, %d bytes", name, original, (int)bytes);
  }

  FILE *file = fopen(argv[2], "rb");
  if (!file) { perror(argv[2]); return 1; }
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  void *weights = malloc(size);
  if (fread(weights, 1, size, file) != (size_t)size) return 1;
  fclose(file);
  CALL(AOTInductorModelUpdateConstantsFromBlob, (void *, const uint8_t *), container, weights);

  int32_t (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **) =
      (void *)symbol(shims, "aoti_torch_empty_strided");
  int32_t (*get_sizes)(void *, int64_t **) = (void *)symbol(shims, "aoti_torch_get_sizes");
  int32_t (*get_dim)(void *, int64_t *) = (void *)symbol(shims, "aoti_torch_get_dim");
  int32_t (*get_data)(void *, void **) = (void *)symbol(shims, "aoti_torch_get_data_ptr");
  int32_t (*delete)(void *) = (void *)symbol(shims, "aoti_torch_delete_tensor_object");
  void *given[MOST] = {0}, *made[MOST] = {0};
  if (inputs > MOST || outputs > MOST || inputs != (size_t)argc - 3) return 2;
  for (size_t i = 0; i < inputs; i++) {
    int64_t shape[8], strides[8], dim = 0, step = 1;
    char *at = argv[3 + i];
    int32_t dtype = (int32_t)strtol(at, &at, 10);
    while (*at == ',' && dim < 8) shape[dim++] = strtol(at + 1, &at, 10);
    for (int d = (int)dim - 1; d >= 0; d--) { strides[d] = step; step *= shape[d]; }
    if (empty(dim, shape, strides, dtype, 1, 0, &given[i])) return 1;
  }
  CALL(AOTInductorModelContainerRun,
       (void *, void **, size_t, void **, size_t, void *, void *), container, given, inputs, made,
       outputs, NULL, NULL);
  for (size_t i = 0; i < outputs; i++) {
    int64_t *sizes, rank;
    void *address;
    get_dim(made[i], &rank);
    get_sizes(made[i], &sizes);
    get_data(made[i], &address);
    record("output %d of rank %d at %" PRIx64, (int)i, (int)rank, (uint64_t)(uintptr_t)address);
    for (int d = 0; d < rank; d++) record("  size %" PRId64, sizes[d]);
    delete(made[i]);
  }
  CALL(AOTInductorModelContainerDelete, (void *), container);
  record("done");
  return 0;
}
