/* Stands in for a GPU's libraries and writes down what it is asked. One source, three libraries:
 *   -DPART_CUDA    libcuda.so.1         nvcuda.dll            the driver
 *   -DPART_CUDART  libcudart.so.13      cudart64_13.dll       CUDA's runtime
 *   -DPART_SHIMS   libaoti_cuda_shims.so  aoti_cuda_shims.dll tensors, as AOTInductor asks for them
 * Appends lines to the file that RECORDER_LOG names. Device memory is addresses alone, the same in each
 * run and on each machine, so that two logs can be compared byte for byte. Nothing is computed. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

static __attribute__((unused)) void record(const char *format, ...) {
  const char *path = getenv("RECORDER_LOG");
  FILE *file = path ? fopen(path, "ab") : stderr; /* opened each time: three libraries share it */
  if (!file) { perror("RECORDER_LOG"); abort(); }
  va_list args;
  va_start(args, format);
  vfprintf(file, format, args);
  va_end(args);
  fputc('\n', file);
  if (path) fclose(file);
}

/* SHA-256 (FIPS 180-4) of size bytes, as hexadecimal digits. */
static __attribute__((unused)) const char *sha256(const void *data, size_t size) {
  static char text[65];
  static uint32_t K[64];
  uint32_t h[8], w[64];
  if (!K[0]) { /* fractional parts of cube roots of the first 64 primes, in integers alone */
    int prime = 2;
    for (int i = 0; i < 64; prime++) {
      int composite = 0;
      for (int d = 2; d * d <= prime; d++) composite |= prime % d == 0;
      if (composite) continue;
      unsigned __int128 low = 0, high = (unsigned __int128)8 << 32; /* cube root times 2**32 */
      while (high - low > 1) {
        unsigned __int128 middle = (low + high) / 2, cube = middle * middle * middle;
        if (cube <= (unsigned __int128)prime << 96) low = middle; else high = middle;
      }
      K[i++] = (uint32_t)low;
    }
  }
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(h, start, sizeof h);
  size_t total = ((size + 8) / 64 + 1) * 64;
  for (size_t at = 0; at < total; at += 64) {
    for (int i = 0; i < 64; i++) {
      size_t p = at + i;
      uint8_t byte = p < size ? ((const uint8_t *)data)[p] : p == size ? 0x80
                     : p >= total - 8 ? (uint8_t)((uint64_t)size * 8 >> 8 * (total - 1 - p)) : 0;
      w[i / 4] = w[i / 4] << 8 | byte;
    }
#define R(x, n) ((x) >> (n) | (x) << (32 - (n)))
    for (int i = 16; i < 64; i++)
      w[i] = w[i - 16] + w[i - 7] + (R(w[i - 15], 7) ^ R(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (R(w[i - 2], 17) ^ R(w[i - 2], 19) ^ w[i - 2] >> 10);
    uint32_t v[8];
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
      uint32_t one = v[7] + (R(v[4], 6) ^ R(v[4], 11) ^ R(v[4], 25)) +
                     ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
      uint32_t two = (R(v[0], 2) ^ R(v[0], 13) ^ R(v[0], 22)) +
                     ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      memmove(v + 1, v, 7 * sizeof *v);
      v[4] += one;
      v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
  }
  for (int i = 0; i < 8; i++) sprintf(text + 8 * i, "%08" PRIx32, h[i]);
  return text;
}

#ifdef PART_CUDA
typedef struct { int number; const uint8_t *image; } Module;
typedef struct { char name[256]; int parameters, ptx; uint16_t size[64]; } Function;
static int modules;

#define AT(type, base, offset) (*(const type __attribute__((aligned(1), may_alias)) *)((base) + (offset)))

static uint64_t elf_size(const uint8_t *e) { /* the section table is last, or a section is */
  uint64_t end = AT(uint64_t, e, 0x28) + (uint64_t)AT(uint16_t, e, 0x3a) * AT(uint16_t, e, 0x3c);
  for (int i = 0; i < AT(uint16_t, e, 0x3c); i++) {
    const uint8_t *s = e + AT(uint64_t, e, 0x28) + i * AT(uint16_t, e, 0x3a);
    uint64_t last = AT(uint64_t, s, 24) + AT(uint64_t, s, 32);
    if (AT(uint32_t, s, 4) != 8 && last > end) end = last; /* 8: NOBITS */
  }
  uint64_t programs = AT(uint64_t, e, 0x20) + (uint64_t)AT(uint16_t, e, 0x36) * AT(uint16_t, e, 0x38);
  return programs > end ? programs : end;
}

/* Sizes of a kernel's parameters, from the .nv.info section of its code. */
static void parameters(const uint8_t *e, Function *f) {
  const uint8_t *table = e + AT(uint64_t, e, 0x28);
  int entry = AT(uint16_t, e, 0x3a), count = AT(uint16_t, e, 0x3c);
  const char *names = (const char *)e + AT(uint64_t, table + entry * AT(uint16_t, e, 0x3e), 24);
  for (int i = 0; i < count; i++) {
    const uint8_t *s = table + i * entry;
    const char *name = names + AT(uint32_t, s, 0);
    if (strncmp(name, ".nv.info.", 9) || strcmp(name + 9, f->name)) continue;
    const uint8_t *p = e + AT(uint64_t, s, 24), *end = p + AT(uint64_t, s, 32);
    while (p < end) {
      int form = p[0], attribute = p[1], value = AT(uint16_t, p, 2);
      p += 4;
      if (form != 4) continue;               /* EIFMT_SVAL: value bytes follow */
      if (attribute == 0x17 && value == 12) { /* EIATTR_KPARAM_INFO */
        int ordinal = AT(uint16_t, p, 4);
        if (ordinal < 64) f->size[ordinal] = AT(uint32_t, p, 8) >> 18;
        if (ordinal >= f->parameters) f->parameters = ordinal + 1;
      }
      p += value;
    }
  }
}

API int cuModuleLoadData(Module **module, const uint8_t *image) {
  char kinds[512] = "";
  uint64_t size = 0;
  if (AT(uint32_t, image, 0) == 0xBA55ED50) { /* a fat binary: a header, then images */
    uint64_t at = AT(uint16_t, image, 6), end = at + AT(uint64_t, image, 8);
    size = end;
    while (at < end) {
      const uint8_t *i = image + at;
      sprintf(kinds + strlen(kinds), " %s:sm_%u:%" PRIu64, AT(uint16_t, i, 0) == 2 ? "elf" : "ptx",
              AT(uint32_t, i, 28), AT(uint64_t, i, 8));
      at += AT(uint32_t, i, 4) + AT(uint64_t, i, 8);
    }
  } else if (!memcmp(image, "\177ELF", 4)) {
    size = elf_size(image);
    strcpy(kinds, " elf");
  }
  *module = calloc(1, sizeof **module);
  (*module)->number = ++modules;
  (*module)->image = image;
  record("cuModuleLoadData module=%d bytes=%" PRIu64 " sha256=%s images=%s", modules, size,
         sha256(image, size), kinds + 1);
  return 0;
}
static int capability(void) {
  const char *number = getenv("RECORDER_CAPABILITY");
  return number ? atoi(number) : 0;
}
API int cuModuleGetFunction(Function **function, Module *module, const char *name) {
  Function *f = *function = calloc(1, sizeof **function);
  snprintf(f->name, sizeof f->name, "%s", name);
  const uint8_t *image = module->image;
  f->ptx = capability(); /* of code for one GPU; of several images, the one that this GPU takes */
  if (AT(uint32_t, image, 0) == 0xBA55ED50) {
    uint64_t at = AT(uint16_t, image, 6), end = at + AT(uint64_t, image, 8);
    f->ptx = 0;
    for (uint64_t i = at; i < end; i += AT(uint32_t, image, i + 4) + AT(uint64_t, image, i + 8)) {
      int gpu = AT(uint32_t, image, i + 28), elf = AT(uint16_t, image, i) == 2;
      if (elf && gpu / 10 != capability() / 10) continue; /* PTX is for later ones, too */
      if (gpu <= capability() && gpu > f->ptx) f->ptx = gpu;
    }
    for (; at < end; at += AT(uint32_t, image, at + 4) + AT(uint64_t, image, at + 8)) {
      const uint8_t *code = image + at + AT(uint32_t, image, at + 4);
      if (!memcmp(code, "\177ELF", 4)) { parameters(code, f); break; }
    }
  } else if (!memcmp(image, "\177ELF", 4)) parameters(image, f);
  record("cuModuleGetFunction module=%d name=%s parameters=%d", module->number, name, f->parameters);
  return 0;
}
API int cuFuncSetAttribute(Function *f, int attribute, int value) {
  record("cuFuncSetAttribute name=%s attribute=%d value=%d", f->name, attribute, value);
  return 0;
}
API int cuFuncGetAttribute(int *value, int attribute, Function *f) { /* 5: the version of its PTX */
  *value = attribute == 5 ? f->ptx : 0;
  return 0;
}
API int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
  char text[4096] = "";
  for (int i = 0; args && i < f->parameters; i++) {
    size_t length = strlen(text);
    length += snprintf(text + length, sizeof text - length, " ");
    for (int b = 0; b < f->size[i] && length + 3 < sizeof text; b++)
      length += sprintf(text + length, "%02x", ((uint8_t *)args[i])[b]);
  }
  record("cuLaunchKernel name=%s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%s extra=%s args=%s",
         f->name, gx, gy, gz, bx, by, bz, shared, stream ? "given" : "0", extra ? "given" : "0",
         text[0] ? text + 1 : "");
  return 0;
}
/* As cuLaunchKernel, by numbers and, behind a pointer, attributes of 72 bytes: a kind and, 8 bytes on, a value. */
typedef struct { unsigned of[7]; void *stream; const uint8_t *attributes; unsigned count; } Launch;
API int cuLaunchKernelEx(const Launch *launch, Function *f, void **args, void **extra) {
  const unsigned *n = launch->of;
  for (unsigned i = 0; i < launch->count; i++)
    record("cuLaunchKernelEx attribute=%d value=%d", AT(int, launch->attributes, 72 * i),
           AT(int, launch->attributes, 72 * i + 8));
  return cuLaunchKernel(f, n[0], n[1], n[2], n[3], n[4], n[5], n[6], launch->stream, args, extra);
}
API int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
API int cuDeviceGetAttribute(int *value, int attribute, int device) { /* 75 and 76: the compute capability */
  int number = capability();
  *value = attribute == 75 ? number / 10 : attribute == 76 ? number % 10 : 0;
  return 0;
}
API int cuModuleUnload(Module *module) { record("cuModuleUnload module=%d", module->number); return 0; }
API int cuGetErrorString(int error, const char **text) {
  if (error) record("cuGetErrorString error=%d", error);
  *text = "recorded";
  return 0;
}
#endif

#ifdef PART_CUDART
static uint64_t next = 0x7100000000; /* made-up addresses, as aligned as CUDA's */
static int events;
API int cudaMalloc(void **pointer, size_t size) {
  *pointer = (void *)(uintptr_t)next;
  record("cudaMalloc bytes=%" PRIu64 " address=%" PRIx64, (uint64_t)size, next);
  next += (size + 511) / 512 * 512 + 512;
  return 0;
}
API int cudaFree(void *p) { record("cudaFree address=%" PRIx64, (uint64_t)(uintptr_t)p); return 0; }
API int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  int host = kind == 1 || (kind == 4 && ((uint64_t)(uintptr_t)from >> 32) != 0x71);
  record("cudaMemcpy to=%" PRIx64 " bytes=%" PRIu64 " kind=%d sha256=%s", (uint64_t)(uintptr_t)to,
         (uint64_t)size, kind, host ? sha256(from, size) : "unknown");
  return 0;
}
API int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return cudaMemcpy(to, from, size, kind);
}
API int cudaPointerGetAttributes(void *attributes, const void *p) { record("cudaPointerGetAttributes"); return 1; }
API int cudaStreamCreateWithFlags(void **s, unsigned flags) { *s = NULL; record("cudaStreamCreateWithFlags"); return 0; }
API int cudaStreamDestroy(void *s) { record("cudaStreamDestroy"); return 0; }
API int cudaStreamSynchronize(void *s) { record("cudaStreamSynchronize"); return 0; }
API int cudaEventCreateWithFlags(void **e, unsigned flags) {
  *e = (void *)(intptr_t)++events;
  record("cudaEventCreateWithFlags");
  return 0;
}
API int cudaEventCreate(void **e) { *e = (void *)(intptr_t)++events; record("cudaEventCreate"); return 0; }
API int cudaEventDestroy(void *e) { record("cudaEventDestroy"); return 0; }
API int cudaEventQuery(void *e) { record("cudaEventQuery"); return 0; }
API int cudaEventRecord(void *e, void *stream) { record("cudaEventRecord"); return 0; }
API int cudaEventSynchronize(void *e) { record("cudaEventSynchronize"); return 0; }
API int cudaGetDevice(int *device) { *device = 0; record("cudaGetDevice"); return 0; }
API int cudaSetDevice(int device) { record("cudaSetDevice %d", device); return 0; }
API int cudaDeviceGetDefaultMemPool(void **pool, int device) {
  *pool = NULL;
  record("cudaDeviceGetDefaultMemPool %d", device);
  return 0;
}
/* The host may have set it: RECORDER_THRESHOLD. */
API int cudaMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
  const char *threshold = getenv("RECORDER_THRESHOLD");
  *value = threshold ? strtoull(threshold, NULL, 10) : 0;
  record("cudaMemPoolGetAttribute attribute=%d", attribute);
  return 0;
}
API int cudaMemPoolSetAttribute(void *pool, int attribute, const uint64_t *value) {
  record("cudaMemPoolSetAttribute attribute=%d value=%" PRIu64, attribute, *value);
  return 0;
}
API const char *cudaGetErrorString(int error) { return "recorded"; }
API int cudaGetLastError(void) { return 0; }
#endif

#ifdef PART_SHIMS
typedef struct {
  void *data;
  int64_t dim, sizes[8], strides[8], offset, numel;
  int32_t dtype, device_type, device_index;
} Tensor;
int cudaMalloc(void **, size_t);

/* Dtypes as PyTorch numbers them (c10::ScalarType), and what an element of each takes. */
#define DTYPES(_) \
  _(uint8, 0, 1) _(int8, 1, 1) _(int16, 2, 2) _(int32, 3, 4) _(int64, 4, 8) _(float16, 5, 2) \
  _(float32, 6, 4) _(float64, 7, 8) _(bool, 11, 1) _(bfloat16, 15, 2)
static int64_t bytes_of(int32_t dtype) {
#define SIZE(name, number, size) if (dtype == number) return size;
  DTYPES(SIZE)
  fprintf(stderr, "dtype %d isn't known\n", dtype);
  abort();
}
#define NUMBER(name, number, size) API int32_t aoti_torch_dtype_##name(void) { return number; }
DTYPES(NUMBER)

API int32_t aoti_torch_create_tensor_from_blob_v2(void *data, int64_t dim, const int64_t *sizes,
    const int64_t *strides, int64_t offset, int32_t dtype, int32_t device_type, int32_t device_index,
    Tensor **result, int32_t layout, const uint8_t *metadata, int64_t metadata_size) {
  if (dim > 8) return 1;
  Tensor *t = *result = calloc(1, sizeof *t);
  *t = (Tensor){.data = data, .dim = dim, .offset = offset, .numel = 1, .dtype = dtype,
                .device_type = device_type, .device_index = device_index};
  char shape[256] = "";
  for (int i = 0; i < dim; i++) {
    t->sizes[i] = sizes[i];
    t->strides[i] = strides[i];
    t->numel *= sizes[i];
    sprintf(shape + strlen(shape), "%s%" PRId64 "/%" PRId64, i ? "," : "", sizes[i], strides[i]);
  }
  record("tensor shape/stride=%s offset=%" PRId64 " dtype=%d device=%d:%d layout=%d address=%" PRIx64,
         shape, offset, dtype, device_type, device_index, layout,
         device_type == 1 ? (uint64_t)(uintptr_t)data : 0);
  return 0;
}
API int32_t aoti_torch_create_tensor_from_blob(void *data, int64_t dim, const int64_t *sizes,
    const int64_t *strides, int64_t offset, int32_t dtype, int32_t device_type, int32_t device_index,
    Tensor **result) {
  return aoti_torch_create_tensor_from_blob_v2(data, dim, sizes, strides, offset, dtype, device_type,
                                               device_index, result, 0, NULL, 0);
}
API int32_t aoti_torch_empty_strided(int64_t dim, const int64_t *sizes, const int64_t *strides,
    int32_t dtype, int32_t device_type, int32_t device_index, Tensor **result) {
  int64_t elements = 1;
  void *data;
  for (int i = 0; i < dim; i++) elements += (sizes[i] - 1) * strides[i];
  if (device_type != 1) return 1; /* what is computed is on the GPU */
  cudaMalloc(&data, elements * bytes_of(dtype));
  return aoti_torch_create_tensor_from_blob(data, dim, sizes, strides, 0, dtype, device_type,
                                            device_index, result);
}
API int32_t aoti_torch_new_tensor_handle(Tensor *t, Tensor **result) {
  *result = malloc(sizeof *t);
  **result = *t;
  return 0;
}
API int32_t aoti_torch__reinterpret_tensor(Tensor *t, int64_t dim, const int64_t *sizes,
    const int64_t *strides, int64_t offset, Tensor **result) {
  return aoti_torch_create_tensor_from_blob(t->data, dim, sizes, strides, t->offset + offset, t->dtype,
                                            t->device_type, t->device_index, result);
}
API int32_t aoti_torch_assign_tensors_out(Tensor *t, Tensor **result) {
  return aoti_torch_new_tensor_handle(t, result);
}
API int32_t aoti_torch_delete_tensor_object(Tensor *t) { free(t); return 0; }
API int32_t aoti_torch_clone(Tensor *t, Tensor **result) { record("aoti_torch_clone"); return 1; }
API int32_t aoti_torch_clone_preserve_strides(Tensor *t, Tensor **result) {
  record("aoti_torch_clone_preserve_strides");
  return 1;
}
API int32_t aoti_torch_get_data_ptr(Tensor *t, void **p) { *p = (char *)t->data + bytes_of(t->dtype) * t->offset; return 0; }
API int32_t aoti_torch_get_dim(Tensor *t, int64_t *dim) { *dim = t->dim; return 0; }
API int32_t aoti_torch_get_numel(Tensor *t, int64_t *numel) { *numel = t->numel; return 0; }
API int32_t aoti_torch_get_sizes(Tensor *t, int64_t **sizes) { *sizes = t->sizes; return 0; }
API int32_t aoti_torch_get_strides(Tensor *t, int64_t **strides) { *strides = t->strides; return 0; }
API int32_t aoti_torch_get_storage_offset(Tensor *t, int64_t *offset) { *offset = t->offset; return 0; }
API int32_t aoti_torch_get_storage_size(Tensor *t, int64_t *size) { *size = bytes_of(t->dtype) * t->numel; return 0; }
API int32_t aoti_torch_get_dtype(Tensor *t, int32_t *dtype) { *dtype = t->dtype; return 0; }
API int32_t aoti_torch_get_device_type(Tensor *t, int32_t *type) { *type = t->device_type; return 0; }
API int32_t aoti_torch_get_device_index(Tensor *t, int32_t *index) { *index = t->device_index; return 0; }
API int32_t aoti_torch_device_type_cpu(void) { return 0; }
API int32_t aoti_torch_device_type_cuda(void) { return 1; }
API int32_t aoti_torch_layout_strided(void) { return 0; }
API _Bool aoti_torch_grad_mode_is_enabled(void) { return 0; }
API void aoti_torch_grad_mode_set_enabled(_Bool enabled) { record("grad_mode_set_enabled %d", enabled); }
API int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device, void **guard) {
  record("create_cuda_stream_guard stream=%s device=%d", stream ? "given" : "0", device);
  *guard = malloc(1);
  return 0;
}
API int32_t aoti_torch_delete_cuda_stream_guard(void *guard) {
  record("delete_cuda_stream_guard");
  free(guard);
  return 0;
}
API void aoti_torch_warn(const char *function, const char *file, uint32_t line, const char *text) {
  record("aoti_torch_warn %s", text);
}
#endif
